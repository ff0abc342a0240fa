"""The options of tasks, their ranges and their wire form.

Invariant: options that could be created are accepted by a broker; they never change.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypedDict

from scale0.kernel.names import is_identity
from scale0.tasks.jsonrpc.arguments import (
    MAX_AFTER,
    MAX_ATTEMPTS,
    MAX_KEY_CHARS,
    MAX_PRIORITY,
    MAX_SECONDS,
    MAX_WALL_SECONDS,
)

if TYPE_CHECKING:
    from scale0.client.task import AsyncTask, Task

DEFAULT_WINDOW: Final = 2_000
"""Unacknowledged tasks before a submission waits for the broker."""


class TaskOptionArguments(TypedDict, total=False):
    """The options as keyword arguments of `task(...)`; `TaskOptions` describes them."""

    priority: int
    delay: float
    at: float | datetime.datetime
    timeout: float
    max_attempts: int
    backoff: float
    result_ttl: float
    key: str
    after: Sequence[Task | AsyncTask | str]
    notify: bool
    id: str
    wait: bool
    window: int


class TaskOptions:
    """Options of tasks. The broker chooses what is not given.

    priority: 0 to 9, higher first (4). delay: seconds before it may start; at: the time (seconds since the epoch, or an
    aware datetime). timeout: seconds for one attempt (an hour). max_attempts: attempts in all (3). backoff: seconds
    before the next attempt, doubled each time (0). result_ttl: seconds for which its result is kept (a day). key: the
    same key returns the first task, in place of a second one; with another service or other arguments KeyConflict is
    raised. after: tasks, or their ids, that must finish first. notify: push its end (yes). id: its id, of `A-Z a-z 0-9
    . _ : -`, in place of a generated one. wait: return only when it is on disk (yes). window: how many may be
    unacknowledged at once (2,000).
    """

    __slots__ = ("_wire", "id", "key", "wait", "window")

    def __init__(
        self,
        *,
        priority: int | None = None,
        delay: float | None = None,
        at: float | datetime.datetime | None = None,
        timeout: float | None = None,
        max_attempts: int | None = None,
        backoff: float | None = None,
        result_ttl: float | None = None,
        key: str | None = None,
        after: Sequence[Task | AsyncTask | str] = (),
        notify: bool = True,
        id: str | None = None,
        wait: bool = True,
        window: int = DEFAULT_WINDOW,
    ) -> None:
        if delay is not None and at is not None:
            raise ValueError("give delay or at, not both")
        if id is not None and not is_identity(id):
            raise ValueError(f"an id is 1 to 128 characters of A-Z a-z 0-9 . _ : -, not {id!r}")
        if key is not None and not 1 <= len(key) <= MAX_KEY_CHARS:
            raise ValueError(f"a key is 1 to {MAX_KEY_CHARS} characters")
        if isinstance(after, str) or len(after) > MAX_AFTER:
            raise ValueError(f"after is a sequence of at most {MAX_AFTER} tasks")
        if type(window) is not int or window < 1:
            raise ValueError(f"window is at least 1, not {window}")
        wire: dict[str, Any] = {
            "priority": whole("priority", priority, 0, MAX_PRIORITY),
            "delay": seconds("delay", delay, 0.0),
            "at": seconds("at", moment(at), 0.0, MAX_WALL_SECONDS),
            "timeout": seconds("timeout", timeout, math.ulp(0.0)),
            "max_attempts": whole("max_attempts", max_attempts, 1, MAX_ATTEMPTS),
            "backoff": seconds("backoff", backoff, 0.0),
            "result_ttl": seconds("result_ttl", result_ttl, 0.0),
            "key": key,
            "after": [one if isinstance(one, str) else one.id for one in after] or None,
            "notify": True if notify else None,
        }
        self._wire = {name: value for name, value in wire.items() if value is not None}
        self.id = id
        self.key = key
        self.wait = wait
        self.window = window

    def wire(self) -> dict[str, Any]:
        """The options as the broker receives them."""
        return dict(self._wire)

    def check_many(self) -> None:
        """Raise if these options fit only one task."""
        if self.id is not None or self.key is not None:
            raise ValueError("an id or a key is for one task: use submit")

    def __repr__(self) -> str:
        return f"TaskOptions({', '.join(f'{name}={value!r}' for name, value in self._wire.items())})"


def whole(name: str, value: int | None, least: int, most: int) -> int | None:
    if value is not None and (type(value) is not int or not least <= value <= most):
        raise ValueError(f"{name} is a whole number from {least} to {most}, not {value!r}")
    return value


def seconds(name: str, value: float | None, least: float, most: float = MAX_SECONDS) -> float | None:
    if value is None:
        return None
    if type(value) not in (int, float) or not least <= value <= most:
        raise ValueError(f"{name} is {'more than' if least else 'at least'} 0 and at most {most:g} s, not {value!r}")
    return value


def moment(at: float | datetime.datetime | None) -> float | None:
    """A point in time in seconds since the epoch."""
    if not isinstance(at, datetime.datetime):
        return at
    if at.tzinfo is None:
        raise ValueError("at must be a datetime with a time zone")
    return at.timestamp()

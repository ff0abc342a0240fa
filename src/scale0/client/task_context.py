"""What a handler can say, ask and raise while it runs as a task.

Lives here: `progress`, `cancelled`, `attempt`, and the errors `Retry` and `GiveUp`. Never here: sending any of it.
Invariant: in a call, and outside of any handler, nothing here does anything: one function serves both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, NamedTuple, Protocol

from scale0.kernel.edge.clocks import read_now
from scale0.kernel.errors import Scale0Error

MAX_NOTE_CHARS: Final = 500
"""Of a note: it is stored with the task, and shown in one line."""


class TaskAttempt(Protocol):
    """The attempt that runs, as a handler may see it."""

    @property
    def attempt(self) -> int: ...

    @property
    def stop(self) -> bool: ...

    @property
    def deadline(self) -> float: ...


Tell = Callable[[TaskAttempt, float, str], None]
"""Who passes a handler's progress on: how far it is, and a note."""


class RunningTask(NamedTuple):
    """The task that this thread or coroutine is at."""

    job: TaskAttempt
    tell: Tell


here: Final[ContextVar[RunningTask | None]] = ContextVar("scale0_task", default=None)


class Retry(Scale0Error):
    """Raise it in a handler to have the task tried again, whatever `retry_on` says; `after` so many seconds at least.

    The task's `max_attempts` still bounds it.
    """

    def __init__(self, why: str = "", after: float | None = None) -> None:
        super().__init__(why)
        if after is not None and not 0 <= after < math.inf:
            raise ValueError(f"after is a number of seconds, not {after!r}")
        self.after = after


class GiveUp(Scale0Error):
    """Raise it in a handler to have the task fail for good."""


def progress(done: float, note: str = "") -> None:
    """Say how far the task is: 0 to 1, and a few words. Call it as often as you like: at most ten a second are sent."""
    doing = here.get()
    if doing is None:
        return
    if math.isnan(done):
        raise ValueError("progress is a number from 0 to 1, not NaN")
    fitting = str(note)[:MAX_NOTE_CHARS].encode("utf-8", "replace").decode()
    doing.tell(doing.job, min(1.0, max(0.0, float(done))), fitting)


def cancelled() -> bool:
    """True once nobody wants the task's result any more, or its time is over: a long handler should look, and end."""
    doing = here.get()
    return doing is not None and (doing.job.stop or read_now().mono > doing.job.deadline)


def attempt() -> int:
    """Which hand-out of the task this is, from 1; 0 in a call."""
    doing = here.get()
    return 0 if doing is None else doing.job.attempt

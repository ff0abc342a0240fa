"""One run of a check: its deadline, what earlier runs left, and how it fails.

Lives here: `CheckRun`, `Deadline`, `RunState`, `CheckFailed`. Never here: a measurement. Invariants: a run that keeps
to `left()` ends before its timeout; what is kept between runs is bounded, and belongs to one check with one set of
args.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence
    from pathlib import Path

    from scale0.monitoring.checks.blocking_calls import BlockingCalls
    from scale0.monitoring.protocol.results import State

MARGIN_SHARE: Final = 0.05
MARGIN_SECONDS: Final = 0.25
"""A check ends this much before its timeout (the smaller of share and seconds), so that its own words are heard."""

MAX_KEPT: Final = 1_000
"""Checks whose last run is remembered; the one that ran longest ago goes first."""

MIN_SECONDS: Final = 0.5
"""Counters are compared over at least so long: the system counts processor time in hundredths of a second."""


class CheckFailed(Exception):
    """The check has an answer, and it is not a number: `state` and what to say."""

    def __init__(self, state: State, message: str) -> None:
        super().__init__(message)
        self.state = state
        self.message = message


class Deadline:
    """When a run must have ended, by the monotonic clock."""

    __slots__ = ("_ends", "timeout")

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._ends = time.monotonic() + timeout - min(MARGIN_SECONDS, timeout * MARGIN_SHARE)

    def left(self) -> float:
        """Seconds left, above 0; TimeoutError when there are none."""
        left = self._ends - time.monotonic()
        if not left > 0:
            raise TimeoutError("out of time")
        return left

    def passed(self) -> bool:
        """True when no time is left."""
        return not self._ends > time.monotonic()


class RunState:
    """What runs leave for the next run. Checks run in several threads, so it has a lock."""

    __slots__ = ("_lock", "_values")

    def __init__(self) -> None:
        self._values: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Any:
        """What was put there, or None."""
        return self._values.get(key)

    def put(self, key: Hashable, value: Any) -> None:
        """Remember `value`; the oldest goes where there are too many."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            if len(self._values) > MAX_KEPT:
                self._values.popitem(last=False)


class CheckRun:
    """What a measurement gets beside its args."""

    __slots__ = ("aside", "data_dir", "deadline", "kept", "key", "log_paths")

    def __init__(
        self,
        key: Hashable,
        deadline: Deadline,
        kept: RunState,
        aside: BlockingCalls,
        data_dir: Path | None,
        log_paths: Sequence[str] | None = None,
    ) -> None:
        self.key = key
        """The check and its args: two definitions with other args never see each other's last run."""
        self.deadline = deadline
        self.kept = kept
        self.aside = aside
        self.data_dir = data_dir
        """Where what is kept outlives the agent; None: nowhere."""
        self.log_paths = log_paths
        """Globs of the files that may be read as logs; None: every one."""

    def before(self) -> Any:
        """What the last run of this check left, or None."""
        return self.kept.get(self.key)

    def leave(self, value: Any) -> None:
        """Leave something for the next run of this check."""
        self.kept.put(self.key, value)


class Counters(Protocol):
    """Counters as they were at `mono`."""

    @property
    def mono(self) -> float:
        """When, by the monotonic clock."""
        ...


Counted = TypeVar("Counted", bound=Counters)


def earlier(run: CheckRun, now: Counted, start: Counted) -> Counted:
    """What to compare `now` with: the last run's counters, or `start` on the first one.

    Runs that follow faster than MIN_SECONDS all compare with the same counters, those of the run before them.
    """
    kept: tuple[Counted, Counted] | None = run.before()
    if kept is None:
        run.leave((start, now))
        return start
    base, newest = kept
    if now.mono - newest.mono < MIN_SECONDS:
        return base
    run.leave((newest, now))
    return newest

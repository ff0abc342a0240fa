"""One run of a check: its deadline, the state of earlier runs, calls that may block forever, and how it fails.

Invariants: a run that respects `left()` ends before its timeout; the state between runs is bounded, and belongs to one
check with one set of args; a blocking call is awaited no longer than its timeout, and a key has at most one call in
progress, so that a dead mount costs one thread and not one for each run.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from pathlib import Path

    from scale0.monitoring.protocol.results import State

MARGIN_SHARE: Final = 0.05
MARGIN_SECONDS: Final = 0.25
"""A check ends this much before its timeout (the smaller of share and seconds), so that its own message is reported."""

MAX_STATES: Final = 1_000
"""Checks whose last run is remembered; the least recently used one is dropped first."""

MIN_SECONDS: Final = 0.5
"""Counters are compared over at least this time: the system counts processor time in hundredths of a second."""

MAX_CALLS: Final = 64
"""Blocking calls in progress. Above it something hangs for good, and another thread would only hang too."""

Value = TypeVar("Value")


class CheckFailed(Exception):
    """The check has a result without a measurement: a state and a message."""

    def __init__(self, state: State, message: str) -> None:
        super().__init__(message)
        self.state = state
        self.message = message


class Deadline:
    """When a run must have ended, on the monotonic clock."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._ends = time.monotonic() + timeout - min(MARGIN_SECONDS, timeout * MARGIN_SHARE)

    def left(self) -> float:
        """Seconds left, above 0; TimeoutError if there are none."""
        left = self._ends - time.monotonic()
        if not left > 0:
            raise TimeoutError("out of time")
        return left

    def passed(self) -> bool:
        return not self._ends > time.monotonic()


class RunState:
    """What runs store for the next run. Checks run in several threads, so it has a lock."""

    def __init__(self) -> None:
        self._values: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Any:
        return self._values.get(key)

    def put(self, key: Hashable, value: Any) -> None:
        """Store `value`; drops the oldest one if there are too many."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            if len(self._values) > MAX_STATES:
                self._values.popitem(last=False)


class _Call:
    __slots__ = ("done", "error", "value")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.value: Any = None
        self.error: BaseException | None = None


class BlockingCalls:
    """Runs system calls that may never return, such as name lookups and calls on a dead mount, in threads."""

    def __init__(self, limit: int = MAX_CALLS) -> None:
        self._calls: dict[Hashable, _Call] = {}
        self._lock = threading.Lock()
        self._limit = limit

    def call(self, key: Hashable, function: Callable[[], Value], seconds: float) -> Value:
        """What `function` returns or raises; TimeoutError after `seconds`. A call with the same key is joined."""
        with self._lock:
            call = self._calls.get(key)
            if call is None:
                if len(self._calls) >= self._limit:
                    raise TimeoutError(f"{len(self._calls)} calls to the system hang already")
                call = self._calls[key] = _Call()
                threading.Thread(
                    target=self._perform, args=(key, call, function), name="scale0-blocking-call", daemon=True
                ).start()
        if not call.done.wait(seconds):
            raise TimeoutError("the system does not answer")
        if call.error is not None:
            raise call.error
        value: Value = call.value
        return value

    def _perform(self, key: Hashable, call: _Call, function: Callable[[], Any]) -> None:
        try:
            call.value = function()
        except BaseException as error:  # re-raised in the waiting thread
            call.error = error
        finally:
            with self._lock:
                self._calls.pop(key, None)
            call.done.set()


class CheckRun:
    """What `measure` gets besides the args."""

    def __init__(
        self,
        key: Hashable,
        deadline: Deadline,
        states: RunState,
        blocking_calls: BlockingCalls,
        data_dir: Path | None,
        log_paths: Sequence[str] | None = None,
    ) -> None:
        self.key = key
        """The check and its args: the same check with other args has a state of its own."""
        self.deadline = deadline
        self.states = states
        self.blocking_calls = blocking_calls
        self.data_dir = data_dir
        """Where state survives a restart of the agent; None: nowhere."""
        self.log_paths = log_paths
        """Globs of the files that may be read as logs; None: all files."""

    def previous(self) -> Any:
        """What the last run of this check stored, or None."""
        return self.states.get(self.key)

    def remember(self, value: Any) -> None:
        self.states.put(self.key, value)


class Counters(Protocol):
    """Counters at the monotonic time `mono`."""

    @property
    def mono(self) -> float: ...


Counted = TypeVar("Counted", bound=Counters)


def previous_counters(run: CheckRun, now: Counted, start: Counted) -> Counted:
    """The counters to compare `now` with: those of the last run, or `start` on the first one.

    Runs at intervals below MIN_SECONDS all compare with the same counters, those of the run before them.
    """
    kept: tuple[Counted, Counted] | None = run.previous()
    if kept is None:
        run.remember((start, now))
        return start
    base, newest = kept
    if now.mono - newest.mono < MIN_SECONDS:
        return base
    run.remember((newest, now))
    return newest

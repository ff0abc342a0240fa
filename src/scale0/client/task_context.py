"""What a handler can use while it runs as a task: `progress`, `cancelled`, `attempt`, `Retry` and `GiveUp`.

Invariant: in a call, and outside of any handler, these functions do nothing, so that one function serves both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, NamedTuple

from scale0.kernel.edge.clocks import read_now
from scale0.kernel.errors import Scale0Error
from scale0.tasks.node.assigned_tasks import AssignedTask

MAX_NOTE_CHARS: Final = 500
"""Length of a note: it is stored with the task, and shown in one line."""


ReportProgress = Callable[[AssignedTask, float, str], None]
"""Receives a handler's progress: a fraction, and a note."""


class RunningTask(NamedTuple):
    task: AssignedTask
    report: ReportProgress


current_task: Final[ContextVar[RunningTask | None]] = ContextVar("scale0_task", default=None)


class Retry(Scale0Error):
    """Raise it in a handler to have the task retried, whatever `retry_on` says; after at least `after` seconds.

    The task's `max_attempts` still applies.
    """

    def __init__(self, why: str = "", after: float | None = None) -> None:
        super().__init__(why)
        if after is not None and not 0 <= after < math.inf:
            raise ValueError(f"after is a number of seconds, not {after!r}")
        self.after = after


class GiveUp(Scale0Error):
    """Raise it in a handler to have the task fail without a retry."""


def progress(done: float, note: str = "") -> None:
    """Report how far the task is: 0 to 1, and a short note. At most ten reports a second are sent."""
    running = current_task.get()
    if running is None:
        return
    if math.isnan(done):
        raise ValueError("progress is a number from 0 to 1, not NaN")
    fitting = str(note)[:MAX_NOTE_CHARS].encode("utf-8", "replace").decode()
    running.report(running.task, min(1.0, max(0.0, float(done))), fitting)


def cancelled() -> bool:
    """True once the task is cancelled or its timeout is over: a long handler should check, and return."""
    running = current_task.get()
    return running is not None and (running.task.stop or read_now().mono > running.task.deadline)


def attempt() -> int:
    """The number of this attempt of the task, from 1; 0 in a call."""
    running = current_task.get()
    return 0 if running is None else running.task.attempt

"""Attempts that ended without completing their task: what is remembered of one, and when the next may begin.

Lives here: pure functions of a task. Never here: whether there is a next one (`queue`), or a lease. Invariants: a
task's history is one JSON array of a bounded size; a pause is never shorter than the backoff that was asked for.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from scale0.history.events.columns import clip_int
from scale0.history.events.tasks import TaskAttemptEnded
from scale0.kernel.clock import Now
from scale0.tasks.core.task import MICRO, QueuedTask

MAX_BACKOFF_SECONDS: Final = 86_400.0
"""However often it is doubled."""
MAX_HISTORY_BYTES: Final = 64 * 1024
"""Of the attempts of one task; beyond it only the last ones are kept."""
KEPT_ATTEMPTS: Final = 20
MAX_HISTORY_ERROR_BYTES: Final = 4_096
"""A longer error is not kept with its attempt."""


def pause_before_next(task: QueuedTask, rng: Any) -> float:
    """Doubled each time, with jitter: between once and one and a half times that."""
    if not task.kept.backoff:
        return 0.0
    whole = min(task.kept.backoff * 2.0 ** min(max(task.starts, 1) - 1, 32), MAX_BACKOFF_SECONDS)
    # Never less than what was asked for: the jitter is on top of it.
    jitter: float = rng.random()
    return whole * (1.0 + 0.5 * jitter)


def remembered(task: QueuedTask, state: str, error: bytes, now_us: int) -> bytes:
    """Its history with the attempt that has just ended."""
    entry: dict[str, Any] = {"attempt": task.attempt, "node": task.node, "state": state, "ended": now_us / MICRO}
    if task.started_us:
        entry["started"] = task.started_us / MICRO
    one = msgspec.json.encode(entry)
    if error and len(error) <= MAX_HISTORY_ERROR_BYTES:
        one = one[:-1] + b',"error":%b}' % error
    history = b"[%b]" % one if not task.history else task.history[:-1] + b",%b]" % one
    if len(history) > MAX_HISTORY_BYTES:
        attempts = msgspec.json.decode(history, type=list[msgspec.Raw])
        return msgspec.json.encode(attempts[-KEPT_ATTEMPTS:])
    return history


def attempt_ended(task: QueuedTask, state: str, code: int | None, now: Now) -> TaskAttemptEnded:
    """The event of it."""
    begun = task.started or task.handed
    return TaskAttemptEnded(
        task.id,
        task.method,
        clip_int(task.attempt),
        task.node,
        state,
        task.waited,
        max(0.0, now.mono - begun) if begun else 0.0,
        code,
    )

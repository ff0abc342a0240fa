"""Attempts that ended without completing their task: the recorded history, and the delay before the next attempt.
Invariants: a task's history is one JSON array of bounded size; the delay is never shorter than the requested
backoff."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from scale0.history.events.columns import clip_int
from scale0.history.events.tasks import TaskAttemptEnded
from scale0.kernel.backoff import pause
from scale0.kernel.clock import Now
from scale0.tasks.core.task import MICRO, QueuedTask

MAX_BACKOFF_SECONDS: Final = 86_400.0
"""Upper limit of the doubled backoff."""
MAX_HISTORY_BYTES: Final = 64 * 1024
"""Size limit of one task's history; beyond it only the newest attempts are kept."""
KEPT_ATTEMPTS: Final = 20
MAX_HISTORY_ERROR_BYTES: Final = 4_096
"""A longer error is not stored in the history."""


def pause_before_next(task: QueuedTask, rng: Any) -> float:
    """The backoff, doubled for each attempt, times a random factor between 1 and 1.5."""
    if not task.kept.backoff:
        return 0.0
    whole = pause(task.kept.backoff, MAX_BACKOFF_SECONDS, max(task.starts, 1) - 1)
    # The jitter is only ever added: the delay must not be shorter than the requested backoff.
    jitter: float = rng.random()
    return whole * (1.0 + 0.5 * jitter)


def remembered(task: QueuedTask, state: str, error: bytes, now_us: int) -> bytes:
    """Returns the task's history with the attempt that has just ended."""
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

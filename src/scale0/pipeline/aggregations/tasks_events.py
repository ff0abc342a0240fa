"""Kinds of task events, dictionaries of repeated texts, and the schemas of `tasks`.

An attempt is closed by one event, so that the times of attempts can be summed over events without looking at others.
Dictionary numbers are exact, not hashes: a client could choose a name with another's hash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from scale0.history.events.tasks import TaskAttemptEnded, TaskCompleted, TaskReopened, TaskSubmitted
from scale0.tasks.jsonrpc.messages import ATTEMPTS_LOST

if TYPE_CHECKING:
    from pyspark.sql import Column

SUBMITTED: Final = TaskSubmitted.kind
ATTEMPT_ENDED: Final = TaskAttemptEnded.kind
COMPLETED: Final = TaskCompleted.kind
REOPENED: Final = TaskReopened.kind

FINISHED: Final = "finished"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"
OUTCOMES: Final = (FINISHED, FAILED, CANCELLED)
LOST: Final = "lost"


def known() -> Column:
    """False for a completion in an unknown state: it is ignored, like unknown kinds."""
    return (f.col("kind") != COMPLETED) | f.coalesce(f.col("state").isin(*OUTCOMES), f.lit(False))


def attempt() -> Column:
    """The number of the attempt; null if it is invalid."""
    return f.when(f.col("attempt") >= 0, f.col("attempt"))


def closes_attempt() -> Column:
    """True if the event closes an attempt that a node had, never null.

    A completion does not if the task was never assigned, or waited to be assigned again (there is no node), or if its
    last attempt was lost: that one is closed by an event of its own.
    """
    handed_out = (f.coalesce(attempt(), f.lit(1)) >= 1) & (f.coalesce(f.col("identity"), f.lit("")) != "")
    told_before = f.coalesce(f.col("code") == ATTEMPTS_LOST, f.lit(False))
    finished = f.coalesce(f.col("state") == FINISHED, f.lit(False))
    completing = (f.col("kind") == COMPLETED) & (finished | (handed_out & ~told_before))
    return (f.col("kind") == ATTEMPT_ENDED) | completing

"""A notification whose handler was changed after its first submission is that submission's task."""

from __future__ import annotations

from scale0.monitoring.helen.edge.network_client import outcome_of
from scale0.tasks.client.futures import REFUSED, TaskFault, TaskFuture
from scale0.tasks.jsonrpc.messages import key_conflict


def test_a_key_that_belongs_to_the_first_submission_counts_as_submitted() -> None:
    error = key_conflict("notice-1", "first-task", ["params"])
    future = TaskFuture("second-task", None, None, b"")
    future.status, future.ended = REFUSED, True
    future.fault = TaskFault(error.code, error.message, error.data)
    assert outcome_of(future) == "first-task"

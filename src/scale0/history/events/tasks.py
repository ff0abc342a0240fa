"""Events of tasks: submission, failed attempts and the end; a task without problems has two events.

There may be 50,000 of them a second, so the frequent classes make their journal cells themselves; the caller passes
numbers that fit (`clip_int`, finite seconds).
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec

from scale0.history.events.columns import Event

_to_json: Final = msgspec.json.Encoder(order="sorted").encode


class TaskSubmitted(Event, frozen=True, gc=False):
    """A task was accepted."""

    kind: ClassVar[str] = "task.submitted"
    task_id: str
    method: str
    client: str
    priority: int
    group: str = ""

    def cells(self) -> list[Any]:
        group = _to_json(self.group).decode() if self.group else '""'
        data = f'{{"group":{group},"priority":{self.priority}}}'
        # fmt: off
        return ["task.submitted", None, self.client, self.method, self.task_id,
                None, None, None, None, None, None, None, None, data]
        # fmt: on


class TaskAttemptEnded(Event, frozen=True):
    """An attempt ended without completing its task."""

    kind: ClassVar[str] = "task.attempt_ended"
    task_id: str
    method: str
    attempt: int
    node: str
    state: str
    """failed, lost, timeout or cancelled."""
    waited: float
    seconds: float
    code: int | None = None


class TaskCompleted(Event, frozen=True, gc=False):
    """A task ended."""

    kind: ClassVar[str] = "task.completed"
    optional: ClassVar[tuple[str, ...]] = ("node",)
    task_id: str
    method: str
    attempt: int
    node: str
    state: str
    """finished, failed or cancelled."""
    waited: float
    """From runnable to the assignment of the last attempt."""
    seconds: float
    """The run time of the last attempt."""
    code: int | None = None
    """The error code of a failed task."""

    def cells(self) -> list[Any]:
        # fmt: off
        return ["task.completed", None, self.node or None, self.method, self.task_id,
                self.attempt, self.code, self.state, self.seconds, self.waited, None, None, None, None]
        # fmt: on


class TaskRefused(Event, frozen=True):
    """A result arrived too late, or from a node that does not have the task, and was not stored; or `more` of them did,
    of the same key."""

    kind: ClassVar[str] = "task.refused"
    optional: ClassVar[tuple[str, ...]] = ("task_id", "code", "more")
    task_id: str
    node: str
    attempt: int
    code: int
    more: int = 0


class TaskReopened(Event, frozen=True):
    """An administrator reopened an ended task."""

    kind: ClassVar[str] = "task.reopened"
    task_id: str
    method: str
    client: str

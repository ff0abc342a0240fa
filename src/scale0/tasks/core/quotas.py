"""Quotas of tasks: how many tasks that have not ended, how many bytes of params, how many delayed tasks and how many
bytes of ended tasks an account and all accounts together may have. A task that was accepted ends in any case. An
account is the key that submitted a task, or its client id without keys.
Invariant: the changes of a turn are stored by the commit of that turn, so after a restart the sums are exact, and
nothing is counted per task."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from scale0.broker.core.state import BrokerState
from scale0.kernel.effects import Effects
from scale0.storage.task_rows import SCHEDULED, AddTaskUsage, TaskUsage, account_name
from scale0.tasks.core.task import QueuedTask

NEXT_STEP: Final = "wait until some have ended, cancel some, or raise {limit} in the broker's file"
KEPT_STEP: Final = (
    "results and rows of ended tasks are kept until their result_ttl has passed, whether they were fetched or not;"
    " wait, submit with a shorter result_ttl, or raise {limit} in the broker's file"
)


class Usage:
    """What the tasks of an account use, or the changes of it in a turn."""

    __slots__ = ("bytes", "delayed", "kept", "tasks")

    def __init__(self, tasks: int = 0, bytes_: int = 0, delayed: int = 0, kept: int = 0) -> None:
        self.tasks = tasks
        self.bytes = bytes_
        self.delayed = delayed
        self.kept = kept
        """Bytes of ended tasks."""

    def add(self, tasks: int, bytes_: int, delayed: int, kept: int) -> None:
        self.tasks += tasks
        self.bytes += bytes_
        self.delayed += delayed
        self.kept += kept


NOTHING: Final = Usage()


class TaskQuotas:
    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._of: dict[str, Usage] = {}
        self.total = Usage()
        self._changes: dict[str, Usage] = {}
        """By account: the changes of this turn."""

    def start(self, usage: Iterable[TaskUsage], total: TaskUsage | None = None) -> None:
        """Replace the sums by those of the store."""
        self._of = {each.account: Usage(each.tasks, each.bytes, each.delayed, each.kept) for each in usage}
        self.total = Usage()
        for each in self._of.values() if total is None else (total,):
            self.total.add(each.tasks, each.bytes, each.delayed, each.kept)

    def of(self, account: str) -> Usage:
        return self._of.get(account, NOTHING)

    def why_not(self, account: str, size: int, delayed: bool) -> str:
        """Why a task of this account and size cannot be accepted: limit, value and next step; empty: it can."""
        limits, own, total = self._state.limits, self.of(account), self.total
        for used, more, limit, key_limit, key_value, what in (
            (0, 1, "task_queue_limit", "max_key_tasks", limits.max_key_tasks, "tasks that have not ended"),
            (1, size, "task_queue_bytes", "max_key_task_bytes", limits.max_key_task_bytes, "bytes of params of tasks"),
            (2, delayed, "delayed_task_limit", "max_key_delayed", limits.max_key_delayed, "delayed tasks"),
        ):
            if not more:
                continue
            most = getattr(limits, limit)
            key_most = key_value or (most + 1) // 2
            if (own.tasks, own.bytes, own.delayed)[used] + more > key_most:
                return f"{account} may have {key_most} {what} ({key_limit}): {NEXT_STEP.format(limit=key_limit)}"
            if (total.tasks, total.bytes, total.delayed)[used] + more > most:
                return f"all clients together may have {most} {what} ({limit}): {NEXT_STEP.format(limit=limit)}"
        for used_bytes, most, limit, whose in (
            (own.kept, limits.max_key_kept_bytes or (limits.kept_bytes + 1) // 2, "max_key_kept_bytes", account),
            (total.kept, limits.kept_bytes, "kept_bytes", "all clients together"),
        ):
            if used_bytes >= most:
                return f"{whose} may keep {most} bytes of ended tasks ({limit}): {KEPT_STEP.format(limit=limit)}"
        return ""

    def opened(self, task: QueuedTask) -> None:
        self._add(task, 1, task.size, task.status == SCHEDULED)

    def ended(self, task: QueuedTask, kept: int) -> None:
        """`kept`: what it counts until it is deleted."""
        self._add(task, -1, -task.size, -(task.status == SCHEDULED), kept)

    def freed(self, freed: Iterable[tuple[str, int]]) -> None:
        """Subtract what the store has subtracted already: ended tasks were deleted or opened again."""
        for account, size in freed:
            own = self._of.get(account)
            if own is not None:
                own.kept -= size
                self._drop_unused(account, own)
            self.total.kept -= size

    def set_status(self, task: QueuedTask, status: int) -> None:
        """Every change from or to SCHEDULED, other than the end of a task."""
        change = (status == SCHEDULED) - (task.status == SCHEDULED)
        task.status = status
        if change:
            self._add(task, 0, 0, change)

    def _add(self, task: QueuedTask, tasks: int, bytes_: int, delayed: int, kept: int = 0) -> None:
        account = account_name(task.owner, task.client)
        own = self._of.get(account)
        if own is None:
            self._of[account] = own = Usage()
        changes = self._changes.get(account)
        if changes is None:
            self._changes[account] = changes = Usage()
        for each in (own, self.total, changes):
            each.add(tasks, bytes_, delayed, kept)
        self._drop_unused(account, own)

    def _drop_unused(self, account: str, own: Usage) -> None:
        if not own.tasks and not own.kept:
            del self._of[account]

    def settle(self, effects: Effects) -> None:
        """Store the changes of this turn."""
        if not self._changes:
            return
        changed, self._changes = self._changes, {}
        for account, each in changed.items():
            if each.tasks or each.bytes or each.delayed or each.kept:
                effects.write(AddTaskUsage(account, each.tasks, each.bytes, each.delayed, each.kept))

"""Invariants of the memory that a broker uses for tasks: always within its windows, and empty when all tasks have
ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from scale0.storage.memory.tasks import TasksSnapshot
from scale0.storage.task_rows import SCHEDULED, TaskUsage, account_name, kept_bytes
from scale0.tasks.core import delayed_tasks, method_queues
from simulator.network.broker import BrokerNode

SPARE_TASKS: Final = 100
"""Tasks that were handed out together and came back together."""


def too_many(node: BrokerNode) -> str:
    """Describes what exceeds its limit; empty: nothing."""
    tasks: Any = node.broker.tasks
    known = len(tasks.backlog.tasks)
    levels = sum(len(tasks.queue.method_queues.find(method).levels) for method in tasks.queue.method_queues.methods())
    awaited = sum(map(len, tasks.leases.lease_recovery.awaited.values()))
    limit = (
        3 * levels * method_queues.WINDOW_TASKS
        + 2 * delayed_tasks.SCHEDULE_TASKS
        + tasks.leases.leased
        + awaited
        + len(tasks.leases.losses.waiting)
        + SPARE_TASKS
    )
    if known > limit:
        return f"{known} tasks are in memory, at most {limit} should be"
    return ""


def usage_of(tasks: TasksSnapshot) -> dict[str, TaskUsage]:
    """The usage of each account, counted from its tasks: the stored sums must be the same."""
    usage: dict[str, TaskUsage] = {}
    for row in tasks.open.values():
        account = account_name(row.owner, row.client)
        old = usage.get(account) or TaskUsage(account, 0, 0, 0)
        delayed = old.delayed + (row.status == SCHEDULED)
        usage[account] = TaskUsage(account, old.tasks + 1, old.bytes + len(row.params), delayed)
    for ended in tasks.ended.values():
        account = account_name(ended.owner, ended.client)
        old = usage.get(account) or TaskUsage(account, 0, 0, 0)
        usage[account] = msgspec.structs.replace(old, kept=old.kept + kept_bytes(ended))
    return usage


def leaks(node: BrokerNode) -> str:
    """Describes what remains although every task has ended; empty: nothing."""
    return next(_left(node), "")


def _left(node: BrokerNode) -> Iterator[str]:
    tasks: Any = node.broker.tasks
    if tasks.queue.open:
        yield f"{tasks.queue.open} tasks count as open"
    total = tasks.queue.quotas.total
    if total.bytes or total.delayed:
        yield f"{total.bytes} bytes of params and {total.delayed} delayed tasks are counted"
    if tasks.leases.leased:
        yield f"{tasks.leases.leased} leases are left"
    if tasks.backlog.tasks:
        yield f"in memory: {list(tasks.backlog.tasks)[:5]}"
    for backend in node.broker.scheduler.backends:
        if backend.tasks or backend.slotted or backend.busy:
            yield f"{backend.identity} still has {list(backend.tasks)}, {backend.slotted} of {backend.busy} slots taken"
    for method in tasks.queue.method_queues.methods():
        method_queue = tasks.queue.method_queues.find(method)
        if method_queue.leased:
            yield f"the lane of {method} counts {method_queue.leased} leases"
        for priority, level in method_queue.levels.items():
            if level.head() is not None:
                yield f"the lane of {method} has tasks of priority {priority}"
            if level.bytes:
                yield f"the lane of {method} counts {level.bytes} bytes of priority {priority}"
    tables = {
        "awaited": tasks.leases.lease_recovery.awaited,
        "lost": tasks.leases.losses.waiting,
        "pulled": tasks.leases._pulled,
        "not saved": tasks.leases._unsaved,
        "to be handed out": tasks.leases._out,
        "waits": tasks.completion_waits._waits,
        "notes": tasks.completion_waits._notes,
        "ended, dependents not notified": tasks.dependencies._ended,
        "questions": tasks.backlog._asked,
        "rounds": tasks.dependencies._open,
        "waiting": tasks.completion_waits.waiting,
    }
    for name, left in tables.items():
        if left:
            yield f"{name}: {left}"
    for connection in node.broker.connections:
        if connection.waits:
            yield f"{connection.name} waits to hear of {connection.waits} tasks"

"""What a broker's task room holds in memory: within its windows always, and nothing when all is quiet.

Lives here: a look into every table of the room. Never here: when to look (`task_checks`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from scale0.tasks.core import delayed_tasks, method_queues
from simulator.network.broker import BrokerNode

SPARE_TASKS: Final = 100
"""Tasks that were handed out together and came back together."""


def too_many(node: BrokerNode) -> str:
    """What is more than it may be; empty: nothing."""
    room: Any = node.broker.tasks
    known = len(room.shelf.tasks)
    levels = sum(len(room.queue.lanes.find(method).levels) for method in room.queue.lanes.methods())
    awaited = sum(map(len, room.leases.returning.awaited.values()))
    limit = (
        2 * levels * method_queues.WINDOW_TASKS
        + 2 * delayed_tasks.SCHEDULE_TASKS
        + room.leases.leased
        + awaited
        + SPARE_TASKS
    )
    if known > limit:
        return f"{known} tasks are in memory, at most {limit} should be"
    return ""


def leaks(node: BrokerNode) -> str:
    """What is left, though every task has ended; empty: nothing."""
    return next(_left(node), "")


def _left(node: BrokerNode) -> Iterator[str]:
    room: Any = node.broker.tasks
    if room.queue.open:
        yield f"{room.queue.open} tasks count as open"
    if room.leases.leased:
        yield f"{room.leases.leased} leases are left"
    if room.shelf.tasks:
        yield f"in memory: {list(room.shelf.tasks)[:5]}"
    for backend in node.broker.roster.backends:
        if backend.tasks or backend.slotted or backend.busy:
            yield f"{backend.identity} still has {list(backend.tasks)}, {backend.slotted} of {backend.busy} slots taken"
    for method in room.queue.lanes.methods():
        lane = room.queue.lanes.find(method)
        if lane.leased:
            yield f"the lane of {method} counts {lane.leased} leases"
        for priority, level in lane.levels.items():
            if level.head() is not None:
                yield f"the lane of {method} has tasks of priority {priority}"
            if level.bytes:
                yield f"the lane of {method} counts {level.bytes} bytes of priority {priority}"
    tables = {
        "awaited": room.leases.returning.awaited,
        "not saved": room.leases._unsaved,
        "to be handed out": room.leases._out,
        "waits": room.watchers._waits,
        "notes": room.watchers._notes,
        "ended, followers not told": room.followers._ended,
        "questions": room.shelf._asked,
        "rounds": room.followers._open,
        "waiting": room.watchers.waiting,
    }
    for name, left in tables.items():
        if left:
            yield f"{name}: {left}"
    for connection in node.broker.connections:
        if connection.waits:
            yield f"{connection.name} waits to hear of {connection.waits} tasks"

"""Lease recovery: leases from before this broker's start, whose nodes may reconnect. Invariants: each of these leases
ends in exactly one way: resumed by the node that still has the task, cancelled, or lost; until then it counts towards
its method queue's limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from scale0.broker.core.state import BrokerState
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.storage.task_rows import RUNNING, OpenTask
from scale0.tasks.core.queue import TaskQueue
from scale0.tasks.core.task import QueuedTask, belongs_to, from_store

if TYPE_CHECKING:
    from scale0.tasks.core.leases import Leases

GIVE_UP_FACTOR: Final = 2
"""Leases wait for their nodes for so many times the liveness, in heartbeat intervals."""


class LeaseRecovery:
    def __init__(self, state: BrokerState, leases: Leases, queue: TaskQueue) -> None:
        self._state = state
        self._leases = leases
        self._queue = queue
        self.awaited: dict[str, dict[str, QueuedTask]] = {}
        """By node: the tasks that it held when the previous broker process ended."""

    def start(self, rows: tuple[OpenTask, ...], now: Now, effects: Effects) -> None:
        """Registers the stored leases at the start of a broker."""
        for row in rows:
            self._queue.method_queues.need(row.method, now, effects).leased += 1
            task = from_store(row)
            task.start_reported = row.status == RUNNING
            # A pulled task counts as started when it is handed out.
            task.native = task.start_reported or not row.started_us
            self._queue.backlog.tasks[task.id] = task
            self.awaited.setdefault(task.node, {})[task.id] = task
        if rows:
            self._state.timers.add(
                (self._give_up, GIVE_UP_FACTOR * self._state.liveness - 1), now.mono + self._state.interval
            )

    def claim(self, backend: Any, holds: Mapping[str, int] | None, now: Now, effects: Effects) -> None:
        """Resumes or ends the leases of a node that reconnected and holds `holds` (None: it cannot report that)."""
        for id_, task in self.awaited.pop(backend.identity, {}).items():
            self._stop_waiting(task, now, effects)
            is_held = holds is None or holds.get(id_) == task.attempt
            if is_held and belongs_to(task.node_owner, backend.peer.public_key):
                self._leases.resume(task, backend, now, effects)
            else:
                self._leases.lost(task, now, effects)

    def cancel(self, task: QueuedTask) -> None:
        awaited = self.awaited.get(task.node)
        method_queue = self._queue.method_queues.find(task.method)
        if awaited is not None and awaited.pop(task.id, None) is not None and method_queue is not None:
            method_queue.leased -= 1
            self._queue.dirty[task.method] = None

    def _give_up(self, intervals: int, now: Now, effects: Effects) -> None:
        """Marks the leases of all nodes that did not reconnect in time as lost.

        The time is counted in intervals: while this process is suspended, it serves nobody, and one interval passes."""
        if intervals > 0:
            self._state.timers.add((self._give_up, intervals - 1), now.mono + self._state.interval)
            return
        awaited, self.awaited = self.awaited, {}
        for tasks in awaited.values():
            for task in tasks.values():
                self._stop_waiting(task, now, effects)
                self._leases.lost(task, now, effects)

    def _stop_waiting(self, task: QueuedTask, now: Now, effects: Effects) -> None:
        self._queue.method_queues.need(task.method, now, effects).leased -= 1
        self._queue.dirty[task.method] = None

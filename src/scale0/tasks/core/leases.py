"""Leases: which node runs which attempt of which task, from the hand-out to its end. Invariants: a lease is (task,
attempt, node), and a task has at most one; a lease is stored before its holder receives the task; a backend never holds
more than slots + prefetch tasks; a slot taken for a task is freed exactly once. `lease_recovery` handles leases from
before this broker's start."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from scale0.broker.core.scheduler import Backend, Scheduler
from scale0.broker.core.state import BrokerState
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.storage.task_rows import ASSIGNED, FINISHED, RUNNING, OpenTask
from scale0.tasks.core.adaptive_prefetch import AdaptivePrefetch
from scale0.tasks.core.broker_adapter import BrokerAdapter
from scale0.tasks.core.lease_recovery import LeaseRecovery
from scale0.tasks.core.method_queues import MethodQueue
from scale0.tasks.core.node_reports import NodeReport
from scale0.tasks.core.queue import TaskQueue
from scale0.tasks.core.reclaim import Reclaim
from scale0.tasks.core.task import MICRO, QueuedTask, of_seconds
from scale0.tasks.core.task_messages import bodies_of
from scale0.tasks.jsonrpc.messages import quoted

if TYPE_CHECKING:
    from scale0.tasks.core.shared_store import SharedStore

SAVE_SECONDS: Final = 1.0
"""Delay before the store records that a task runs, unless the task has ended by then."""


class Leases:
    def __init__(self, state: BrokerState, adapter: BrokerAdapter, slots: Scheduler, queue: TaskQueue) -> None:
        self._state = state
        self._adapter = adapter
        self._slots = slots
        self._queue = queue
        self._owner = quoted(state.owner)
        self.others: SharedStore | None = None
        """Set if brokers share the store."""
        self.on_resumed: Callable[[QueuedTask, Now, Effects], None] = lambda *_: None
        self.on_refused: Callable[[str, int], None] = lambda *_: None
        self._out: dict[Any, list[QueuedTask]] = {}
        self._cancels: dict[Any, list[bytes]] = {}
        self._idle_backends: dict[Any, MethodQueue | None] = {}
        self.reclaim = Reclaim(state, self, queue)
        self.lease_recovery = LeaseRecovery(state, self, queue)
        self._pacing = AdaptivePrefetch(state, slots, self.reclaim.ask, self._time_slotted)
        self.measured = self._pacing.measured
        self._unsaved: dict[QueuedTask, None] = {}
        """Running tasks whose state is not stored yet."""
        self.leased = 0

    # Events from backends.

    def feed(self, backend: Any, now: Now, effects: Effects) -> None:
        """Marks a backend that may have room: it gets work at the end of this turn."""
        if backend.pushes:
            self._idle_backends.setdefault(backend, None)

    def offer(self, backend: Any, now: Now, effects: Effects) -> None:
        for method in sorted(backend.services):
            self._queue.method_queues.need(method, now, effects)
        if not backend.services and backend.tasks:
            # It drains: other backends run what it has not started.
            self.reclaim.ask(backend, now, effects)
        self.feed(backend, now, effects)

    def claim(self, backend: Any, holds: Mapping[str, int] | None, now: Now, effects: Effects) -> None:
        """Handles a backend's report of the tasks that it holds (None: it cannot report them) after a reconnect."""
        if self.others is not None:
            self.others.claim(backend, holds, now, effects)
            return
        self.lease_recovery.claim(backend, holds, now, effects)
        # These tasks occupy slots from now on: no other work may take the slots before the turn ends.
        self._assign_free_slots(backend)
        if holds and backend.pushes:
            for id_, attempt in holds.items():
                held = backend.tasks.get(id_)
                if held is None or held.attempt != attempt:
                    self.refuse(backend, id_, attempt)
        self.feed(backend, now, effects)

    def fetch(self, row: Any, backend: Any, attempt: int | None, now: Now, effects: Effects) -> bool:
        """Starts to take over a lease of this node from the shared store; False if the node does not hold it."""
        if self.others is None or not isinstance(row, OpenTask) or row.status not in (ASSIGNED, RUNNING):
            return False
        if row.node != backend.identity or attempt not in (None, row.attempt):
            return False
        self.others.fetch(backend, row.id, row.attempt, now, effects)
        return True

    def lose(self, backend: Any, keep: Mapping[str, int], now: Now, effects: Effects) -> None:
        """Marks the tasks that a backend held as lost, except `keep`."""
        if self.others is not None:
            self.others.restate(backend.identity, keep)
        if not backend.alive:
            self.reclaim.gone(backend, now, effects)
        for task in [task for task in backend.tasks.values() if keep.get(task.id) != task.attempt]:
            self.release(task)
            self.lost(task, now, effects)

    def unsent(self, backend: Any, leases: Mapping[str, int], now: Now, effects: Effects) -> None:
        """Requeues tasks whose messages were never sent."""
        for id_, attempt in leases.items():
            task = backend.tasks.get(id_)
            if task is not None and task.attempt == attempt:
                self._take_back(task, now, effects)

    def unreceived(self, backend: Backend, holds: Mapping[str, int], now: Now, effects: Effects) -> None:
        """Requeues the tasks that a JSON-RPC node does not have: the answer that handed them out was lost.

        A hand-out whose answer is not sent yet is not judged."""
        for task in list(backend.tasks.values()):
            sent = task.answered == task.attempt or task.restored
            if sent and not task.native and holds.get(task.id) != task.attempt:
                self._take_back(task, now, effects)

    def _take_back(self, task: QueuedTask, now: Now, effects: Effects) -> None:
        """Requeues a task that its node did not receive, or had and does not have any more."""
        self.release(task)
        if task.start_reported:
            self.lost(task, now, effects)
            return
        if not task.native:
            task.starts -= 1  # a hand-out by JSON-RPC counts as a start
        self._queue.attempt_over(task, "lost", None, b"", counted=False, now=now, effects=effects)

    def lost(self, task: QueuedTask, now: Now, effects: Effects) -> None:
        """Handles a lost attempt. The caller has released the lease."""
        counted = task.status == RUNNING or not task.native
        self._queue.attempt_over(task, "lost", None, b"", counted=counted, now=now, effects=effects)

    def resume(self, task: QueuedTask, backend: Any, now: Now, effects: Effects) -> None:
        """Resumes a lease from before this broker's start or from another broker."""
        self._bind(task, backend, now, effects)
        task.restored = True
        if task.status == RUNNING or not task.native:
            self._time(task, now)
        self.on_resumed(task, now, effects)

    @property
    def is_closed(self) -> bool:
        """True while nothing is handed out: the broker drains, or its disk is full."""
        return self._state.draining or self._state.full

    # Dispatch.

    def settle(self, now: Now, effects: Effects) -> None:
        """Hands out tasks at the end of a turn and sends the messages."""
        queue = self._queue
        while queue.dirty or self._idle_backends:
            # Backends with room come first: queued requests take precedence over tasks.
            backends, self._idle_backends = self._idle_backends, {}
            for backend, method_queue in backends.items():
                self._feed(backend, method_queue, now, effects)
            methods, queue.dirty = queue.dirty, {}
            for method in queue.method_queues.in_order(methods) if len(methods) > 1 else methods:
                self._dispatch(method, now, effects)
        if self._out:
            self._push(effects)
        # A cancelled task is returned if it has not begun, and stopped if it has.
        self.reclaim.settle(effects)
        if self._cancels:
            cancels, self._cancels = self._cancels, {}
            for peer, entries in cancels.items():
                effects.promise(peer, ("TASKSCANCEL", {}, b"[%b]" % b",".join(entries)))

    def _dispatch(self, method: str, now: Now, effects: Effects) -> None:
        """Gives tasks of a method to free slots, then to the backend that has prefetch room."""
        method_queues = self._queue.method_queues
        method_queue = method_queues.find(method)
        if method_queue is None or self.is_closed:
            return
        while method_queues.head(method_queue) is not None:
            backend = self._slots.take_pushing(method)
            if backend is None:
                break
            backend.slotted += 1
            self._hand(method_queues.take(method_queue, 1, effects), method_queue, backend, now, effects)
        backend = method_queue.hungry
        if backend is not None:
            room = self._pacing.room(backend) if method in backend.services else 0
            if room > 0:
                self._hand(method_queues.take(method_queue, room, effects), method_queue, backend, now, effects)
            else:
                method_queue.hungry = None

    def _assign_free_slots(self, backend: Any) -> None:
        """Assigns free slots to the tasks that the backend already holds."""
        while backend.slotted < len(backend.tasks) and self._slots.take_from(backend):
            backend.slotted += 1

    def _feed(self, backend: Any, method_queue: MethodQueue | None, now: Now, effects: Effects) -> None:
        """Gives one backend as many tasks as it has room for: its free slots, plus prefetch if it is fast.

        `method_queue`: the queue of the task that it completed last. If that queue is empty, its next task goes to this
        backend."""
        slots, method_queues = self._slots, self._queue.method_queues
        self._assign_free_slots(backend)
        self._adapter.serve(backend, now, effects)
        if self.is_closed or not backend.alive:
            return
        while (found := method_queues.best(backend.services)) is not None:
            method_queue = found
            if slots.take_from(backend):
                backend.slotted += 1
                self._hand(method_queues.take(method_queue, 1, effects), method_queue, backend, now, effects)
                continue
            room = self._pacing.room(backend)
            if room <= 0:
                return
            others = slots.backends_of(method_queue.method)
            if others > 1:
                # No more than a fair share: other backends will ask soon.
                room = min(room, method_queues.visible(method_queue) // (2 * others) + 1)
            self._hand(method_queues.take(method_queue, room, effects), method_queue, backend, now, effects)
            if others > 1:
                return
        room = self._pacing.room(backend)
        if method_queue is not None and room > 0:
            method_queue.hungry = backend
        if room > 0 or backend.busy < backend.slots:
            method_queues.window.need_tasks(backend.services, effects)

    def _hand(
        self, tasks: list[QueuedTask], method_queue: MethodQueue, backend: Any, now: Now, effects: Effects
    ) -> None:
        """Pushes tasks of one method queue."""
        node, mono, wall = backend.identity, now.mono, now.wall
        held, writes, touch = backend.tasks, effects.writes, self._queue.backlog.touch
        if not held:
            backend.paced = mono
        for task in tasks:
            task.attempt += 1
            task.status = ASSIGNED
            task.node = node
            task.native, task.restored = True, False
            task.backend = backend
            task.handed = mono
            waited = wall - task.runnable_us / MICRO
            task.waited = waited if waited > 0.0 else 0.0
            held[task.id] = task
            if task.start_reported or task.started_us:
                task.start_reported, task.started_us, task.started = False, 0, 0.0
            if not task.fresh:
                task.shelved = False
                writes.append(task.lease_write())
                touch(task.seq)
        method_queue.leased += len(tasks)
        self.leased += len(tasks)
        self._out.setdefault(backend, []).extend(tasks)
        if backend.slotted < len(held):
            self._pacing.watch(backend, now)
        else:
            for task in tasks:
                self._time(task, now)

    def pull(self, task: QueuedTask, backend: Backend, now: Now, effects: Effects) -> None:
        """Hands a task out by JSON-RPC, which counts as its start. The caller has removed the task from its queue."""
        task.attempt += 1
        task.starts += 1
        task.status = ASSIGNED
        task.node = backend.identity
        task.started_us = of_seconds(now.wall)
        task.native, task.start_reported, task.shelved = False, False, False
        task.waited = max(0.0, now.wall - task.runnable_us / MICRO)
        self._queue.backlog.tasks[task.id] = task
        self._bind(task, backend, now, effects)
        self._queue.changed(task, effects)
        task.started = now.mono
        self._time(task, now)

    def _bind(self, task: QueuedTask, backend: Any, now: Now, effects: Effects) -> None:
        if not backend.tasks:
            backend.paced = now.mono
        backend.tasks[task.id] = task
        task.backend = backend
        task.handed = now.mono
        task.started = 0.0
        self._queue.method_queues.need(task.method, now, effects).leased += 1
        self.leased += 1

    def release(self, task: QueuedTask) -> None:
        """Ends the lease; its slot is free for the next task that the backend holds, or for queued work."""
        backend = task.backend
        if backend is None:
            return
        del backend.tasks[task.id]
        task.backend = None
        self.leased -= 1
        if backend.slotted > len(backend.tasks):
            backend.slotted -= 1
            self._slots.give_back(backend)
        method_queue = self._queue.method_queues.find(task.method)
        if backend.pushes:
            self._idle_backends[backend] = method_queue
        if task.bucket:
            self._queue.timers.remove(task)
        self._unsaved.pop(task, None)
        if method_queue is not None and method_queue.leased > 0:
            method_queue.leased -= 1
            if self._queue.is_limited(task.method):
                self._queue.dirty[task.method] = None

    def _push(self, effects: Effects) -> None:
        out, self._out = self._out, {}
        for backend, tasks in out.items():
            still = [task for task in tasks if task.backend is backend]
            for body in bodies_of(still, self._queue.method_queues.quoted, self._owner):
                effects.promise(backend.peer, ("TASKS", {}, body))

    def begun(self, task: QueuedTask, info: bytes, now: Now, effects: Effects) -> None:
        if info:
            task.info = info
        if not task.start_reported:
            task.start_reported = True
            task.status = RUNNING
            if task.native:
                task.starts += 1
                task.started_us = of_seconds(now.wall)
                task.started = now.mono
                self._time(task, now)
        if not self._unsaved:
            self._state.timers.add((self._save, None), now.mono + SAVE_SECONDS)
        self._unsaved[task] = None

    def save(self, task: QueuedTask, effects: Effects) -> None:
        """Stores a task's running state before a client learns of it."""
        if task in self._unsaved:
            del self._unsaved[task]
            self._queue.changed(task, effects)

    def _save(self, _: None, now: Now, effects: Effects) -> None:
        late: dict[QueuedTask, None] = {}
        for task in self._unsaved:
            if now.mono - task.started < SAVE_SECONDS / 2:
                late[task] = None
            else:
                self._queue.changed(task, effects)
        self._unsaved = late
        if late:
            self._state.timers.add((self._save, None), now.mono + SAVE_SECONDS)

    def end(self, task: QueuedTask, report: NodeReport, now: Now, effects: Effects) -> None:
        """Ends an attempt as its node reports."""
        if report.status == FINISHED:
            self.finish(task, report.body, now, effects)
        else:
            self.fail(task, report.code, report.body, report.retry, now, effects, report.after)

    def finish(self, task: QueuedTask, result: bytes, now: Now, effects: Effects) -> None:
        self._count_start(task)
        self.release(task)
        self._queue.end(task, FINISHED, result, None, now, effects)

    def fail(
        self, task: QueuedTask, code: int, error: bytes, retry: bool, now: Now, effects: Effects, after: float = 0.0
    ) -> None:
        self._count_start(task)
        self.release(task)
        if retry:
            self._queue.attempt_over(task, "failed", code, error, counted=True, now=now, effects=effects, after=after)
        else:
            self._queue.fail(task, code, error, now, effects)

    def _count_start(self, task: QueuedTask) -> None:
        """Counts the start of an attempt whose start was not reported."""
        if task.native and not task.start_reported:
            task.starts += 1

    def cancel(self, task: QueuedTask, now: Now) -> None:
        """Ends the lease of a task that is cancelled; `reclaim.when_confirmed` tells when it cannot begin any more."""
        backend = task.backend
        if backend is not None:
            if task.native:
                self.refuse(backend, task.id, task.attempt)
                if backend.returns and not task.start_reported:
                    self.reclaim.cancelled(task, backend, now)
            self.release(task)
        else:
            self.lease_recovery.cancel(task)

    def refuse(self, backend: Any, id_: str, attempt: int) -> None:
        """Tells a backend that the result of this attempt will not be used."""
        self.on_refused(id_, attempt)
        if backend.pushes:
            self._cancels.setdefault(backend.peer, []).append(b"[%b,%d]" % (quoted(id_), attempt))

    def _time(self, task: QueuedTask, now: Now) -> None:
        if task.bucket:
            self._queue.timers.remove(task)
        task.timed = task.attempt
        task.deadline = now.mono + task.kept.timeout
        self._queue.timers.add(task, now.mono)

    def _time_slotted(self, backend: Any, now: Now) -> None:
        """Starts the timeout of tasks that occupy a slot, whether or not their start was reported."""
        for task in itertools.islice(backend.tasks.values(), backend.slotted):
            if task.timed != task.attempt:
                self._time(task, now)

    def tick(self, now: Now, effects: Effects) -> None:
        """Ends attempts that exceeded their timeout."""
        for task in self._queue.timers.expire(now.mono):
            task.bucket = 0
            if task.ended or task.backend is None or task.timed != task.attempt:
                continue
            if now.mono < task.deadline:
                self._queue.timers.keep(task, task.deadline)
                continue
            backend = task.backend
            if task.native:
                self.refuse(backend, task.id, task.attempt)
            self._count_start(task)
            self.release(task)
            self._queue.attempt_over(task, "timeout", None, b"", counted=True, now=now, effects=effects)
            self.reclaim.ask(backend, now, effects)

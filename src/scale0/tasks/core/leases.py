"""Leases: which node runs which attempt of which task, from the hand-out to its end. Invariants: a lease is (task,
attempt, node), with CURVE also the key of the node, and a task has at most one; a lease is stored before its holder
receives the task; a backend never holds more than slots + prefetch tasks, and in slots never more of a service than
that service has; a slot taken for a task is freed exactly once; a lease that the store does not confirm within
UNSTORED_SECONDS occupies no slot until it does. `lease_recovery` handles leases from before this broker's start."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from scale0.broker.core.scheduler import Backend, Offering, Scheduler
from scale0.broker.core.state import BrokerState
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.storage.task_rows import ASSIGNED, FINISHED, KEPT_PARAMS_BYTES, RUNNING, OpenTask
from scale0.tasks.core.adaptive_prefetch import AdaptivePrefetch
from scale0.tasks.core.broker_adapter import BrokerAdapter
from scale0.tasks.core.lease_recovery import LeaseRecovery
from scale0.tasks.core.lost_leases import LostLeases
from scale0.tasks.core.method_queues import MethodQueue
from scale0.tasks.core.node_reports import NodeReport
from scale0.tasks.core.queue import TaskQueue
from scale0.tasks.core.reclaim import Reclaim
from scale0.tasks.core.task import MICRO, QueuedTask, belongs_to, of_seconds
from scale0.tasks.core.task_messages import bodies_of
from scale0.tasks.jsonrpc.messages import quoted

if TYPE_CHECKING:
    from scale0.tasks.core.shared_store import SharedStore

SAVE_SECONDS: Final = 1.0
"""Delay before the store records that a task runs, unless the task has ended by then."""
UNSTORED_SECONDS: Final = 1.0
"""How long a lease that is not stored yet may occupy a slot: while the store is away, requests need it."""
MAX_NODE_LEASES: Final = 10_000
"""A node that has so many tasks gets no more by pulling: each needs some 1,000 bytes of memory, and is queued again
when the node is lost."""
MAX_KEY_LEASES: Final = 100_000
"""Tasks that all nodes of a key may have by pulling."""


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
        self._idle_backends: dict[Any, dict[str | None, None]] = {}
        """Backends that may have room, and for which services; None: for any."""
        self.losses = LostLeases(state, queue)
        self.reclaim = Reclaim(state, self, queue)
        self.lease_recovery = LeaseRecovery(state, self, queue)
        self._pacing = AdaptivePrefetch(state, slots, self.reclaim.ask, self._time_slotted)
        self.measured = self._pacing.measured
        self._unsaved: dict[QueuedTask, None] = {}
        """Running tasks whose state is not stored yet."""
        self.leased = 0
        self._pulled: Counter[str] = Counter()
        """By key: leases that its nodes pulled or resumed."""
        self._unstored: deque[tuple[float, list[QueuedTask]]] = deque()
        """Hand-outs whose commit has not returned, each with its time: their tasks have not left."""
        self._stored_count = 0
        """How many hand-outs are stored. They are stored in order: those with a higher number are in `_unstored`."""
        self.withheld: Counter[Offering] = Counter()
        """By service of a backend: its tasks that occupy no slot, because the store does not confirm their leases."""

    # Events from backends.

    def feed(self, backend: Any, service: str | None = None) -> None:
        """Marks a backend that may have room, for this service or for any: it gets work at the end of this turn."""
        if backend.pushes:
            self._idle_backends.setdefault(backend, {})[service] = None

    def offer(self, backend: Any, now: Now, effects: Effects) -> None:
        for method in sorted(backend.services):
            self._queue.method_queues.need(method, now, effects)
        if not backend.services and backend.tasks:
            # It drains: other backends run what it has not started.
            self.reclaim.ask(backend, tuple(backend.offerings), now, effects)
        self.feed(backend)

    def claim(self, backend: Any, holds: Mapping[str, int] | None, now: Now, effects: Effects) -> None:
        """Handles a backend's report of the tasks that it holds (None: it cannot report them) after a reconnect."""
        if self.others is not None:
            self.others.claim(backend, holds, now, effects)
            return
        self.lease_recovery.claim(backend, holds, now, effects)
        # These tasks occupy slots from now on: no other work may take the slots before the turn ends.
        self._assign_free_slots(backend, backend.offerings.values())
        if holds and backend.pushes:
            for id_, attempt in holds.items():
                held = backend.tasks.get(id_)
                if held is None or held.attempt != attempt:
                    self.refuse(backend, id_, attempt)
        self.feed(backend)

    def fetch(self, row: Any, backend: Any, attempt: int | None, now: Now, effects: Effects) -> bool:
        """Starts to take over a lease of this node from the shared store; False if the node does not hold it."""
        if self.others is None or not isinstance(row, OpenTask) or row.status not in (ASSIGNED, RUNNING):
            return False
        if not is_lease_of(row, backend) or attempt not in (None, row.attempt):
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
        self.losses.add(task, "lost", False, now, effects)

    def lost(self, task: QueuedTask, now: Now, effects: Effects) -> None:
        """Handles a lost attempt. The caller has released the lease."""
        counted = task.status == RUNNING or not task.native
        self.losses.add(task, "lost", counted, now, effects)

    def resume(self, task: QueuedTask, backend: Any, now: Now, effects: Effects) -> None:
        """Resumes a lease from before this broker's start or from another broker."""
        self._bind(task, backend, now, effects)
        task.restored = True
        task.drop_params()
        if task.status == RUNNING or not task.native:
            self._time(task, now)
        self.on_resumed(task, now, effects)

    @property
    def is_closed(self) -> bool:
        """True while nothing is handed out: the broker drains, its disk is full, or the store does not answer."""
        return self._state.draining or self._state.full or bool(self.withheld)

    # Dispatch.

    def settle(self, now: Now, effects: Effects) -> None:
        """Hands out tasks at the end of a turn and sends the messages."""
        queue = self._queue
        while queue.dirty or self._idle_backends:
            # Backends with room come first: queued requests take precedence over tasks.
            backends, self._idle_backends = self._idle_backends, {}
            for backend, marked in backends.items():
                self._feed(backend, marked, now, effects)
            methods, queue.dirty = queue.dirty, {}
            for method in queue.method_queues.in_order(methods) if len(methods) > 1 else methods:
                self._dispatch(method, now, effects)
        if self._out:
            self._push(now, effects)
        # A cancelled task is returned if it has not begun, and stopped if it has.
        self.reclaim.settle(effects)
        self.losses.settle()
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
            self._hand_to_slot(method_queue, backend.offerings[method], now, effects)
        backend = method_queue.hungry
        if backend is not None:
            able = method in backend.services and method not in backend.untaken
            room = self._pacing.room(backend.offerings[method]) if able else 0
            if room > 0:
                taken = method_queues.take(method_queue, room, effects)
                self._hand(taken, method_queue, backend.offerings[method], now, effects)
            else:
                method_queue.hungry = None

    def _assign_free_slots(self, backend: Any, offerings: Iterable[Offering]) -> None:
        """Assigns free slots to the tasks that the backend already holds."""
        if backend.slotted == len(backend.tasks):
            return
        for offering in offerings:
            while self._is_unslotted(offering) and self._slots.take_for_held(offering):
                offering.slotted += 1
                backend.slotted += 1
        received = len(backend.tasks)
        if self.withheld:
            received -= sum(self.withheld.get(offering, 0) for offering in backend.offerings.values())
        if received - backend.busy <= backend.prefetch:
            return
        # More than slots and prefetch, because slots were reduced: these tasks use the slots of any service.
        for offering in backend.offerings.values():
            while (
                self._is_unslotted(offering)
                and received - backend.busy > backend.prefetch
                and self._slots.take_beyond(offering)
            ):
                offering.slotted += 1
                backend.slotted += 1

    def _is_unslotted(self, offering: Offering) -> bool:
        """True if the backend has received tasks of this service that occupy no slot."""
        return offering.slotted < offering.held - self.withheld.get(offering, 0)

    def _feed(self, backend: Any, marked: Mapping[str | None, None], now: Now, effects: Effects) -> None:
        """Gives one backend as many tasks as it has room for: the free slots of the marked services, plus prefetch if
        they are fast. If no more tasks of a service wait, its next one goes to this backend."""
        offerings: Mapping[str, Offering] = backend.offerings
        if None not in marked and not backend.is_shared:
            offerings = {name: offerings[name] for name in marked if name is not None and name in offerings}
        self._assign_free_slots(backend, offerings.values())
        self._adapter.serve(backend, offerings, now, effects)
        if self.is_closed or not backend.alive:
            return
        if backend.untaken:
            offerings = {name: one for name, one in offerings.items() if name not in backend.untaken}
        method_queues = self._queue.method_queues
        fed = {name: None for name in marked if name is not None}
        heads = method_queues.heads(offerings)
        while heads:
            method = heads[0][2]
            fed[method] = None
            if self._feed_one(method_queues.need(method, now, effects), offerings[method], now, effects):
                method_queues.renew_first(heads)
            else:
                heapq.heappop(heads)
        for method in fed:
            method_queue, offering = method_queues.find(method), offerings.get(method)
            if method_queue is None or offering is None or self._pacing.room(offering) <= 0:
                continue
            if method_queues.head(method_queue) is None:
                method_queue.hungry = backend
        if self.others is not None:
            able = {name: None for name, one in offerings.items() if one.has_room or self._pacing.room(one) > 0}
            method_queues.window.need_tasks(able, effects)

    def _feed_one(self, method_queue: MethodQueue, offering: Offering, now: Now, effects: Effects) -> bool:
        """Hands out the next task of this method to a slot, or the next ones as prefetch; False if there is no room for
        more."""
        slots, method_queues = self._slots, self._queue.method_queues
        if slots.take_from(offering.backend, offering.name):
            self._hand_to_slot(method_queue, offering, now, effects)
            return True
        room = self._pacing.room(offering)
        if room <= 0:
            return False
        others = slots.backends_of(offering.name)
        if others > 1:
            # No more than a fair share: other backends will ask soon.
            room = min(room, method_queues.visible(method_queue) // (2 * others) + 1)
        self._hand(method_queues.take(method_queue, room, effects), method_queue, offering, now, effects)
        return others <= 1

    def _hand_to_slot(self, method_queue: MethodQueue, offering: Offering, now: Now, effects: Effects) -> None:
        """Pushes the next task of a queue; the caller has taken the slot."""
        offering.slotted += 1
        offering.backend.slotted += 1
        self._hand(self._queue.method_queues.take(method_queue, 1, effects), method_queue, offering, now, effects)

    def _hand(
        self, tasks: list[QueuedTask], method_queue: MethodQueue, offering: Offering, now: Now, effects: Effects
    ) -> None:
        """Pushes tasks of one method queue."""
        backend = offering.backend
        node, mono, now_us = backend.identity, now.mono, self._queue.schedule.now_us(now)
        hand_out = self._stored_count + len(self._unstored) + 1
        public_key = backend.peer.public_key
        queue = self._queue
        held, writes, touch = backend.tasks, effects.writes, queue.backlog.touch
        if not offering.held:
            offering.paced = mono
        for task in tasks:
            task.attempt += 1
            task.status = ASSIGNED
            task.node, task.node_owner = node, public_key
            task.native, task.restored = True, False
            task.backend = backend
            task.handed = mono
            task.hand_out = hand_out
            waited = (now_us - task.runnable_us) / MICRO
            task.waited = waited if waited > 0.0 else 0.0
            held[task.id] = task
            if task.start_reported or task.started_us:
                task.start_reported, task.started_us, task.started = False, 0, 0.0
            if not task.fresh:
                task.shelved = False
                writes.append(task.lease_write())
                touch(task.seq)
        method_queue.leased += len(tasks)
        offering.held += len(tasks)
        self.leased += len(tasks)
        self._out.setdefault(backend, []).extend(tasks)
        if offering.slotted < offering.held:
            self._pacing.watch(offering, now)
        else:
            for task in tasks:
                self._time(task, now)
        for task in [task for task in tasks if task.is_damaged()]:
            self.release(task)
            queue.fail_damaged(task, now, effects)

    def pull_room(self, backend: Backend) -> int:
        """Returns how many more tasks a node may pull; 0 or less: none."""
        room, key = MAX_NODE_LEASES - len(backend.tasks), backend.peer.public_key
        return min(room, MAX_KEY_LEASES - self._pulled[key]) if key else room

    def pull(self, task: QueuedTask, backend: Backend, now: Now, effects: Effects) -> bool:
        """Hands a task out by JSON-RPC, which counts as its start; False if it is damaged, which ends it. The caller
        has removed the task from its queue."""
        if task.is_damaged():
            self._queue.fail_damaged(task, now, effects)
            return False
        task.attempt += 1
        task.starts += 1
        task.status = ASSIGNED
        task.node, task.node_owner = backend.identity, backend.peer.public_key
        task.started_us = of_seconds(now.wall)
        task.native, task.start_reported, task.shelved = False, False, False
        task.waited = max(0.0, (self._queue.schedule.now_us(now) - task.runnable_us) / MICRO)
        self._queue.backlog.tasks[task.id] = task
        self._bind(task, backend, now, effects)
        self._queue.changed(task, effects)
        task.started = now.mono
        self._time(task, now)
        return True

    def _bind(self, task: QueuedTask, backend: Any, now: Now, effects: Effects) -> None:
        offering = backend.offering(task.method)
        if not offering.held:
            offering.paced = now.mono
        offering.held += 1
        backend.tasks[task.id] = task
        task.backend = backend
        task.handed = now.mono
        task.hand_out = 0
        if task.node_owner:
            self._pulled[task.node_owner] += 1
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
        if not task.hand_out and task.node_owner:
            self._reduce_pulled(task.node_owner)
        offering = backend.offerings[task.method]
        offering.held -= 1
        if offering in self.withheld and task.hand_out > self._stored_count:
            self._reduce_withheld(offering)
        if offering.slotted > offering.held:
            offering.slotted -= 1
            backend.slotted -= 1
            self._slots.give_back(backend, task.method)
        elif not offering.slots:
            backend.forget_unused(offering)
        method_queue = self._queue.method_queues.find(task.method)
        self.feed(backend, task.method)
        if task.bucket:
            self._queue.timers.remove(task)
        self._unsaved.pop(task, None)
        if method_queue is not None and method_queue.leased > 0:
            method_queue.leased -= 1
            if self._queue.is_limited(task.method):
                self._queue.dirty[task.method] = None

    def _push(self, now: Now, effects: Effects) -> None:
        out, self._out = self._out, {}
        self._unstored.append((now.mono, [task for tasks in out.values() for task in tasks]))
        effects.after_commit(self._stored)
        for backend, tasks in out.items():
            still = [task for task in tasks if task.backend is backend]
            for body in bodies_of(still, self._queue.method_queues.quoted, self._owner):
                effects.promise(backend.peer, ("TASKS", {}, body))
            for task in still:
                if task.size > KEPT_PARAMS_BYTES:
                    task.drop_params()

    def _stored(self, now: Now, effects: Effects) -> None:
        """Handles the commit of the oldest hand-out: its tasks leave, and need slots if theirs were given back."""
        _, tasks = self._unstored.popleft()
        self._stored_count += 1
        if not self.withheld:
            return
        for task in tasks:
            if task.backend is not None and task.hand_out == self._stored_count:
                offering = task.backend.offerings[task.method]
                self._reduce_withheld(offering)
                self.feed(offering.backend, offering.name)

    def _reduce_withheld(self, offering: Offering) -> None:
        """One task fewer is withheld; the last one ends the stall."""
        self.withheld[offering] -= 1
        if not self.withheld[offering]:
            del self.withheld[offering]

    def _reduce_pulled(self, key: str) -> None:
        self._pulled[key] -= 1
        if not self._pulled[key]:
            del self._pulled[key]

    def withhold(self, now: Now, effects: Effects) -> None:
        """Gives slots back whose leases the store does not confirm in time; nothing is handed out meanwhile."""
        if not self._unstored or now.mono - self._unstored[0][0] < UNSTORED_SECONDS:
            return
        self.withheld = Counter(
            task.backend.offerings[task.method]
            for hand_out, (_, tasks) in enumerate(self._unstored, self._stored_count + 1)
            for task in tasks
            if task.backend is not None and task.hand_out == hand_out
        )
        for offering, count in self.withheld.items():
            backend = offering.backend
            while offering.slotted > offering.held - count:
                offering.slotted -= 1
                backend.slotted -= 1
                self._slots.give_back(backend, offering.name)
            self._adapter.serve(backend, (offering.name,), now, effects)

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

    def _time_slotted(self, offering: Offering, now: Now) -> None:
        """Starts the timeout of tasks that occupy a slot, whether or not their start was reported."""
        own = (task for task in offering.backend.tasks.values() if task.method == offering.name)
        for task in itertools.islice(own, offering.slotted):
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
            self.losses.add(task, "timeout", True, now, effects)
            self.reclaim.ask(backend, (task.method,), now, effects)


def is_lease_of(row: QueuedTask | OpenTask, backend: Backend) -> bool:
    """True if the lease is of this node and of its key."""
    return row.node == backend.identity and belongs_to(row.node_owner, backend.peer.public_key)

"""Leases: who has which attempt of which task, from the hand-out to its end.

Lives here: handing out (pushed or pulled), how much a backend gets at once, what it says of its work, and what becomes
of work whose holder is lost. Never here: the order of the queue (`lanes`), leases from before this broker's start
(`returning`), or JSON-RPC. Invariants: a lease is (task,
attempt, node) and there is at most one per task; it is stored before its holder hears of it; a backend never has more
than slots + prefetch in hand; a slot taken for a task is given back exactly once.
"""

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
from scale0.tasks.core.hand_out import bodies_of
from scale0.tasks.core.lease_recovery import LeaseRecovery
from scale0.tasks.core.method_queues import MethodQueue
from scale0.tasks.core.queue import TaskQueue
from scale0.tasks.core.reclaim import Reclaim
from scale0.tasks.core.task import MICRO, QueuedTask, of_seconds
from scale0.tasks.jsonrpc.messages import quoted

if TYPE_CHECKING:
    from scale0.tasks.core.shared_store import SharedStore

SAVE_SECONDS: Final = 1.0
"""When it is stored that a task runs, unless it has ended by then."""


class Leases:
    """All leases of one broker."""

    __slots__ = (
        *("_cancels", "_desk", "_house", "_hungry", "_out", "_owner", "_pacing", "_queue", "_slots"),
        *("_unsaved", "leased", "measured", "on_refused", "on_taken_up", "others", "recalls", "returning"),
    )

    def __init__(self, house: BrokerState, desk: BrokerAdapter, slots: Scheduler, queue: TaskQueue) -> None:
        self._house = house
        self._desk = desk
        self._slots = slots
        self._queue = queue
        self._owner = quoted(house.owner)
        self.others: SharedStore | None = None
        """The other brokers of a shared store."""
        self.on_taken_up: Callable[[QueuedTask, Now, Effects], None] = lambda *_: None
        self.on_refused: Callable[[str, int], None] = lambda *_: None
        self._out: dict[Any, list[QueuedTask]] = {}
        self._cancels: dict[Any, list[bytes]] = {}
        self._hungry: dict[Any, MethodQueue | None] = {}
        self.recalls = Reclaim(self, queue)
        self.returning = LeaseRecovery(house, self, queue)
        self._pacing = AdaptivePrefetch(house, slots, self.recalls.ask, self._time_slotted)
        self.measured = self._pacing.measured
        self._unsaved: dict[QueuedTask, None] = {}
        """Tasks that run, which the store does not know yet."""
        self.leased = 0

    # What backends do.

    def feed(self, holder: Any, now: Now, step: Effects) -> None:
        """It has room, perhaps: it is given work at the end of this turn."""
        if holder.pushes:
            self._hungry.setdefault(holder, None)

    def offer(self, holder: Any, now: Now, step: Effects) -> None:
        """It offers these services from now on."""
        for method in sorted(holder.services):
            self._queue.lanes.need(method, now, step)
        if not holder.services and holder.tasks:
            # It drains: what it has not begun is done elsewhere.
            self.recalls.ask(holder, now, step)
        self.feed(holder, now, step)

    def claim(self, holder: Any, holds: Mapping[str, int] | None, now: Now, step: Effects) -> None:
        """It says what it has in hand (None: it cannot say), on a new connection or to a new broker."""
        if self.others is not None:
            self.others.claim(holder, holds, now, step)
            return
        self.returning.claim(holder, holds, now, step)
        # They hold slots from now on: nobody may be given these before the turn ends.
        self._absorb(holder)
        if holds and holder.pushes:
            for id_, attempt in holds.items():
                held = holder.tasks.get(id_)
                if held is None or held.attempt != attempt:
                    self.refuse(holder, id_, attempt)
        self.feed(holder, now, step)

    def fetch(self, row: Any, holder: Any, attempt: int | None, now: Now, step: Effects) -> bool:
        """True if a node's lease is nobody's, or another broker's of a shared store: then it is on its way to us."""
        if self.others is None or not isinstance(row, OpenTask) or row.status not in (ASSIGNED, RUNNING):
            return False
        if row.node != holder.identity or attempt not in (None, row.attempt):
            return False
        self.others.fetch(holder, row.id, row.attempt, now, step)
        return True

    def lose(self, holder: Any, keep: Mapping[str, int], now: Now, step: Effects) -> None:
        """It no longer has what it held, except `keep`."""
        if self.others is not None:
            self.others.restate(holder.identity, keep)
        for task in [task for task in holder.tasks.values() if keep.get(task.id) != task.attempt]:
            self.release(task)
            self.lost(task, now, step)

    def unsent(self, holder: Any, leases: Mapping[str, int], now: Now, step: Effects) -> None:
        """These never left for it: they are done elsewhere."""
        for id_, attempt in leases.items():
            task = holder.tasks.get(id_)
            if task is not None and task.attempt == attempt:
                self.release(task)
                self._queue.attempt_over(task, "lost", None, b"", counted=False, now=now, step=step)

    def lost(self, task: QueuedTask, now: Now, step: Effects) -> None:
        """Whoever had it is lost. The lease is given back already."""
        counted = task.status == RUNNING or not task.native
        self._queue.attempt_over(task, "lost", None, b"", counted=counted, now=now, step=step)

    def take_up(self, task: QueuedTask, holder: Any, now: Now, step: Effects) -> None:
        """A lease from before this broker's start, or of another broker, goes on."""
        self._bind(task, holder, now, step)
        task.restored = True
        if task.status == RUNNING or not task.native:
            self._time(task, now)
        self.on_taken_up(task, now, step)

    @property
    def is_closed(self) -> bool:
        """True while nothing is handed out: the broker drains, or could not store it."""
        return self._house.draining or self._house.full

    # Hand-outs.

    def settle(self, now: Now, step: Effects) -> None:
        """The turn ends: hand out what can be, and say it."""
        queue = self._queue
        while queue.dirty or self._hungry:
            # Those who have room first: requests that wait for them come before any task.
            holders, self._hungry = self._hungry, {}
            for holder, lane in holders.items():
                self._feed(holder, lane, now, step)
            methods, queue.dirty = queue.dirty, {}
            for method in queue.lanes.in_order(methods) if len(methods) > 1 else methods:
                self._dispatch(method, now, step)
        if self._out:
            self._push(step)
        if self._cancels:
            cancels, self._cancels = self._cancels, {}
            for peer, entries in cancels.items():
                step.promise(peer, ("TASKSCANCEL", {}, b"[%b]" % b",".join(entries)))
        self.recalls.settle(step)

    def _dispatch(self, method: str, now: Now, step: Effects) -> None:
        """Tasks of a method to whoever has a free slot, then to the one that has room in advance."""
        lanes = self._queue.lanes
        lane = lanes.find(method)
        if lane is None or self.is_closed:
            return
        while lanes.head(lane) is not None:
            holder = self._slots.take_pushing(method)
            if holder is None:
                break
            holder.slotted += 1
            self._hand(lanes.take(lane, 1, step), lane, holder, now, step)
        holder = lane.hungry
        if holder is not None:
            room = self._pacing.room(holder) if method in holder.services else 0
            if room > 0:
                self._hand(lanes.take(lane, room, step), lane, holder, now, step)
            else:
                lane.hungry = None

    def _absorb(self, holder: Any) -> None:
        """What it has in hand takes the slots that are free."""
        while holder.slotted < len(holder.tasks) and self._slots.take_from(holder):
            holder.slotted += 1

    def _feed(self, holder: Any, lane: MethodQueue | None, now: Now, step: Effects) -> None:
        """One backend gets what it has room for: its free slots, and some more if it is quick.

        `lane`: of the task that it ended last; when nothing waits, the next one there comes to it at once.
        """
        slots, lanes = self._slots, self._queue.lanes
        self._absorb(holder)
        self._desk.serve(holder, now, step)
        if self.is_closed or not holder.alive:
            return
        while (found := lanes.best(holder.services)) is not None:
            lane = found
            if slots.take_from(holder):
                holder.slotted += 1
                self._hand(lanes.take(lane, 1, step), lane, holder, now, step)
                continue
            room = self._pacing.room(holder)
            if room <= 0:
                return
            others = slots.backends_of(lane.method)
            if others > 1:
                # Not more than a share: the others are about to ask, too.
                room = min(room, lanes.visible(lane) // (2 * others) + 1)
            self._hand(lanes.take(lane, room, step), lane, holder, now, step)
            if others > 1:
                return
        room = self._pacing.room(holder)
        if lane is not None and room > 0:
            lane.hungry = holder
        if room > 0 or holder.busy < holder.slots:
            lanes.supply.hunger(holder.services, step)

    def _hand(self, tasks: list[QueuedTask], lane: MethodQueue, holder: Any, now: Now, step: Effects) -> None:
        """Push some tasks of one lane."""
        node, mono, wall = holder.identity, now.mono, now.wall
        held, writes, touch = holder.tasks, step.writes, self._queue.shelf.touch
        if not held:
            holder.paced = mono
        for task in tasks:
            task.attempt += 1
            task.status = ASSIGNED
            task.node = node
            task.native, task.restored = True, False
            task.holder = holder
            task.handed = mono
            waited = wall - task.runnable_us / MICRO
            task.waited = waited if waited > 0.0 else 0.0
            held[task.id] = task
            if task.said or task.started_us:
                task.said, task.started_us, task.started = False, 0, 0.0
            if not task.fresh:
                task.shelved = False
                writes.append(task.lease_write())
                touch(task.seq)
        lane.leased += len(tasks)
        self.leased += len(tasks)
        self._out.setdefault(holder, []).extend(tasks)
        if holder.slotted < len(held):
            self._pacing.watch(holder, now)
        else:
            for task in tasks:
                self._time(task, now)

    def pull(self, task: QueuedTask, holder: Backend, now: Now, step: Effects) -> None:
        """A node asked for a task by JSON-RPC: that counts as its start. The task is out of its lane."""
        task.attempt += 1
        task.starts += 1
        task.status = ASSIGNED
        task.node = holder.identity
        task.started_us = of_seconds(now.wall)
        task.native, task.said, task.shelved = False, False, False
        task.waited = max(0.0, now.wall - task.runnable_us / MICRO)
        self._queue.shelf.tasks[task.id] = task
        self._bind(task, holder, now, step)
        self._queue.changed(task, step)
        task.started = now.mono
        self._time(task, now)

    def _bind(self, task: QueuedTask, holder: Any, now: Now, step: Effects) -> None:
        if not holder.tasks:
            holder.paced = now.mono
        holder.tasks[task.id] = task
        task.holder = holder
        task.handed = now.mono
        task.started = 0.0
        self._queue.lanes.need(task.method, now, step).leased += 1
        self.leased += 1

    def release(self, task: QueuedTask) -> None:
        """The lease ends; its slot is free for the next one in hand, or for whatever waits."""
        holder = task.holder
        if holder is None:
            return
        del holder.tasks[task.id]
        task.holder = None
        self.leased -= 1
        if holder.slotted > len(holder.tasks):
            holder.slotted -= 1
            self._slots.give_back(holder)
        lane = self._queue.lanes.find(task.method)
        if holder.pushes:
            self._hungry[holder] = lane
        if task.bucket:
            self._queue.timers.remove(task)
        self._unsaved.pop(task, None)
        if lane is not None and lane.leased > 0:
            lane.leased -= 1
            if self._queue.is_limited(task.method):
                self._queue.dirty[task.method] = None

    def _push(self, step: Effects) -> None:
        out, self._out = self._out, {}
        for holder, tasks in out.items():
            still = [task for task in tasks if task.holder is holder]
            for body in bodies_of(still, self._queue.lanes.quoted, self._owner):
                step.promise(holder.peer, ("TASKS", {}, body))

    def begun(self, task: QueuedTask, info: bytes, now: Now, step: Effects) -> None:
        """Its holder says that it runs."""
        if info:
            task.info = info
        if not task.said:
            task.said = True
            task.status = RUNNING
            if task.native:
                task.starts += 1
                task.started_us = of_seconds(now.wall)
                task.started = now.mono
                self._time(task, now)
        if not self._unsaved:
            self._house.timers.add((self._save, None), now.mono + SAVE_SECONDS)
        self._unsaved[task] = None

    def save(self, task: QueuedTask, step: Effects) -> None:
        """Somebody is told of its status: it must survive."""
        if task in self._unsaved:
            del self._unsaved[task]
            self._queue.changed(task, step)

    def _save(self, _: None, now: Now, step: Effects) -> None:
        late: dict[QueuedTask, None] = {}
        for task in self._unsaved:
            if now.mono - task.started < SAVE_SECONDS / 2:
                late[task] = None
            else:
                self._queue.changed(task, step)
        self._unsaved = late
        if late:
            self._house.timers.add((self._save, None), now.mono + SAVE_SECONDS)

    def finish(self, task: QueuedTask, result: bytes, now: Now, step: Effects) -> None:
        """Its result came."""
        if not task.said and task.native:
            task.starts += 1
        self.release(task)
        self._queue.end(task, FINISHED, result, None, now, step)

    def fail(
        self, task: QueuedTask, code: int, error: bytes, retry: bool, now: Now, step: Effects, after: float = 0.0
    ) -> None:
        """Its holder says that it failed."""
        self._count_start(task)
        self.release(task)
        if retry:
            self._queue.attempt_over(task, "failed", code, error, counted=True, now=now, step=step, after=after)
        else:
            self._queue.fail(task, code, error, now, step)

    def _count_start(self, task: QueuedTask) -> None:
        """An attempt that ended has started, said or not."""
        if task.native and not task.said:
            task.starts += 1

    def cancel(self, task: QueuedTask) -> None:
        """Whoever has it must stop."""
        holder = task.holder
        if holder is not None:
            if task.native:
                self.refuse(holder, task.id, task.attempt)
            self.release(task)
        else:
            self.returning.cancel(task)

    def refuse(self, holder: Any, id_: str, attempt: int) -> None:
        """Whatever it does of this attempt is done for nothing."""
        self.on_refused(id_, attempt)
        if holder.pushes:
            self._cancels.setdefault(holder.peer, []).append(b"[%b,%d]" % (quoted(id_), attempt))

    def _time(self, task: QueuedTask, now: Now) -> None:
        if task.bucket:
            self._queue.timers.remove(task)
        task.timed = task.attempt
        task.deadline = now.mono + task.kept.timeout
        self._queue.timers.add(task, now.mono)

    def _time_slotted(self, holder: Any, now: Now) -> None:
        """What came to hold a slot has begun, said or not: its time counts."""
        for task in itertools.islice(holder.tasks.values(), holder.slotted):
            if task.timed != task.attempt:
                self._time(task, now)

    def tick(self, now: Now, step: Effects) -> None:
        """Attempts that have lasted too long."""
        for task in self._queue.timers.expire(now.mono):
            task.bucket = 0
            if task.ended or task.holder is None or task.timed != task.attempt:
                continue
            if now.mono < task.deadline:
                self._queue.timers.keep(task, task.deadline)
                continue
            holder = task.holder
            if task.native:
                self.refuse(holder, task.id, task.attempt)
            self._count_start(task)
            self.release(task)
            self._queue.attempt_over(task, "timeout", None, b"", counted=True, now=now, step=step)
            self.recalls.ask(holder, now, step)

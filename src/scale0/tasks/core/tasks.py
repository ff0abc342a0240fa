"""The tasks of one broker: one machine, joined from its parts.

Lives here: who gets whom, and the end of a turn. Never here: any one part's decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from scale0.broker.core.connections import Connection
from scale0.broker.core.scheduler import Backend, Scheduler
from scale0.broker.core.state import BrokerState
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, StoreQuery
from scale0.kernel.names import is_reserved
from scale0.storage.interface import SharedStoreInfo
from scale0.storage.task_queries import ListTasks, PeekQueue, ReadExpiry
from scale0.storage.task_rows import QUEUED, OpenTask, SweepTasks
from scale0.tasks.core.broker_adapter import BrokerAdapter
from scale0.tasks.core.completion_waits import CompletionWaits
from scale0.tasks.core.dependencies import Dependencies
from scale0.tasks.core.leases import Leases
from scale0.tasks.core.native_protocol import NativeProtocol
from scale0.tasks.core.publisher import REPEATED_TASKS, TaskPublisher
from scale0.tasks.core.queue import TaskQueue
from scale0.tasks.core.shared_store import SharedStore
from scale0.tasks.core.stored_backlog import StoredBacklog
from scale0.tasks.core.submissions import Submissions
from scale0.tasks.core.task import MICRO, QueuedTask, of_seconds
from scale0.tasks.core.task_clients import TaskClients
from scale0.tasks.jsonrpc.client_methods import ClientMethods
from scale0.tasks.jsonrpc.endpoint import RpcEndpoint
from scale0.tasks.jsonrpc.node_methods import NodeMethods

FRONTEND: Final = "frontend"
BACKEND: Final = "backend"
NUDGE_SECONDS: Final = 1.0
"""How often whatever waits is tried again, should anything have been missed, or the disk have been full."""
TIDY_SECONDS: Final = 30.0
"""How often lanes that nobody needs are dropped."""
SWEEP_ROWS: Final = 1_000
"""Ended tasks that are forgotten in one commit."""
SWEEP_GRACE_SECONDS: Final = 5.0
"""How long an ended task is kept after its time is over."""
SWEEP_SECONDS: Final = 0.05
"""Between two such commits, while there is more."""
SWEEP_LOOK_SECONDS: Final = 60.0
"""The longest time between two looks for tasks whose time is over."""


class LeaseId(msgspec.Struct):
    """Of a TASKS body, what names a lease."""

    id: str
    attempt: int


class BrokerTasks:
    """The tasks of one broker."""

    __slots__ = (
        *(
            "_desk",
            "_house",
            "_slots",
            "announcer",
            "client_methods",
            "clients",
            "followers",
            "leases",
            "native",
            "queue",
        ),
        *("own_room", "rpc", "sharing", "shelf", "watchers"),
    )

    def __init__(
        self, house: BrokerState, desk: BrokerAdapter, slots: Scheduler, next_seq: int, shared: SharedStoreInfo | None
    ) -> None:
        self._house = house
        self._desk = desk
        self._slots = slots
        self.shelf = StoredBacklog()
        self.own_room: Callable[[str], bool] = lambda _: True
        """Whether the broker itself could begin with a task of a method that is its own: a stored request."""
        self.announcer = TaskPublisher(house)
        self.watchers = CompletionWaits(house, self.announcer)
        self.queue = TaskQueue(house, self.shelf, next_seq, shared, self._has_room)
        self.leases = Leases(house, desk, slots, self.queue)
        self.clients = TaskClients(house, desk)
        self.followers = Dependencies(self.queue)
        self.sharing: SharedStore | None = None
        if shared is not None:
            self.sharing = SharedStore(house, slots, self.queue, self.leases, self.followers, self.watchers)
        self.native = NativeProtocol(house, desk, self.queue, self.leases)
        submissions = Submissions(house, desk, self.queue, self.clients, self.watchers)
        self.client_methods = ClientMethods(
            house, self.queue, self.leases, self.clients, self.watchers, submissions, self.sharing
        )
        nodes = NodeMethods(house, desk, self.queue, self.leases)
        self.rpc = RpcEndpoint(house, desk, {FRONTEND: self.client_methods.table, BACKEND: nodes.table})
        self.queue.on_end = self._ended
        self.announcer.on_method = self._listen
        self.announcer.on_prefix = self._listen_wide
        self.announcer.waiting = self._waiting
        if self.sharing is not None:
            self.announcer.look = self._look_on_the_shelf

    def start(self, leased: tuple[OpenTask, ...], open_tasks: int, now: Now, step: Effects) -> None:
        """The first turn: what a predecessor left is taken up."""
        self.queue.open = open_tasks
        self.leases.returning.start(leased, now, step)
        self.queue.schedule.start(now, step)
        self.followers.start(step)
        if self.sharing is not None:
            self.sharing.start(now, step)
        self.announcer.start(now)
        self._house.timers.add((self._nudge, None), now.mono + NUDGE_SECONDS)
        self._house.timers.add((self._tidy, None), now.mono + TIDY_SECONDS)
        self._house.timers.add((self._look_for_old, None), now.mono + 1.0)

    def tick(self, now: Now, step: Effects) -> None:
        """Attempts that have lasted too long."""
        self.leases.tick(now, step)

    def deadline(self) -> float | None:
        """When `tick` has something to do."""
        return self.queue.timers.deadline()

    def settle(self, now: Now, step: Effects) -> None:
        """The turn ends: hand out, announce, tell, and write what is new as it is now."""
        self.leases.settle(now, step)
        self.followers.settle(step)
        if self.queue.fresh:
            if self.announcer.topics:
                self._announce(now, step)
            self.queue.settle(step)
        if self.sharing is not None:
            self.queue.flush(step)
        self.watchers.settle(step)
        self.native.settle(step)

    # What the broker reports of its backends and connections: see broker.core.workload.Workload.

    def offer(self, backend: Backend, now: Now, step: Effects) -> None:
        self.leases.offer(backend, now, step)

    def feed(self, backend: Backend, now: Now, step: Effects) -> None:
        self.leases.feed(backend, now, step)

    def claim(self, backend: Backend, holds: Mapping[str, int], now: Now, step: Effects) -> None:
        self.leases.claim(backend, holds, now, step)

    def lose(self, backend: Backend, keep: Mapping[str, int], now: Now, step: Effects) -> None:
        self.leases.lose(backend, keep, now, step)

    def unsent(self, backend: Backend, body: bytes, now: Now, step: Effects) -> None:
        leases = {lease.id: lease.attempt for lease in msgspec.json.decode(body, type=list[LeaseId])}
        self.leases.unsent(backend, leases, now, step)

    def forget(self, line: Connection) -> None:
        self.native.forget(line)
        if line.number:
            self.watchers.forget(line)

    def waits(self, method: str) -> bool:
        """True while a task of this method waits for somebody."""
        return bool(self.queue.lanes.waiting(method, 1))

    def counts(self) -> dict[str, int]:
        """For the broker's status."""
        queue = self.queue
        return {
            "open": queue.open,
            "leased": self.leases.leased,
            "in_memory": len(self.shelf.tasks),
            "submitted": queue.total_submitted,
            "finished": queue.total_finished,
            "failed": queue.total_failed,
            "waits": self.watchers.waiting,
        }

    def _has_room(self, method: str) -> bool:
        """True if somebody here could begin with a task of this method now."""
        return self.own_room(method) if is_reserved(method) else self._slots.has_room(method)

    def _ended(self, task: QueuedTask, status: int, body: bytes, now: Now, step: Effects) -> None:
        self.watchers.ended(task, status, body, now, step)
        if task.followed:
            self.followers.ended(task, status)

    def _announce(self, now: Now, step: Effects) -> None:
        unassigned = [task for task in self.queue.fresh if task.status == QUEUED]
        for task in unassigned:
            if self.announcer.is_wanted(b"task." + task.method.encode("utf-8", "surrogatepass")):
                self.queue.lanes.need(task.method, now, step)
        self.announcer.taken(unassigned, step)

    def _listen(self, method: str, now: Now, step: Effects) -> None:
        if self._desk.is_service(method):
            self.queue.lanes.need(method, now, step)

    def _listen_wide(self, prefix: bytes, now: Now, step: Effects) -> None:
        """Somebody listens for several methods: those of the newest queued tasks are repeated."""

        def listed(page: Any, later: Now, out: Effects) -> None:
            for method in dict.fromkeys(row.method for row in page.tasks):
                if (b"task." + method.encode("utf-8", "surrogatepass")).startswith(prefix):
                    self.queue.lanes.need(method, later, out)

        step.ask(StoreQuery(ListTasks(limit=1_000, status=QUEUED), listed, aside=True))

    def _look_on_the_shelf(self, step: Effects) -> None:
        """In a shared store, tasks that nobody takes are nobody's: those that somebody listens for are looked up."""
        for method in self.queue.lanes.methods():
            if self.announcer.is_wanted(b"task." + method.encode("utf-8", "surrogatepass")):
                self._repeat(method, step)

    def _repeat(self, method: str, step: Effects) -> None:
        def found(ids: tuple[str, ...], _mark: int, _now: Now, out: Effects) -> None:
            self.announcer.repeat(method, ids, out)

        self.shelf.ask(PeekQueue(method, REPEATED_TASKS), found, step)

    def _waiting(self, most: int) -> list[QueuedTask]:
        lanes = self.queue.lanes
        return [task for method in lanes.methods() for task in lanes.waiting(method, most)]

    def _nudge(self, _: None, now: Now, step: Effects) -> None:
        self.queue.dirty.update(dict.fromkeys(self.queue.lanes.ready))
        if self.queue.supply is not None:
            for lane in self.queue.lanes.all():
                self.queue.put_away(self.queue.supply.spare(lane), step)
        self.queue.lanes.top_up_all(step)
        if not self._house.full:
            self.native.ask_again(now, step)
        self._house.timers.add((self._nudge, None), now.mono + NUDGE_SECONDS)

    def _tidy(self, _: None, now: Now, step: Effects) -> None:
        wanted = self.announcer
        offered = self._slots.offered
        for task in self.queue.lanes.drop_unneeded(
            lambda method: offered(method) or wanted.is_wanted(b"task." + method.encode("utf-8", "surrogatepass")), now
        ):
            self.queue.put_away((task,), step)
        self._house.timers.add((self._tidy, None), now.mono + TIDY_SECONDS)

    def _look_for_old(self, _: None, now: Now, step: Effects) -> None:
        self.shelf.ask(ReadExpiry(), self._sweep, step)

    def _sweep(self, expires_us: int | None, _mark: int, now: Now, step: Effects) -> None:
        """Forget what nobody may read any more, a little at a time."""
        wall_us = of_seconds(now.wall)
        rest = SWEEP_LOOK_SECONDS
        # A little later than they may be read: what was found just before its time was over must still be there.
        before_us = wall_us - of_seconds(SWEEP_GRACE_SECONDS)
        if expires_us is not None and expires_us <= before_us and not self._house.full:
            step.write(SweepTasks(before_us, SWEEP_ROWS))
            rest = SWEEP_SECONDS
        elif expires_us is not None:
            rest = min(rest, max(SWEEP_SECONDS, (expires_us - before_us) / MICRO))
        self._house.timers.add((self._look_for_old, None), now.mono + rest)

"""The tasks of one broker: constructs the parts, connects them, and ends each turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from scale0.broker.core.connections import Connection
from scale0.broker.core.scheduler import Backend, Scheduler
from scale0.broker.core.state import BrokerState
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.names import is_reserved
from scale0.storage.interface import SharedStoreInfo
from scale0.storage.task_queries import PeekQueues, ReadExpiry, TakeFreed
from scale0.storage.task_rows import QUEUED, OpenTask, SweepTasks, TaskUsage
from scale0.tasks.core.broker_adapter import BrokerAdapter
from scale0.tasks.core.completion_waits import CompletionWaits
from scale0.tasks.core.dependencies import Dependencies
from scale0.tasks.core.fair_reads import FairReads
from scale0.tasks.core.leases import Leases
from scale0.tasks.core.native_protocol import NativeProtocol
from scale0.tasks.core.publisher import REPEATED_TASKS, TASK_PREFIX, TaskPublisher
from scale0.tasks.core.queue import TaskQueue
from scale0.tasks.core.result_reads import ResultReads
from scale0.tasks.core.shared_store import SharedStore
from scale0.tasks.core.stored_backlog import StoredBacklog
from scale0.tasks.core.submissions import Submissions
from scale0.tasks.core.subscription_scan import SubscriptionScan
from scale0.tasks.core.task import MICRO, QueuedTask, of_seconds
from scale0.tasks.core.task_clients import TaskClients
from scale0.tasks.jsonrpc.client_methods import ClientMethods
from scale0.tasks.jsonrpc.endpoint import RpcEndpoint
from scale0.tasks.jsonrpc.node_methods import NodeMethods
from scale0.transport.core.sockets import BACKEND, FRONTEND

NUDGE_SECONDS: Final = 1.0
"""Interval at which waiting work is retried, in case an event was missed or the disk was full."""
TIDY_SECONDS: Final = 30.0
"""Interval at which unused method queues are dropped."""
ANNOUNCED_METHODS: Final = 1_000
"""Methods whose unclaimed tasks are looked up with one query."""
ANNOUNCED_TASKS: Final = 5_000
"""Unclaimed tasks that are announced at once, of all methods."""
SWEEP_ROWS: Final = 1_000
"""Ended tasks that one commit deletes."""
SWEEP_GRACE_SECONDS: Final = 5.0
"""How long an ended task is kept after it expires."""
SWEEP_SECONDS: Final = 0.05
"""Pause between such commits while there are more."""
SWEEP_LOOK_SECONDS: Final = 60.0
"""Maximum interval between checks for expired tasks."""


class TaskOrAnswer(msgspec.Struct):
    """A task that is handed out, or an answer of JSON-RPC that may hand out some."""

    id: msgspec.Raw = msgspec.Raw()
    attempt: int | None = None
    result: msgspec.Raw = msgspec.Raw()


def leases_in(body: bytes) -> Iterator[tuple[str, int]]:
    """The ids and attempts of the tasks in a body of TASKS, or in answers of JSON-RPC."""
    if body.startswith(b"["):
        for each in msgspec.json.decode(body, type=list[msgspec.Raw]):
            yield from leases_in(bytes(each))
    elif body.startswith(b"{"):
        found = msgspec.json.decode(body, type=TaskOrAnswer)
        if found.attempt is not None:
            yield msgspec.json.decode(found.id, type=str), found.attempt
        else:
            yield from leases_in(bytes(found.result))


class BrokerTasks:
    def __init__(
        self,
        state: BrokerState,
        adapter: BrokerAdapter,
        slots: Scheduler,
        next_seq: int,
        shared: SharedStoreInfo | None,
    ) -> None:
        self._state = state
        self._adapter = adapter
        self._slots = slots
        self.backlog = StoredBacklog()
        self._announced = ""
        """The last method whose unclaimed tasks were announced; blank: all were."""
        self.own_room: Callable[[str], bool] = lambda _: True
        """True if the broker itself could start a task of a reserved method (a stored request)."""
        self.publisher = TaskPublisher(state, self._listen, self._listen_wide, self._waiting, self._announce_unclaimed)
        self._scan = SubscriptionScan(state, self.publisher.unscanned, self._load_if_wanted)
        self.completion_waits = CompletionWaits(state, self.publisher)
        self.queue = TaskQueue(state, self.backlog, next_seq, shared, self._has_room, self._ended)
        self.leases = Leases(state, adapter, slots, self.queue)
        results = ResultReads(state, self.backlog)
        self.clients = TaskClients(state, adapter, self.queue.retained_us)
        self.dependencies = Dependencies(self.queue)
        self.shared_store: SharedStore | None = None
        if shared is not None:
            self.shared_store = SharedStore(
                state, slots, self.queue, self.leases, self.dependencies, self.completion_waits, results
            )
        reads = FairReads(self.backlog)
        self.native = NativeProtocol(state, adapter, self.leases, results, reads)
        submissions = Submissions(state, adapter, self.queue, self.clients, self.completion_waits, reads)
        self.client_methods = ClientMethods(
            *(state, self.queue, self.leases, self.clients, self.completion_waits),
            *(submissions, self.shared_store, results, reads),
        )
        nodes = NodeMethods(state, adapter, self.queue, self.leases, results, reads)
        self.rpc = RpcEndpoint(state, adapter, {FRONTEND: self.client_methods.table, BACKEND: nodes.table})

    def start(self, leased: tuple[OpenTask, ...], usage: tuple[TaskUsage, ...], now: Now, effects: Effects) -> None:
        self.queue.quotas.start(usage)
        self.leases.lease_recovery.start(leased, now, effects)
        self.queue.schedule.start(now, effects)
        self.dependencies.start(effects)
        if self.shared_store is not None:
            self.shared_store.start(now, effects)
        self.publisher.start(now)
        self.clients.start(now)
        self._state.timers.add((self._nudge, None), now.mono + NUDGE_SECONDS)
        self._state.timers.add((self._tidy, None), now.mono + TIDY_SECONDS)
        self._state.timers.add((self._look_for_old, None), now.mono + 1.0)

    def tick(self, now: Now, effects: Effects) -> None:
        self.leases.tick(now, effects)

    def deadline(self) -> float | None:
        return self.queue.timers.deadline()

    def settle(self, now: Now, effects: Effects) -> None:
        """Ends the turn: hands out, publishes, notifies, and writes new tasks."""
        self.leases.settle(now, effects)
        self.dependencies.settle(effects)
        if self.queue.fresh:
            if self.publisher.topics:
                self._announce(now, effects)
            self.queue.settle(effects)
        if self.shared_store is not None:
            self.queue.flush(effects)
        self.completion_waits.settle(effects)
        self.native.settle(effects)
        self.queue.quotas.settle(effects)

    # Events from the broker about its backends and connections: see broker.core.workload.Workload.

    def offer(self, backend: Backend, now: Now, effects: Effects) -> None:
        self.leases.offer(backend, now, effects)
        if self.queue.method_queues.is_crowded:
            self.queue.method_queues.drop_empty(self._is_named)

    def feed(self, backend: Backend, service: str | None, now: Now, effects: Effects) -> None:
        self.leases.feed(backend, service)

    def claim(self, backend: Backend, holds: Mapping[str, int], now: Now, effects: Effects) -> None:
        self.leases.claim(backend, holds, now, effects)

    def lose(self, backend: Backend, keep: Mapping[str, int], now: Now, effects: Effects) -> None:
        self.leases.lose(backend, keep, now, effects)

    def unsent(self, backend: Backend, body: bytes, now: Now, effects: Effects) -> None:
        self.leases.unsent(backend, dict(leases_in(body)), now, effects)

    def forget(self, connection: Connection) -> None:
        self.native.forget(connection)
        if connection.number:
            self.completion_waits.forget(connection)

    def waits(self, method: str) -> bool:
        return bool(self.queue.method_queues.waiting(method, 1))

    def counts(self) -> dict[str, int]:
        queue = self.queue
        return {
            "open": queue.open,
            "leased": self.leases.leased,
            "in_memory": len(self.backlog.tasks),
            "submitted": queue.total_submitted,
            "finished": queue.total_finished,
            "failed": queue.total_failed,
            "waits": self.completion_waits.waiting,
        }

    def _has_room(self, method: str) -> bool:
        """True if a backend here could start a task of this method now."""
        return self.own_room(method) if is_reserved(method) else self._slots.has_room(method)

    def _ended(self, task: QueuedTask, status: int, body: bytes, now: Now, effects: Effects) -> None:
        self.completion_waits.ended(task, status, body, now, effects)
        if task.followed:
            self.dependencies.ended(task, status)

    def _announce(self, now: Now, effects: Effects) -> None:
        unassigned = [task for task in self.queue.fresh if task.status == QUEUED]
        for task in unassigned:
            self._load_if_wanted(task.method, now, effects)
        self.publisher.taken(unassigned, effects)

    def _listen(self, method: str, now: Now, effects: Effects) -> None:
        if self._adapter.is_service(method):
            self.queue.method_queues.need(method, now, effects)

    def _listen_wide(self, now: Now, effects: Effects) -> None:
        """Handles a subscription to several methods: announces the newest queued tasks that match it."""
        self._scan.request(now, effects)

    def _load_if_wanted(self, method: str, now: Now, effects: Effects) -> None:
        if self.publisher.is_wanted(TASK_PREFIX + method.encode("utf-8", "surrogatepass")):
            self.queue.method_queues.need(method, now, effects)

    def _announce_unclaimed(self, effects: Effects) -> None:
        """Shared store only: looks up and announces unclaimed tasks of subscribed methods, with one query. If there are
        too many methods for it, the others follow at the next call."""
        if self.shared_store is None:
            return
        wanted = [
            method
            for method in sorted(self.queue.method_queues.methods())
            if self.publisher.is_wanted(b"task." + method.encode("utf-8", "surrogatepass"))
        ]
        after = [method for method in wanted if method > self._announced]
        methods = tuple((after or wanted)[:ANNOUNCED_METHODS])
        self._announced = methods[-1] if len(methods) < len(wanted) else ""
        if methods:
            limit = max(1, min(REPEATED_TASKS, ANNOUNCED_TASKS // len(methods)))
            self.backlog.ask(PeekQueues(methods, limit), self._repeat, effects)

    def _repeat(self, found: tuple[tuple[str, str, str], ...], _mark: int, _now: Now, effects: Effects) -> None:
        for method, id_, owner in found:
            self.publisher.repeat(method, ((id_, owner),), effects)

    def _waiting(self, most: int) -> list[QueuedTask]:
        method_queues = self.queue.method_queues
        return [task for method in method_queues.methods() for task in method_queues.waiting(method, most)]

    def _nudge(self, _: None, now: Now, effects: Effects) -> None:
        if self._state.outage is not None:
            self.rpc.refuse_waiting(effects)
        self.leases.withhold(now, effects)
        self.queue.dirty.update(dict.fromkeys(self.queue.method_queues.ready))
        if self.queue.window is not None:
            for method_queue in self.queue.method_queues.all():
                self.queue.return_to_backlog(self.queue.window.spare(method_queue), effects)
        self.queue.method_queues.top_up_all(effects)
        if not self._state.full:
            self.native.ask_again(now, effects)
        self._state.timers.add((self._nudge, None), now.mono + NUDGE_SECONDS)

    def _is_named(self, method: str) -> bool:
        """True if a backend offers this method, or a subscription names it."""
        topic = TASK_PREFIX + method.encode("utf-8", "surrogatepass")
        return self._slots.backends_of(method) > 0 or topic in self.publisher.topics

    def _tidy(self, _: None, now: Now, effects: Effects) -> None:
        wanted = self.publisher
        backends_of = self._slots.backends_of
        for task in self.queue.method_queues.drop_unneeded(
            lambda method: (
                backends_of(method) > 0 or wanted.is_wanted(b"task." + method.encode("utf-8", "surrogatepass"))
            ),
            now,
        ):
            self.queue.return_to_backlog((task,), effects)
        self._state.timers.add((self._tidy, None), now.mono + TIDY_SECONDS)

    def _look_for_old(self, _: None, now: Now, effects: Effects) -> None:
        if self.queue.retention.must_look:
            self.backlog.ask(ReadExpiry(last=True), self._know_last, effects)
        self.backlog.ask(ReadExpiry(), self._sweep, effects)

    def take_freed(self, effects: Effects) -> None:
        """Ended tasks are deleted or opened again by this turn: the store subtracts what they kept. In a shared store
        each heartbeat reads the sums."""
        if self.shared_store is None:
            self.backlog.ask(TakeFreed(), lambda freed, *_: self.queue.quotas.freed(freed), effects)

    def _know_last(self, last_us: int | None, _mark: int, now: Now, effects: Effects) -> None:
        self.queue.retention.stored(last_us, self.queue.retained_us(now), effects)

    def _sweep(self, expires_us: int | None, _mark: int, now: Now, effects: Effects) -> None:
        """Deletes expired tasks in small batches."""
        rest = SWEEP_LOOK_SECONDS
        # The grace period keeps tasks that a query found just before they expired.
        before_us = self.queue.retained_us(now) - of_seconds(SWEEP_GRACE_SECONDS)
        if expires_us is not None and expires_us <= before_us and not self._state.full:
            effects.write(SweepTasks(before_us, SWEEP_ROWS))
            self.take_freed(effects)
            rest = SWEEP_SECONDS
        elif expires_us is not None:
            rest = min(rest, max(SWEEP_SECONDS, (expires_us - before_us) / MICRO))
        self._state.timers.add((self._look_for_old, None), now.mono + rest)

"""One broker's part in a shared store: heartbeats, recovery of work whose broker or node is lost, leases that move here
with their node, and commands from other brokers. `storage/task_rows.py` defines holding, claiming and orphans.
Invariants: the broker loads, ends or writes every task that it claims, so that no broker holds a task that it does not
know; at most one query of each kind is outstanding, so that an unavailable store costs nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from scale0.broker.core.scheduler import Scheduler
from scale0.broker.core.state import BrokerState
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.storage.task_queries import (
    ClaimedTask,
    FindEnded,
    StoreHeartbeat,
    StoreHeartbeatResult,
    TakeOrphans,
    TakeTaskCommands,
)
from scale0.storage.task_rows import ASSIGNED, CANCEL, CANCELLED, RELEASE, RUNNING, EndedTask, OpenTask, PutTaskCommand
from scale0.tasks.core.completion_waits import CompletionWaits
from scale0.tasks.core.dependencies import Dependencies
from scale0.tasks.core.leases import Leases, is_lease_of
from scale0.tasks.core.queue import TaskQueue
from scale0.tasks.core.result_reads import ResultReads, StoredResult
from scale0.tasks.core.shared_delayed_tasks import SharedDelayedTasks
from scale0.tasks.core.task import QueuedTask, from_store, of_seconds
from scale0.tasks.jsonrpc.messages import CANCELLED_ERROR

LOOK_SECONDS: Final = 0.25
"""Interval of queries for commands from other brokers, and for work while a backend here is idle."""
ENDS_SECONDS: Final = 0.1
"""Interval of queries for ends of tasks that other brokers hold and clients here wait for."""
STEADY_LEASES: Final = 2
"""Number of lease periods in which a broker's own heartbeats must succeed before it declares others lost."""
MAX_ERRANDS: Final = 1_000
MAX_ORPHANS: Final = 1_000
MAX_ENDS: Final = 1_000
"""Tasks in one query."""
ERRAND_SECONDS: Final = 1.0
"""Delay before another broker is asked again."""
CANCEL_SECONDS: Final = 5.0
"""How long another broker may take to cancel a task before the caller must try again."""

LEASED: Final = (ASSIGNED, RUNNING)
Then = Callable[[bool, Now, Effects], None]


class MovingLease:
    """A lease that another broker holds and whose node is connected here."""

    __slots__ = ("again", "attempt", "backend")

    def __init__(self, backend: Any, attempt: int, again: float) -> None:
        self.backend = backend
        self.attempt = attempt
        self.again = again
        """When that broker is asked again."""


class NodeClaim:
    """The tasks that a node reported as held, while the store is queried."""

    __slots__ = ("asked", "holds")

    def __init__(self) -> None:
        self.asked = 0
        self.holds: Mapping[str, int] | None = None


class PendingEnd:
    """A task that another broker is asked to end."""

    __slots__ = ("error", "then", "until")

    def __init__(self, error: bytes, then: Then, until: float) -> None:
        self.error = error
        self.then = then
        self.until = until


class SharedStore:
    def __init__(
        self,
        state: BrokerState,
        slots: Scheduler,
        queue: TaskQueue,
        leases: Leases,
        dependencies: Dependencies,
        completion_waits: CompletionWaits,
        results: ResultReads,
    ) -> None:
        self._state = state
        self._slots = slots
        self._queue = queue
        self._leases = leases
        self._dependencies = dependencies
        self._completion_waits = completion_waits
        self._results = results
        self._moving: dict[str, MovingLease] = {}
        self._endings: dict[str, list[PendingEnd]] = {}
        self._turn = 0
        self._heard = self._steady = -math.inf
        """When the store last confirmed a heartbeat, and since when it has done so in time."""
        self._claims: dict[str, NodeClaim] = {}
        """By node, until the store has answered."""
        self._silent: dict[str, Any] = {}
        """Nodes that cannot report what they hold, by name: they keep all their leases from a failed broker."""
        self.others: tuple[str, ...] = ()
        """The other live brokers."""
        leases.others = self
        queue.backlog.on_leaving = completion_waits.leaves

    def start(self, now: Now, effects: Effects) -> None:
        self._send_heartbeat(None, now, effects)
        self._check_others(None, now, effects)
        self._look_for_ends(None, now, effects)

    def _later(self, seconds: float, do: Callable[[None, Now, Effects], None], now: Now) -> None:
        self._state.timers.add((do, None), now.mono + seconds)

    # Heartbeats and failure detection.

    def _send_heartbeat(self, _: None, now: Now, effects: Effects) -> None:
        lease = self._state.interval * self._state.liveness
        judges = now.mono - self._steady >= STEADY_LEASES * lease
        self._queue.backlog.ask(StoreHeartbeat(of_seconds(lease), judges), self._heartbeat_stored, effects)

    def _heartbeat_stored(self, result: StoreHeartbeatResult, _mark: int, now: Now, effects: Effects) -> None:
        self._later(self._state.interval, self._send_heartbeat, now)
        if isinstance(self._queue.schedule, SharedDelayedTasks):
            self._queue.schedule.synchronise(result.now_us, now)
        last, self._heard = self._heard, now.mono
        if now.mono - last > self._state.interval * self._state.liveness:
            # The store was unavailable, or this process was suspended: give other brokers more time.
            self._steady = now.mono
        self._queue.quotas.start(result.usage, result.total)
        self.others = result.alive
        patience = 2 * self._state.liveness * self._state.interval
        self._queue.backlog.ask(TakeOrphans(of_seconds(patience), MAX_ORPHANS), self._orphans, effects)
        self._dependencies.start(effects)
        self._silent = {name: backend for name, backend in self._silent.items() if backend.alive}
        if result.died:
            for backend in tuple(self._silent.values()):
                self.claim(backend, None, now, effects)

    def _orphans(self, rows: tuple[OpenTask, ...], _mark: int, now: Now, effects: Effects) -> None:
        """Ends orphaned leases that no node reclaimed."""
        for row in rows:
            self._lose(row, now, effects)

    def _lose(self, row: OpenTask, now: Now, effects: Effects) -> None:
        """Ends a lease that this broker holds and whose node no longer has the task."""
        task = as_leased(row)
        self._queue.backlog.tasks[task.id] = task
        self._leases.lost(task, now, effects)

    # Commands and work for this broker.

    def _check_others(self, _: None, now: Now, effects: Effects) -> None:
        window = self._queue.window
        if window is not None and not self._leases.is_closed:
            window.peek(self._queue.method_queues.all(), effects)
        ids = tuple(self._moving)
        if ids:
            self._queue.backlog.claim(ids, lambda rows, later, out: self._moved(ids, rows, later, out), effects)
        self._queue.backlog.ask(TakeTaskCommands(MAX_ERRANDS), self._run_commands, effects)

    def _run_commands(self, commands: tuple[PutTaskCommand, ...], _mark: int, now: Now, effects: Effects) -> None:
        self._later(LOOK_SECONDS, self._check_others, now)
        for errand in commands:
            task = self._queue.backlog.tasks.get(errand.id)
            if task is None:
                continue  # it has ended or is in the backlog: the caller queries again
            if errand.kind == CANCEL:
                self._cancel(task, errand.body, now, effects)
            elif errand.kind == RELEASE and task.backend is not None:
                self._leases.release(task)
                self._queue.hand_over(task, effects)

    # Leases that move with their node.

    def claim(self, backend: Any, holds: Mapping[str, int] | None, now: Now, effects: Effects) -> None:
        """Takes over the leases that a node reports (None: it cannot report) and that are unowned or held by another
        broker."""
        name = backend.identity
        if holds is None:
            self._silent[name] = backend
        claim = self._claims.setdefault(name, NodeClaim())
        claim.asked += 1
        self.restate(name, holds)

        def last() -> Mapping[str, int] | None:
            """Returns the node's latest report: it may have reported again before the store answered."""
            claim.asked -= 1
            if not claim.asked:
                del self._claims[name]
            return claim.holds

        self._take_over(backend, holds or {}, last, name, effects)

    def restate(self, name: str, holds: Mapping[str, int] | None) -> None:
        """Replaces a node's report, which pending claims and moves are judged by."""
        if name in self._claims:
            self._claims[name].holds = holds
        if holds is not None:
            gone = [id_ for id_, want in self._moving.items() if want.backend.identity == name and id_ not in holds]
            for id_ in gone:
                del self._moving[id_]

    def fetch(self, backend: Any, id_: str, attempt: int, now: Now, effects: Effects) -> None:
        """Takes over the lease of a result that a node here has."""
        holds = {id_: attempt}
        self._take_over(backend, holds, lambda: holds, None, effects)

    def _take_over(
        self,
        backend: Any,
        holds: Mapping[str, int],
        current_holds: Callable[[], Mapping[str, int] | None],
        node: str | None,
        effects: Effects,
    ) -> None:
        own = self._queue.backlog.tasks
        ids = tuple(id_ for id_ in holds if id_ not in own or own[id_].backend is not backend)
        # The held tasks occupy slots: no other work may take them before the store answers.
        self._slots.reserve(backend, len(ids))

        def found(rows: tuple[ClaimedTask, ...], now: Now, out: Effects) -> None:
            self._slots.unreserve(backend, len(ids))
            last = current_holds()
            behind = (row.task.id for row in rows[len(ids) :] if row.task is not None)
            for id_, row in zip((*ids, *behind), rows, strict=True):
                self._settle_claim(id_, row, backend, last, now, out)
            self._leases.feed(backend)

        self._queue.backlog.claim(ids, found, effects, node)

    def _settle_claim(
        self, id_: str, row: ClaimedTask, backend: Any, holds: Mapping[str, int] | None, now: Now, effects: Effects
    ) -> None:
        task = row.task
        attempt = None if holds is None else holds.get(id_)
        if not isinstance(task, OpenTask):
            self._leases.refuse(backend, id_, attempt or 0)
        elif id_ in self._queue.backlog.tasks:
            held = backend.tasks.get(id_)
            if attempt is not None and (held is None or held.attempt != attempt):
                self._leases.refuse(backend, id_, attempt)
        elif task.status in LEASED and is_lease_of(task, backend) and (holds is None or attempt == task.attempt):
            if row.holder:
                self._move(task, row.holder, backend, now, effects)
            else:
                self._resume(task, backend, now, effects)
        else:
            if not row.holder:
                self._put_down(task, backend, now, effects)
            if attempt is not None:
                self._leases.refuse(backend, id_, attempt)

    def _resume(self, row: OpenTask, backend: Any, now: Now, effects: Effects) -> None:
        if not backend.alive:
            self._lose(row, now, effects)
            return
        task = as_leased(row)
        self._queue.backlog.tasks[task.id] = task
        self._leases.resume(task, backend, now, effects)

    def _put_down(self, row: OpenTask, backend: Any, now: Now, effects: Effects) -> None:
        """Releases a task that was claimed by id but does not match the node's report."""
        if row.status in LEASED and row.node == backend.identity:
            self._lose(row, now, effects)
        else:
            self._queue.put_down(row, now, effects)

    def _move(self, task: OpenTask, where: str, backend: Any, now: Now, effects: Effects) -> None:
        if task.id not in self._moving or self._moving[task.id].attempt != task.attempt:
            self._moving[task.id] = MovingLease(backend, task.attempt, now.mono + ERRAND_SECONDS)
            effects.write(PutTaskCommand(where, RELEASE, task.id, b""))

    def _moved(self, ids: tuple[str, ...], rows: tuple[ClaimedTask, ...], now: Now, effects: Effects) -> None:
        """Completes moves whose leases have arrived, and asks the holders of the others."""
        for id_, row in zip(ids, rows, strict=True):
            want, task = self._moving.get(id_), row.task
            if want is None:
                # The node has reported again since, and does not have the task.
                if isinstance(task, OpenTask) and not row.holder and id_ not in self._queue.backlog.tasks:
                    self._queue.put_down(task, now, effects)
                continue
            if isinstance(task, OpenTask) and row.holder and task.attempt == want.attempt and want.backend.alive:
                # That broker is alive: it releases the lease, or fails, and then the lease is unowned.
                if now.mono >= want.again:
                    want.again = now.mono + ERRAND_SECONDS
                    effects.write(PutTaskCommand(row.holder, RELEASE, id_, b""))
                continue
            del self._moving[id_]
            self._settle_claim(id_, row, want.backend, {id_: want.attempt}, now, effects)

    # Tasks that other brokers end.

    def end_elsewhere(self, id_: str, where: str, error: bytes, then: Then, now: Now, effects: Effects) -> None:
        """Asks the broker that holds a task to cancel it; calls `then` with whether the task has ended."""
        effects.write(PutTaskCommand(where, CANCEL, id_, error))
        self._endings.setdefault(id_, []).append(PendingEnd(error, then, now.mono + CANCEL_SECONDS))

    def _look_for_ends(self, _: None, now: Now, effects: Effects) -> None:
        """Queries the ends of some of the awaited tasks; the others follow at the next call."""
        own = self._queue.backlog.tasks
        for id_ in [id_ for id_ in self._endings if id_ in own]:
            self._end_here(id_, now, effects)
        wanted = [id_ for id_ in (*self._endings, *self._completion_waits.wanted()) if id_ not in own]
        first = self._turn % len(wanted) if wanted else 0
        self._turn += MAX_ENDS
        some = tuple(dict.fromkeys((*wanted[first:], *wanted[:first])))[:MAX_ENDS]
        if some:
            self._queue.backlog.ask(FindEnded(some), self._ends, effects)
        else:
            self._later(ENDS_SECONDS, self._look_for_ends, now)

    def _end_here(self, id_: str, now: Now, effects: Effects) -> None:
        """Ends a task that moved here before its holder handled the cancel command."""
        endings = self._endings.pop(id_)
        self._cancel(self._queue.backlog.tasks[id_], endings[0].error, now, effects)
        for ending in endings:
            ending.then(True, now, effects)

    def _cancel(self, task: QueuedTask, error: bytes, now: Now, effects: Effects) -> None:
        self._leases.cancel(task, now)
        self._queue.end(task, CANCELLED, error, CANCELLED_ERROR, now, effects)

    def _ends(self, rows: tuple[EndedTask, ...], _mark: int, now: Now, effects: Effects) -> None:
        def read(results: Sequence[StoredResult], later: Now, out: Effects) -> None:
            """Ends whose results were not read are found again."""
            self._later(ENDS_SECONDS, self._look_for_ends, later)
            for row, result in zip(rows, results, strict=False):
                if result is not None:
                    self._completion_waits.ended_elsewhere(row, *result, later, out)

        if rows:
            self._results.ask(tuple(row.seq for row in rows), read, effects)
        else:
            self._later(ENDS_SECONDS, self._look_for_ends, now)
        for row in rows:
            for ending in self._endings.pop(row.id, ()):
                ending.then(True, now, effects)
        for id_, endings in list(self._endings.items()):
            for ending in [each for each in endings if each.until <= now.mono]:
                endings.remove(ending)
                ending.then(False, now, effects)
            if not endings:
                del self._endings[id_]


def as_leased(row: OpenTask) -> QueuedTask:
    """Returns a stored lease as a task; only its node knows its progress."""
    task = from_store(row)
    task.start_reported = row.status == RUNNING
    # A pulled task counts as started when it is handed out.
    task.native = task.start_reported or not row.started_us
    task.drop_params()
    return task

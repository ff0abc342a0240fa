"""A broker among others on one store: signs of life, and what passes from one to the other.

Lives here: telling the store that we live, work whose broker or node is lost, leases that come to us with their node,
and what others want of us. Never here: the order of the queue, or how the store keeps it (`storage/task_rows.py` says
what holding, taking and orphans are). Invariants: whatever we take we load, end or write, so that nothing is held by a
broker that does not know of it; of each kind one question at a time is under way, so that a store that is away costs
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
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
from scale0.storage.task_rows import ASSIGNED, CANCEL, CANCELLED, RELEASE, RUNNING, OpenTask, PutTaskCommand
from scale0.tasks.core.completion_waits import CompletionWaits
from scale0.tasks.core.dependencies import Dependencies
from scale0.tasks.core.leases import Leases
from scale0.tasks.core.queue import TaskQueue
from scale0.tasks.core.task import QueuedTask, from_store, of_seconds
from scale0.tasks.jsonrpc.messages import CANCELLED_ERROR

LOOK_SECONDS: Final = 0.25
"""How often the store is asked for what others left for us, and for work while somebody here is idle."""
ENDS_SECONDS: Final = 0.1
"""How often it is asked for ends that somebody here waits for, of tasks that others hold."""
STEADY_LEASES: Final = 2
"""For how many leases a broker's beats must have come in time before it judges others."""
MAX_ERRANDS: Final = 1_000
MAX_ORPHANS: Final = 1_000
MAX_ENDS: Final = 1_000
"""In one question."""
ERRAND_SECONDS: Final = 1.0
"""When another broker is asked once more."""
CANCEL_SECONDS: Final = 5.0
"""How long another broker may take to cancel a task, before whoever wants it is told to ask again."""

LEASED: Final = (ASSIGNED, RUNNING)
Then = Callable[[bool, Now, Effects], None]


class MovingLease:
    """A lease that another broker holds, and whose node is here."""

    __slots__ = ("again", "attempt", "backend")

    def __init__(self, backend: Any, attempt: int, again: float) -> None:
        self.backend = backend
        self.attempt = attempt
        self.again = again
        """When that broker is asked once more."""


class NodeClaim:
    """What a node said that it has in hand, while the store is asked about it."""

    __slots__ = ("asked", "holds")

    def __init__(self) -> None:
        self.asked = 0
        self.holds: Mapping[str, int] | None = None


class PendingEnd:
    """A task that another broker shall end."""

    __slots__ = ("error", "then", "until")

    def __init__(self, error: bytes, then: Then, until: float) -> None:
        self.error = error
        self.then = then
        self.until = until


class SharedStore:
    """One broker's part in a shared store."""

    __slots__ = (
        *(
            "_endings",
            "_dependencies",
            "_heard",
            "_state",
            "_leases",
            "_moving",
            "_queue",
            "_said",
            "_silent",
            "_slots",
        ),
        *("_steady", "_turn", "_completion_waits", "others"),
    )

    def __init__(
        self,
        state: BrokerState,
        slots: Scheduler,
        queue: TaskQueue,
        leases: Leases,
        dependencies: Dependencies,
        completion_waits: CompletionWaits,
    ) -> None:
        self._state = state
        self._slots = slots
        self._queue = queue
        self._leases = leases
        self._dependencies = dependencies
        self._completion_waits = completion_waits
        self._moving: dict[str, MovingLease] = {}
        self._endings: dict[str, list[PendingEnd]] = {}
        self._turn = 0
        self._heard = self._steady = -math.inf
        """When the store last answered a beat; and since when it has done so in time."""
        self._said: dict[str, NodeClaim] = {}
        """By node, until the store has answered."""
        self._silent: dict[str, Any] = {}
        """Nodes that cannot say what they have in hand, by name: whatever was theirs at a broker that dies is."""
        self.others: tuple[str, ...] = ()
        """The other brokers that are alive."""
        leases.others = self
        queue.backlog.on_leaving = completion_waits.leaves

    def start(self, now: Now, effects: Effects) -> None:
        """The first turn."""
        self._beat(None, now, effects)
        self._look(None, now, effects)
        self._look_for_ends(None, now, effects)

    def _later(self, seconds: float, do: Callable[[None, Now, Effects], None], now: Now) -> None:
        self._state.timers.add((do, None), now.mono + seconds)

    # We live; others may not.

    def _beat(self, _: None, now: Now, effects: Effects) -> None:
        lease = self._state.interval * self._state.liveness
        judges = now.mono - self._steady >= STEADY_LEASES * lease
        self._queue.backlog.ask(StoreHeartbeat(of_seconds(lease), judges), self._beaten, effects)

    def _beaten(self, told: StoreHeartbeatResult, _mark: int, now: Now, effects: Effects) -> None:
        self._later(self._state.interval, self._beat, now)
        last, self._heard = self._heard, now.mono
        if now.mono - last > self._state.interval * self._state.liveness:
            # The store was away, or we slept: others may need a moment more.
            self._steady = now.mono
        self._queue.open = told.open_tasks
        self.others = told.alive
        patience = 2 * self._state.liveness * self._state.interval
        self._queue.backlog.ask(TakeOrphans(of_seconds(patience), MAX_ORPHANS), self._orphans, effects)
        self._dependencies.start(effects)
        self._silent = {name: backend for name, backend in self._silent.items() if backend.alive}
        if told.died:
            for backend in tuple(self._silent.values()):
                self.claim(backend, None, now, effects)

    def _orphans(self, rows: tuple[OpenTask, ...], _mark: int, now: Now, effects: Effects) -> None:
        """Nobody came back with these: whoever had them is lost."""
        for row in rows:
            self._lose(row, now, effects)

    def _lose(self, row: OpenTask, now: Now, effects: Effects) -> None:
        """A lease that is ours now, and whose node does not have it any more."""
        task = as_leased(row)
        self._queue.backlog.tasks[task.id] = task
        self._leases.lost(task, now, effects)

    # What is for us.

    def _look(self, _: None, now: Now, effects: Effects) -> None:
        window = self._queue.window
        if window is not None and not self._leases.is_closed:
            window.peek(self._queue.method_queues.all(), effects)
        ids = tuple(self._moving)
        if ids:
            self._queue.backlog.claim(ids, lambda rows, later, out: self._moved(ids, rows, later, out), effects)
        self._queue.backlog.ask(TakeTaskCommands(MAX_ERRANDS), self._run_errands, effects)

    def _run_errands(self, errands: tuple[PutTaskCommand, ...], _mark: int, now: Now, effects: Effects) -> None:
        self._later(LOOK_SECONDS, self._look, now)
        for errand in errands:
            task = self._queue.backlog.tasks.get(errand.id)
            if task is None:
                continue  # it has ended, or is on the shelf: whoever wants it looks again
            if errand.kind == CANCEL:
                self._cancel(task, errand.body, now, effects)
            elif errand.kind == RELEASE and task.status in LEASED:
                self._leases.release(task)
                self._queue.hand_over(task, effects)

    # Leases that come with their node.

    def claim(self, backend: Any, holds: Mapping[str, int] | None, now: Now, effects: Effects) -> None:
        """A node says what it has in hand (None: it cannot say): what is nobody's, or another broker's, comes to us."""
        name = backend.identity
        if holds is None:
            self._silent[name] = backend
        said = self._said.setdefault(name, NodeClaim())
        said.asked += 1
        self.restate(name, holds)

        def last() -> Mapping[str, int] | None:
            """What it said last: it may have come again before the store answered."""
            said.asked -= 1
            if not said.asked:
                del self._said[name]
            return said.holds

        self._take_over(backend, holds or {}, last, name, effects)

    def restate(self, name: str, holds: Mapping[str, int] | None) -> None:
        """A node has this in hand now, and nothing else: what is asked or waited for is judged by that."""
        if name in self._said:
            self._said[name].holds = holds
        if holds is not None:
            gone = [id_ for id_, want in self._moving.items() if want.backend.identity == name and id_ not in holds]
            for id_ in gone:
                del self._moving[id_]

    def fetch(self, backend: Any, id_: str, attempt: int, now: Now, effects: Effects) -> None:
        """A node has a result of a lease that is not ours."""
        holds = {id_: attempt}
        self._take_over(backend, holds, lambda: holds, None, effects)

    def _take_over(
        self,
        backend: Any,
        holds: Mapping[str, int],
        said: Callable[[], Mapping[str, int] | None],
        node: str | None,
        effects: Effects,
    ) -> None:
        own = self._queue.backlog.tasks
        ids = tuple(id_ for id_ in holds if id_ not in own or own[id_].backend is not backend)
        # What it has in hand fills its slots: nobody may be given these before we know.
        reserved = sum(self._slots.take_from(backend) for _ in ids)

        def found(rows: tuple[ClaimedTask, ...], now: Now, out: Effects) -> None:
            for _ in range(reserved):
                self._slots.give_back(backend)
            last = said()
            behind = (row.task.id for row in rows[len(ids) :] if row.task is not None)
            for id_, row in zip((*ids, *behind), rows, strict=True):
                self._settle_claim(id_, row, backend, last, now, out)
            self._leases.feed(backend, now, out)

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
        elif task.status in LEASED and task.node == backend.identity and (holds is None or attempt == task.attempt):
            if row.holder:
                self._move(task, row.holder, backend, now, effects)
            else:
                self._take_up(task, backend, now, effects)
        else:
            if not row.holder:
                self._put_down(task, backend, now, effects)
            if attempt is not None:
                self._leases.refuse(backend, id_, attempt)

    def _take_up(self, row: OpenTask, backend: Any, now: Now, effects: Effects) -> None:
        if not backend.alive:
            self._lose(row, now, effects)
            return
        task = as_leased(row)
        self._queue.backlog.tasks[task.id] = task
        self._leases.take_up(task, backend, now, effects)

    def _put_down(self, row: OpenTask, backend: Any, now: Now, effects: Effects) -> None:
        """It was taken by its name, and is not what its node says."""
        if row.status in LEASED and row.node == backend.identity:
            self._lose(row, now, effects)
        else:
            self._queue.put_down(row, now, effects)

    def _move(self, task: OpenTask, where: str, backend: Any, now: Now, effects: Effects) -> None:
        if task.id not in self._moving or self._moving[task.id].attempt != task.attempt:
            self._moving[task.id] = MovingLease(backend, task.attempt, now.mono + ERRAND_SECONDS)
            effects.write(PutTaskCommand(where, RELEASE, task.id, b""))

    def _moved(self, ids: tuple[str, ...], rows: tuple[ClaimedTask, ...], now: Now, effects: Effects) -> None:
        """Have these come, or where are they now?"""
        for id_, row in zip(ids, rows, strict=True):
            want, task = self._moving.get(id_), row.task
            if want is None:
                # Its node came again meanwhile, and does not have it.
                if isinstance(task, OpenTask) and not row.holder and id_ not in self._queue.backlog.tasks:
                    self._queue.put_down(task, now, effects)
                continue
            if isinstance(task, OpenTask) and row.holder and task.attempt == want.attempt and want.backend.alive:
                # That broker lives: it lets go of it, or dies, and then it is nobody's.
                if now.mono >= want.again:
                    want.again = now.mono + ERRAND_SECONDS
                    effects.write(PutTaskCommand(row.holder, RELEASE, id_, b""))
                continue
            del self._moving[id_]
            self._settle_claim(id_, row, want.backend, {id_: want.attempt}, now, effects)

    # Tasks that others end.

    def end_elsewhere(self, id_: str, where: str, error: bytes, then: Then, now: Now, effects: Effects) -> None:
        """Have the broker that holds a task cancel it; `then` hears whether it has ended."""
        effects.write(PutTaskCommand(where, CANCEL, id_, error))
        self._endings.setdefault(id_, []).append(PendingEnd(error, then, now.mono + CANCEL_SECONDS))

    def _look_for_ends(self, _: None, now: Now, effects: Effects) -> None:
        """Ask for the ends of some of those that are waited for, and of others the next time."""
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
        """It came to us before its holder heard that it shall end."""
        endings = self._endings.pop(id_)
        self._cancel(self._queue.backlog.tasks[id_], endings[0].error, now, effects)
        for ending in endings:
            ending.then(True, now, effects)

    def _cancel(self, task: QueuedTask, error: bytes, now: Now, effects: Effects) -> None:
        self._leases.cancel(task)
        self._queue.end(task, CANCELLED, error, CANCELLED_ERROR, now, effects)

    def _ends(self, rows: tuple[Any, ...], _mark: int, now: Now, effects: Effects) -> None:
        self._later(ENDS_SECONDS, self._look_for_ends, now)
        for row in rows:
            self._completion_waits.told(row, now, effects)
            for ending in self._endings.pop(row.id, ()):
                ending.then(True, now, effects)
        for id_, endings in list(self._endings.items()):
            for ending in [each for each in endings if each.until <= now.mono]:
                endings.remove(ending)
                ending.then(False, now, effects)
            if not endings:
                del self._endings[id_]


def as_leased(row: OpenTask) -> QueuedTask:
    """A stored lease in memory: how far it is, only its node knows."""
    task = from_store(row)
    task.said = row.status == RUNNING
    # Whoever pulled a task was counted as its starter at once.
    task.native = task.said or not row.started_us
    return task

"""Simulated task workers: the executor of a native backend, which uses the real `tasks.node.assigned_tasks`, and nodes
that pull. Invariant: work that a dead process started never sends anything."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from scale0.kernel.clock import Now
from scale0.tasks.node.assigned_tasks import (
    RUNNING,
    WAITING,
    AssignedTask,
    AssignedTasks,
    CapacityAvailable,
    TasksAssigned,
    TasksStopped,
)
from scale0.transport.core.backend_session import BackendSession
from scale0.transport.core.session import SessionEffects
from simulator.network.client_connection import Connect, SimLink
from simulator.network.connections import Route
from simulator.network.raw_jsonrpc_client import AGAIN_SECONDS, Answer, RawSession
from simulator.network.subscriptions import Announcements
from simulator.network.task_records import DIE, FINISH, HANG_SECONDS, RETRY, TaskRecord, TaskRecords
from simulator.virtual_time import Agenda

QUICK_SECONDS: Final = 0.05
OBEDIENT: Final = 0.7
"""The share of tasks that stop when they are cancelled."""
POLL_SECONDS: Final = (1.5, 4.0)
SPARE_THREADS: Final = 2
"""Tasks that a node pulls beyond those that it runs at once: their leases are its own all the same."""

AGAIN_SOON_SECONDS: Final = 0.1
ONCE: Final = 1e9
"""A request that is not repeated on one connection, because each one takes tasks."""

_params: Final = msgspec.json.Decoder(dict[str, Any])


class WorkerObserver(Protocol):
    """The observer interface: see `simulator.invariants.tasks`."""

    def given(self, worker: str, id_: str, attempt: int, nonce: int) -> None: ...
    def in_flight(self, worker: str, count: int, room: int) -> None: ...


class TaskSurroundings:
    """What every task worker needs from its world."""

    def __init__(
        self,
        agenda: Agenda,
        records: TaskRecords,
        observer: WorkerObserver,
        deadly: Callable[[], bool],
        died: Callable[[Any], None],
    ) -> None:
        self.agenda = agenda
        self.records = records
        self.observer = observer
        self.deadly = deadly
        """If it returns False, no task kills its worker any more."""
        self.died = died

    def record_of(self, params: bytes) -> TaskRecord:
        return self.records.by_nonce[_params.decode(params)["nonce"]]

    def begin(self, record: TaskRecord, attempt: int, worker: str) -> tuple[str, float]:
        """Returns how and when an execution ends."""
        how, seconds = record.begin(attempt, worker)
        return (FINISH if how == DIE and not self.deadly() else how), seconds


class TaskBatch:
    """Tasks that one thread runs one after another."""

    def __init__(self, jobs: Sequence[AssignedTask], method: str) -> None:
        self.method = method
        self.jobs = deque(jobs)
        self.at: AssignedTask | None = None


class TaskExecutor:
    """The running tasks of one process of a native backend."""

    def __init__(self, surroundings: TaskSurroundings, node: Any, rng: random.Random, bunch: int) -> None:
        self._surroundings = surroundings
        self._node = node
        self._name: str = node.name
        self._rng = rng
        self._bunch = bunch
        self._most: int = node.offered.slots
        """The largest number of slots that this process has offered."""
        self._waiting: deque[AssignedTask] = deque()
        self._batches: list[TaskBatch] = []
        self.tasks = AssignedTasks()
        self.session: BackendSession
        self.link: SimLink

    @property
    def count(self) -> int:
        """Returns the number of assigned tasks that have not ended."""
        return sum(job.state == WAITING for job in self._waiting) + sum(
            job.state in (RUNNING, WAITING) for batch in self._batches for job in (batch.at, *batch.jobs) if job
        )

    def receive(self, notifications: Sequence[Any]) -> None:
        """Handles the session's task events."""
        for item in notifications:
            match item:
                case TasksAssigned():
                    self.give(item.tasks)
                case TasksStopped():
                    self.stop(item.tasks)
                case CapacityAvailable():
                    self.pump()
                case _:
                    pass
        self._most = max(self._most, self._node.offered.slots)
        self._surroundings.observer.in_flight(self._name, self.count, self._most + self._node.prefetch)

    def give(self, jobs: Sequence[AssignedTask]) -> None:
        for job in jobs:
            record = self._surroundings.record_of(job.params)
            self._surroundings.observer.given(self._name, job.id, job.attempt, record.nonce)
            self._waiting.append(job)
        self.pump()

    def stop(self, jobs: Sequence[AssignedTask]) -> None:
        """Cancels tasks; some stop, and some continue in vain."""
        for batch in list(self._batches):
            if batch.at not in jobs or batch.at is None:
                continue
            endless = self._surroundings.record_of(batch.at.params).seconds >= HANG_SECONDS
            if endless or self._rng.random() < OBEDIENT:
                self._next(batch)
        self.pump()

    def pump(self) -> None:
        """Starts as many tasks as possible."""
        slots = max(1, self._node.offered.slots)
        while self._waiting and len(self._batches) + len(self._node.handed) < slots:
            if not self.session.is_up or self.tasks.is_full:
                return
            first = next((job for job in self._waiting if self._may_start(job.method)), None)
            if first is None:
                return
            picked = [first]
            if self._is_quick(first):
                others = (job for job in self._waiting if job is not first and job.method == first.method)
                picked += itertools.islice(itertools.takewhile(self._is_quick, others), self._bunch - 1)
            for job in picked:
                self._waiting.remove(job)
            if any(job.state == WAITING for job in picked):
                self._batches.append(batch := TaskBatch((), first.method))
                self.link.act(partial(self._begin, batch, picked))

    def _may_start(self, method: str) -> bool:
        """True if a slot of this service is free; work of a service that is not offered any more needs one, too."""
        running = sum(batch.method == method for batch in self._batches) + self._node.running(method)
        return bool(running < max(1, self._node.offered.slots_of(method)))

    def _is_quick(self, job: AssignedTask) -> bool:
        return job.attempt == 1 and self._surroundings.record_of(job.params).seconds < QUICK_SECONDS

    def _begin(self, batch: TaskBatch, picked: list[AssignedTask], now: Now, out: SessionEffects) -> None:
        batch.jobs.extend(self.tasks.start(picked))
        self.session.send_tasks(now, out)
        self._next(batch)

    def _next(self, batch: TaskBatch) -> None:
        """Starts the next task of a batch, or ends the batch."""
        while batch.jobs:
            batch.at = job = batch.jobs.popleft()
            if job.state != RUNNING:
                continue
            record = self._surroundings.record_of(job.params)
            how, seconds = self._surroundings.begin(record, job.attempt, self._name)
            if how == DIE:
                seconds = self._rng.uniform(0.005, 0.5)
            elif seconds > 1.0:
                self.link.later(seconds / 2, partial(self._progress, job))
            self.link.later(seconds, partial(self._end, batch, job, record, how))
            return
        if batch in self._batches:
            self._batches.remove(batch)

    def _progress(self, job: AssignedTask, now: Now, out: SessionEffects) -> None:
        self.tasks.progress(job, 0.5, "half")
        self.session.send_tasks(now, out)

    def _end(
        self, batch: TaskBatch, job: AssignedTask, record: TaskRecord, how: str, now: Now, out: SessionEffects
    ) -> None:
        if batch.at is not job:
            return
        batch.at = None
        if how == DIE:
            self._surroundings.agenda.after(0.0, self._surroundings.died, self._node)
            return
        if how == FINISH:
            self.tasks.finish(job, record.result(job.attempt, self._name))
        else:
            self.tasks.fail(job, record.error + (b',"retry":true}' if how == RETRY else b"}"))
        self._next(batch)
        if batch not in self._batches:
            self.session.send_tasks(now, out)
            self._surroundings.agenda.after(0.0, self.pump)


class PullNode:
    """A node that pulls its tasks by JSON-RPC, across all its processes."""

    def __init__(
        self,
        surroundings: TaskSurroundings,
        connect: Connect,
        observer: Any,
        announcements: Announcements,
        route: Route,
        rng: random.Random,
        endpoint: str,
        methods: Sequence[str],
        interval: float,
    ) -> None:
        self._surroundings = surroundings
        self._connect = connect
        self._observer = observer
        self._announcements = announcements
        self._rng = rng
        self._endpoint = endpoint
        self._interval = interval
        self._in_flight: dict[tuple[str, int], TaskRecord] = {}
        self.name = route.name
        self.route = route
        self.methods = tuple(methods)
        self.threads = rng.randint(1, 3)
        self.link: SimLink | None = None

    @property
    def up(self) -> bool:
        return self.link is not None and not self.link.ended

    def start(self) -> None:
        self._in_flight = {}
        hello = ("node_connect", [self.name, list(self.methods)])
        self.session = session = RawSession(self._endpoint, hello, self._rng, delimiter=False)
        session.beat, session.beat_seconds = ("node_heartbeat", [self.name]), self._interval * 0.8
        receive = partial(self._receive, session)
        self.link = SimLink(self._surroundings.agenda, self.route, session, self._connect, receive, self._observer, 0.0)
        self.link.act(session.start)
        for method in self.methods:
            self._announcements.join(self, b"task." + method.encode())
        self.link.later(self._rng.random(), self._poll)

    def kill(self, silent: bool) -> None:
        if self.link is not None and self.up:
            self._announcements.leave(self)
            self.link.kill(silent)

    def announced(self, frames: list[bytes]) -> None:
        """Handles the announcement of a task."""
        message = msgspec.json.decode(frames[1])
        id_ = message["params"].get("task_id")
        if id_ is None or self.link is None or self._room <= 0 or self._rng.random() < 0.3:
            return
        self._call("node_task_request", [self.name, id_], ("take", id_), ONCE)

    @property
    def _room(self) -> int:
        return self.threads + SPARE_THREADS - len(self._in_flight)

    def _poll(self, now: Now, out: SessionEffects) -> None:
        self._ask(now, out)
        if self.link is not None:
            self.link.later(self._rng.uniform(*POLL_SECONDS), self._poll)

    def _ask(self, now: Now, out: SessionEffects) -> None:
        if self._room > 0 and not any(call.tag == ("pull",) for call in self.session.calls.values()):
            self.session.call("node_tasks_request", [self.name, self._room], ("pull",), now, out, ONCE)

    def _call(self, method: str, params: Any, tag: Any, patience: float = AGAIN_SECONDS) -> None:
        session = self.session
        if self.link is not None:
            self.link.act(lambda now, out: session.call(method, params, tag, now, out, patience))

    def _receive(self, session: RawSession, notifications: list[Any]) -> None:
        for item in notifications:
            if session is not self.session or not isinstance(item, Answer):
                continue
            match item.tag:
                case ("pull",):
                    for task in item.result or ():
                        self._begin(task)
                    if item.result and self.link is not None:
                        # There may be more.
                        self.link.later(AGAIN_SOON_SECONDS, self._ask)
                case ("take", _) if item.result:
                    self._begin(item.result)
                case _:
                    pass

    def _begin(self, task: dict[str, Any]) -> None:
        id_, attempt = task["id"], task["attempt"]
        record = self._surroundings.records.by_nonce[task["params"]["nonce"]]
        if (id_, attempt) in self._in_flight or self.link is None:
            return  # the answer to a repeated request
        self._surroundings.observer.given(self.name, id_, attempt, record.nonce)
        self._in_flight[id_, attempt] = record
        how, seconds = self._surroundings.begin(record, attempt, self.name)
        if seconds > 1.0:
            self._call("task_status", [self.name, id_, "working", {"half": True}], ("status", id_))
        self.link.later(seconds, partial(self._end, id_, attempt, record, how))

    def _end(self, id_: str, attempt: int, record: TaskRecord, how: str, now: Now, out: SessionEffects) -> None:
        if self._in_flight.pop((id_, attempt), None) is None:
            return
        if how == DIE:
            self._surroundings.agenda.after(0.0, self._surroundings.died, self)
            return
        if how == FINISH:
            result = msgspec.json.decode(record.result(attempt, self.name))
            params = [self.name, id_, result, attempt]
            self.session.call("node_task_finished", params, ("end", id_), now, out)
        else:
            error = msgspec.json.decode(record.error + (b',"retry":true}' if how == RETRY else b"}"))
            self.session.call("node_task_failed", [self.name, id_, error, attempt], ("end", id_), now, out)

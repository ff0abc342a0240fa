"""Titanic's request store: stored requests as tasks of the broker, run by `request_runs`. Invariant: only a client that
has the UUID, and with CURVE the key that stored the request, can read or close it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from scale0.broker.core.broker import Broker
from scale0.broker.core.scheduler import Backend
from scale0.broker.core.workload import Workload
from scale0.compat.titanic.request_runs import METHOD_PREFIX, OWN_NAME, RequestRuns
from scale0.compat.titanic.services import DONE, FAILED, PENDING, TITANIC_CLOSE, UNKNOWN, Then, pack_frames, read_frames
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.storage.task_queries import LookUpSubmission, SubmissionLookup
from scale0.storage.task_rows import CANCELLED, FINISHED, EndedTask, OpenTask, account_name
from scale0.tasks.core.queue import OWN_IDS
from scale0.tasks.core.quotas import TaskQuotas
from scale0.tasks.core.task import QueuedTask, from_store
from scale0.tasks.core.tasks import BrokerTasks
from scale0.tasks.jsonrpc.arguments import DEFAULT_RESULT_SECONDS, MAX_SECONDS, USUAL, NewTaskOptions
from scale0.tasks.jsonrpc.client_methods import own
from scale0.tasks.jsonrpc.messages import CANCELLED_ERROR, error_object

TASK_PREFIX: Final = f"{OWN_IDS}titanic:"
"""Prefix of these tasks' ids; clients may not use it."""
UUID_DIGITS: Final = 32
MAX_ATTEMPTS: Final = 20
"""With the delay doubled each time, this is about a week."""
BACKOFF_SECONDS: Final = 1.0
"""Delay before the second attempt."""
OPTIONS: Final = NewTaskOptions(
    # The request's deadline ends a run; the lease's timeout must never come first.
    timeout=MAX_SECONDS,
    max_attempts=MAX_ATTEMPTS,
    backoff=BACKOFF_SECONDS,
    result_ttl=DEFAULT_RESULT_SECONDS,
)
CLOSED: Final = error_object(CANCELLED_ERROR, "closed by its client")

Row = QueuedTask | OpenTask | EndedTask


class TaskRequestStore:
    def __init__(self, broker: Broker, tasks: BrokerTasks, runs: RequestRuns) -> None:
        self._broker = broker
        self._tasks = tasks
        self._runs = runs

    def keep(self, service: str, bodies: Sequence[bytes], owner: str, now: Now, effects: Effects) -> str | None:
        """Accepts a task, as `client_new_task` does. Without keys all clients of Titanic are one account."""
        state, queue = self._broker.state, self._tasks.queue
        params = pack_frames(bodies)
        if state.full or state.draining or queue.quotas.why_not(account_name(owner, OWN_NAME), len(params), False):
            return None
        uuid = f"{state.rng.getrandbits(4 * UUID_DIGITS):032x}"
        self._runs.expect(service, now, effects)
        method = METHOD_PREFIX + service
        queue.accept(task_ids(uuid)[0], OWN_NAME, owner, method, params, OPTIONS, 0, 0, now, effects)
        return uuid

    def fetch(self, uuid: str, public_key: str, then: Then, now: Now, effects: Effects) -> None:
        """A task in memory has not ended; all others are looked up in the store."""
        ids = task_ids(uuid)
        held = own(self._tasks.backlog.tasks.get(ids[0]), OWN_NAME, public_key)
        if held is not None:
            then(PENDING, (), now, effects)
            return

        def found(rows: tuple[Row | None, ...], later: Now, out: Effects) -> None:
            row, closed = own(rows[0], OWN_NAME, public_key), rows[1]
            then(*outcome(row, closed, lambda ended: self._tasks.queue.is_expired(ended, later)), later, out)

        self._tasks.backlog.find(ids, found, effects)

    def forget(self, uuid: str, public_key: str, then: Then, now: Now, effects: Effects) -> None:
        """Cancels an open task; for an ended one, stores that it was closed."""
        if self._broker.state.full:
            then(FAILED, (), now, effects)
            return

        def found(rows: tuple[Row | None, ...], later: Now, out: Effects) -> None:
            row, closed = own(rows[0], OWN_NAME, public_key), rows[1]
            if isinstance(row, OpenTask) and self._tasks.shared_store is not None:
                self._tasks.client_methods.cancel_row(
                    row, CLOSED, lambda known, at, more: then(DONE if known else FAILED, (), at, more), later, out
                )
                return
            if isinstance(row, EndedTask):
                if closed is None and row.status != CANCELLED:
                    self._close(row, uuid, later, out)
            elif row is not None:
                self._cancel(from_store(row) if isinstance(row, OpenTask) else row, later, out)
            then(DONE, (), later, out)

        self._tasks.backlog.find(task_ids(uuid), found, effects)

    def _cancel(self, task: QueuedTask, now: Now, effects: Effects) -> None:
        task.kept = msgspec.structs.replace(task.kept, result_ttl=0.0)
        self._tasks.leases.cancel(task, now)
        self._tasks.queue.end(task, CANCELLED, CLOSED, CANCELLED_ERROR, now, effects)

    def _close(self, row: EndedTask, uuid: str, now: Now, effects: Effects) -> None:
        """Adds a second task that ends at once: the store deletes ended tasks only when they expire, and this one
        later."""
        id_ = task_ids(uuid)[1]

        def put(at: Now, out: Effects) -> None:
            closing = self._tasks.queue.accept(id_, OWN_NAME, row.owner, TITANIC_CLOSE, b"null", USUAL, 0, 1, at, out)
            self._tasks.queue.end(closing, FINISHED, b"true", None, at, out)

        def reserved(found: SubmissionLookup, _mark: int, at: Now, out: Effects) -> None:
            if found.tasks[0] is None and not found.busy:
                put(at, out)

        # Another close in this turn must read again.
        self._tasks.backlog.touch(row.seq)
        if self._tasks.shared_store is None:
            put(now, effects)
        else:
            # Another broker may be closing it, too.
            self._tasks.backlog.ask(LookUpSubmission(OWN_NAME, (id_,), None, None, id_), reserved, effects)


class TitanicTasks:
    """Forwards the broker's events about backends to the tasks and to the runs."""

    def __init__(self, work: Workload, runs: RequestRuns, quotas: TaskQuotas) -> None:
        self._runs = runs
        self._quotas = quotas
        self._offer, self._feed, self._settle = work.offer, work.feed, work.settle
        # The rest concerns tasks only.
        self.claim, self.lose, self.unsent = work.claim, work.lose, work.unsent
        self.forget, self.tick, self.deadline, self.waits = work.forget, work.tick, work.deadline, work.waits

    def offer(self, backend: Backend, now: Now, effects: Effects) -> None:
        self._offer(backend, now, effects)
        self._runs.offered(sorted(backend.services), now, effects)

    def feed(self, backend: Backend, service: str | None, now: Now, effects: Effects) -> None:
        self._feed(backend, service, now, effects)
        if self._runs.short:
            self._runs.feed(backend)

    def settle(self, now: Now, effects: Effects) -> None:
        """Tasks and stored requests compete for the same slots: the one that got some comes second in the next turn."""
        runs = self._runs
        runs.receive_replies(now, effects)
        first = not runs.took
        if first:
            runs.run(now, effects)
        self._settle(now, effects)
        if not first:
            runs.run(now, effects)
            self._quotas.settle(effects)


def join_titanic(broker: Broker, tasks: BrokerTasks) -> TaskRequestStore:
    """Attaches a request store to a broker that has its tasks already; runs start in the first turn."""
    runs = RequestRuns(broker, tasks)
    tasks.own_room = runs.could_begin
    broker.requests.tasks = TitanicTasks(broker.requests.tasks, runs, tasks.queue.quotas)
    broker.state.timers.add((runs.start, None), 0.0)
    return TaskRequestStore(broker, tasks, runs)


def task_ids(uuid: str) -> tuple[str, str]:
    """Returns the ids of a UUID's task and of the task that marks it as closed.

    Ids are listed and published, and the UUID gives access to the reply; so the ids are made from its digest."""
    digest = hashlib.sha256(uuid.encode()).hexdigest()[:UUID_DIGITS]
    return f"{TASK_PREFIX}{digest}", f"{TASK_PREFIX}{digest}:closed"


def outcome(row: Row | None, closed: Row | None, expired: Callable[[EndedTask], bool]) -> tuple[bytes, Sequence[bytes]]:
    """Returns the status and reply frames that titanic.reply sends for a task."""
    if row is None or closed is not None:
        return UNKNOWN, ()
    if not isinstance(row, EndedTask):
        return PENDING, ()
    if row.status == CANCELLED or expired(row):
        return UNKNOWN, ()
    frames = read_frames(row.result) if row.status == FINISHED else None
    return (FAILED, ()) if frames is None else (DONE, frames)

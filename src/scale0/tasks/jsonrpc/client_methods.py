"""The methods that a task client may call on the frontend socket (PROTOCOL 6). Invariants: only the client that
submitted a task can read or cancel it, and with CURVE only by the same key; the status of a running task is stored
before it is reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from scale0.broker.core.state import BrokerState
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.storage.task_queries import ClaimedTask, LookUpSubmission, SubmissionLookup
from scale0.storage.task_rows import CANCELLED, FINISHED, STATUS_NAMES, EndedTask, OpenTask
from scale0.tasks.core.completion_waits import CompletionWaits, entry
from scale0.tasks.core.fair_reads import PIECE_IDS, FairReads
from scale0.tasks.core.leases import Leases
from scale0.tasks.core.queue import TaskQueue
from scale0.tasks.core.result_reads import ResultReads, StoredResult
from scale0.tasks.core.shared_store import SharedStore, Then
from scale0.tasks.core.submissions import Submissions
from scale0.tasks.core.task import MICRO, QueuedTask, belongs_to, from_store
from scale0.tasks.core.task_clients import TaskClients
from scale0.tasks.jsonrpc.arguments import (
    DEFAULT_WAIT_SECONDS,
    MAX_WAIT_SECONDS,
    ArgumentForm,
    ClientConnect,
    ClientDisconnect,
    OfTask,
    TaskWait,
)
from scale0.tasks.jsonrpc.endpoint import Method, RpcCall, not_stored
from scale0.tasks.jsonrpc.messages import (
    BAD_TASK,
    CANCELLED_ERROR,
    NOT_COMPLETE,
    NOT_STORED,
    RpcError,
    error_object,
    quoted,
)

_connect: Final = ArgumentForm(ClientConnect)
_disconnect: Final = ArgumentForm(ClientDisconnect)
_of_task: Final = ArgumentForm(OfTask)
_wait: Final = ArgumentForm(TaskWait)

Row = QueuedTask | OpenTask | EndedTask
CANCEL_ERROR: Final = error_object(CANCELLED_ERROR, "cancelled by its client")


class ClientMethods:
    def __init__(
        self,
        state: BrokerState,
        queue: TaskQueue,
        leases: Leases,
        clients: TaskClients,
        completion_waits: CompletionWaits,
        submissions: Submissions,
        shared_store: SharedStore | None,
        results: ResultReads,
        reads: FairReads,
    ) -> None:
        self._state = state
        self.queue = queue
        self._leases = leases
        self.clients = clients
        self._completion_waits = completion_waits
        self._submissions = submissions
        self._shared_store = shared_store
        self._results = results
        self.reads = reads

    @property
    def table(self) -> Mapping[str, Method]:
        return {
            "zerotask.broker.client_connect": self.connect,
            "zerotask.broker.client_disconnect": self.disconnect,
            "zerotask.broker.client_new_task": self._submissions.new_task,
            "zerotask.broker.client_task_status": self.status,
            "zerotask.broker.client_task_result": self.result,
            "zerotask.broker.client_task_wait": self.wait,
            "zerotask.broker.client_task_cancel": self.cancel,
        }

    def connect(self, call: RpcCall, now: Now, effects: Effects) -> None:
        args = _connect.read(call.params)
        self._check_room()
        client_id = args.client_id
        if (
            client_id is None
            or not call.connection.user_id
            or self.clients.check(call.connection, client_id, now, effects)
        ):
            call.answer(quoted(self.clients.connect(call.connection, client_id, now, effects)), effects)
            return

        def answered(found: SubmissionLookup, _mark: int, later: Now, out: Effects) -> None:
            """With CURVE, the store knows which key owns the id."""
            if call.is_answered:
                return  # refused, because the database did not answer
            try:
                if found.client is not None:
                    self.clients.learn(call.connection, found.client, client_id, later, out)
                call.answer(quoted(self.clients.connect(call.connection, client_id, later, out)), out)
            except RpcError as error:
                call.refuse(error.code, error.message, out, error.data)

        sender = call.connection.account
        self.reads.check(sender, 1)
        self.reads.ask(sender, LookUpSubmission(client_id, (), None, None), 1, answered, effects)

    def disconnect(self, call: RpcCall, now: Now, effects: Effects) -> None:
        args = _disconnect.read(call.params)
        self._check_room()

        def known(_: list[Row | None], _now: Now, out: Effects) -> None:
            self.clients.disconnect(call.connection, args.client_id, out)
            call.answer(b"true", out)

        self._look_up(call, args.client_id, (), known, now, effects)

    def status(self, call: RpcCall, now: Now, effects: Effects) -> None:
        args = _of_task.read(call.params)

        def found(rows: list[Row | None], _now: Now, out: Effects) -> None:
            row = the_one(rows, args.task_id)
            if isinstance(row, QueuedTask):
                self._leases.save(row, out)
            status = status_of(row)
            call.need_room(len(status))
            call.answer(status, out)

        self._look_up(call, args.client_id, (args.task_id,), found, now, effects)

    def result(self, call: RpcCall, now: Now, effects: Effects) -> None:
        self._result(call, _of_task.read(call.params), now, effects)

    def _result(self, call: RpcCall, args: OfTask, now: Now, effects: Effects) -> None:
        call.need_room()

        def found(rows: list[Row | None], _now: Now, out: Effects) -> None:
            row = the_one(rows, args.task_id)
            if not isinstance(row, EndedTask):
                if isinstance(row, QueuedTask):
                    self._leases.save(row, out)
                name = STATUS_NAMES[row.status]
                data = b'{"status":"%b"}' % name.encode()
                raise RpcError(NOT_COMPLETE, f"the task {row.id} is {name}", data)
            call.need_room()
            self._results.ask((row.seq,), read, out)

        def read(results: Sequence[StoredResult], later: Now, out: Effects) -> None:
            try:
                if results[0] is None:  # it was opened again, or has expired
                    self._result(call, args, later, out)
                    return
                status, body = results[0]
                call.need_room(len(body))
            except RpcError as error:
                call.refuse(error.code, error.message, out, error.data)
                return
            if status == FINISHED:
                call.answer(body, out)
            else:
                call.fail(body, out)

        self._look_up(call, args.client_id, (args.task_id,), found, now, effects)

    def cancel(self, call: RpcCall, now: Now, effects: Effects) -> None:
        args = _of_task.read(call.params)
        self._check_room()

        def ended(known: bool, _now: Now, out: Effects) -> None:
            if known:
                call.answer(b"true", out)
            else:
                call.refuse(NOT_STORED, "the broker that holds the task has not answered: try again", out)

        def found(rows: list[Row | None], later: Now, out: Effects) -> None:
            self.cancel_row(the_one(rows, args.task_id), CANCEL_ERROR, ended, later, out)

        self._look_up(call, args.client_id, (args.task_id,), found, now, effects)

    def cancel_row(self, row: Row, error: bytes, then: Then, now: Now, effects: Effects) -> None:
        """Ends a task unless it has ended; calls `then` with whether it has ended and cannot begin any more."""
        if isinstance(row, OpenTask) and self._shared_store is not None:
            self._take_and_cancel(self._shared_store, row.id, error, then, effects)
            return
        if not isinstance(row, EndedTask):
            self._cancel(row, error, now, effects)
        self._leases.reclaim.when_confirmed(row.id, then, now, effects)

    def _take_and_cancel(self, shared_store: SharedStore, id_: str, error: bytes, then: Then, effects: Effects) -> None:
        """A broker may end a task of a shared store only while it holds it."""

        def taken(found: tuple[ClaimedTask, ...], now: Now, out: Effects) -> None:
            row, where = self.queue.backlog.tasks.get(id_) or found[0].task, found[0].holder
            if isinstance(row, OpenTask) and where:
                shared_store.end_elsewhere(id_, where, error, then, now, out)
                return
            if isinstance(row, QueuedTask | OpenTask):
                self._cancel(row, error, now, out)
            self._leases.reclaim.when_confirmed(id_, then, now, out)

        self.queue.backlog.claim((id_,), taken, effects)

    def _cancel(self, row: QueuedTask | OpenTask, error: bytes, now: Now, effects: Effects) -> None:
        task = from_store(row) if isinstance(row, OpenTask) else row
        self._leases.cancel(task, now)
        self.queue.end(task, CANCELLED, error, CANCELLED_ERROR, now, effects)

    def wait(self, call: RpcCall, now: Now, effects: Effects) -> None:
        """Returns the completed ones of some tasks, as soon as there is one."""
        args = _wait.read(call.params)
        timeout = DEFAULT_WAIT_SECONDS if args.timeout is None else min(args.timeout, MAX_WAIT_SECONDS)
        if call.in_batch:
            timeout = 0.0
        call.need_room()
        ids = tuple(dict.fromkeys(args.task_ids))
        call.connection.account.charge_rows(found=len(ids) - 1)
        wait = self._completion_waits.wait(call.connection, ids, partial(answer_wait, call), call.id_bytes)
        ended: list[EndedTask] = []

        def found(rows: list[Row | None], later: Now, out: Effects) -> None:
            for id_, row in zip(ids, rows, strict=True):
                if row is None:
                    self._completion_waits.drop(wait)
                    raise RpcError(BAD_TASK, f"unknown task {id_}")
                if isinstance(row, EndedTask):
                    ended.append(row)
            if ended:
                self._results.ask(tuple(row.seq for row in ended), read, out)
            else:
                self._completion_waits.begin(wait, timeout, later, out)

        def read(results: Sequence[StoredResult], later: Now, out: Effects) -> None:
            for row, result in zip(ended, results, strict=False):
                if result is not None:
                    wait.complete[row.id] = entry(row.id, *result)
            wait.more = len(results) < len(ended) or None in results
            self._completion_waits.begin(wait, 0.0, later, out)

        try:
            self._look_up(call, args.client_id, ids, found, now, effects, lambda: self._completion_waits.drop(wait))
        except RpcError:
            self._completion_waits.drop(wait)
            raise

    def _check_room(self) -> None:
        if self._state.full:
            raise not_stored(self._state)

    def _look_up(
        self,
        call: RpcCall,
        client_id: str,
        ids: tuple[str, ...],
        then: Callable[[list[Row | None], Now, Effects], None],
        now: Now,
        effects: Effects,
        dropped: Callable[[], Any] = lambda: None,
    ) -> None:
        """Reads a client's tasks by id: from memory if all are there, otherwise from the store."""
        backlog = self.queue.backlog
        tasks, key = backlog.tasks, call.connection.public_key
        if self.clients.check(call.connection, client_id, now, effects) and all(id_ in tasks for id_ in ids):
            then([own(tasks[id_], client_id, key) for id_ in ids], now, effects)
            return

        self.reads.check(call.connection.account, len(ids), call.id_bytes)
        LookUp(self, call, client_id, ids, then, dropped).ask(effects)


class LookUp:
    """Reads the tasks of one call from the store, in pieces. Bound methods, because closures that name each other are
    cycles, and a flood of calls would leave them to the cycle collector."""

    __slots__ = ("_call", "_client_id", "_dropped", "_ids", "_methods", "_rows", "_then")

    def __init__(
        self,
        methods: ClientMethods,
        call: RpcCall,
        client_id: str,
        ids: tuple[str, ...],
        then: Callable[[list[Row | None], Now, Effects], None],
        dropped: Callable[[], Any],
    ) -> None:
        self._methods = methods
        self._call = call
        self._client_id = client_id
        self._ids = ids
        self._then = then
        self._dropped = dropped
        self._rows: list[OpenTask | EndedTask | None] = []

    def ask(self, effects: Effects) -> None:
        piece = self._ids[len(self._rows) : len(self._rows) + PIECE_IDS]
        query = LookUpSubmission(self._client_id, piece, None, None)
        sender, size = self._call.connection.account, self._call.id_bytes
        self._methods.reads.ask(sender, query, len(piece) + 1, self._answered, effects, size)

    def _answered(self, found: SubmissionLookup, mark: int, now: Now, effects: Effects) -> None:
        call, backlog = self._call, self._methods.queue.backlog
        tasks = backlog.tasks
        if call.is_answered:
            self._dropped()  # refused, because the database did not answer
            return
        if any(row is not None and row.id not in tasks and backlog.is_stale(row.seq, mark) for row in found.tasks):
            self.ask(effects)
            return
        self._rows.extend(found.tasks)
        if len(self._rows) < len(self._ids):
            self.ask(effects)
            return
        try:
            self._methods.clients.learn(call.connection, found.client, self._client_id, now, effects)
            self._then(self._current(now), now, effects)
        except RpcError as error:
            self._dropped()
            call.refuse(error.code, error.message, effects, error.data)

    def _current(self, now: Now) -> list[Row | None]:
        """The tasks that belong to the client and have not expired; those in memory as they are there."""
        tasks, key = self._methods.queue.backlog.tasks, self._call.connection.public_key
        expired = self._methods.queue.is_expired
        rows = zip(self._ids, self._rows, strict=True)
        held = [own(tasks.get(id_) or row, self._client_id, key) for id_, row in rows]
        return [None if isinstance(row, EndedTask) and expired(row, now) else row for row in held]


def answer_wait(call: RpcCall, ends: list[bytes], more: bool, _now: Now, effects: Effects) -> None:
    """Answers a wait with the ends that fit; the first one must."""
    fitting = [end for end in ends if call.has_room(len(end) + 1)]
    if ends and not fitting:
        try:
            call.need_room()
        except RpcError as error:
            call.refuse(error.code, error.message, effects)
        return
    call.answer(b"[%b]" % b",".join(fitting), effects, more or len(fitting) < len(ends))


def own(row: Row | None, client_id: str, public_key: str) -> Row | None:
    """Returns the task if it belongs to this client and to its key."""
    return row if row is not None and row.client == client_id and belongs_to(row.owner, public_key) else None


def the_one(rows: list[Row | None], id_: str) -> Row:
    row = rows[0]
    if row is None:
        raise RpcError(BAD_TASK, f"unknown task {id_}")
    return row


def status_of(row: Row) -> bytes:
    ended = isinstance(row, EndedTask)
    return b'{"task_id":"%b","status":"%b","code":%d,"attempt":%d,"node_id":%b,%b,"info":%b}' % (
        row.id.encode(),
        STATUS_NAMES[row.status].encode(),
        row.status,
        row.attempt,
        quoted(row.node) if row.node else b"null",
        b'"submitted":%a,"started":%b,"finished":%b'
        % (
            row.submitted_us / MICRO,
            b"%a" % (row.started_us / MICRO) if row.started_us else b"null",
            b"%a" % (row.ended_us / MICRO) if isinstance(row, EndedTask) and ended else b"null",
        ),
        row.info or b"{}",
    )

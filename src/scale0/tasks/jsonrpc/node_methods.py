"""The methods that a task node may call on the backend socket (PROTOCOL 6); `node_reports` decodes its reports. The
short forms take the node from the connection. Invariant: a result is accepted only from the node that holds the newest
attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from scale0.broker.core.connections import Connection
from scale0.broker.core.permissions import TAKE
from scale0.broker.core.scheduler import Backend
from scale0.broker.core.state import BrokerState
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.errors import Refusal
from scale0.kernel.names import is_identity, is_reserved, made_for
from scale0.storage.task_queries import ClaimedTask
from scale0.storage.task_rows import FINISHED, QUEUED, EndedTask, OpenTask
from scale0.tasks.core.broker_adapter import BrokerAdapter
from scale0.tasks.core.fair_reads import FairReads
from scale0.tasks.core.leases import Leases
from scale0.tasks.core.node_reports import (
    FINAL,
    MAX_STATUS_BYTES,
    MAX_STATUS_TEXT_BYTES,
    NodeReport,
    late,
    read_any,
    read_error,
    read_status,
)
from scale0.tasks.core.queue import TaskQueue
from scale0.tasks.core.result_reads import ResultReads, StoredResult
from scale0.tasks.core.stored_backlog import MAX_LOOKS
from scale0.tasks.core.task import QueuedTask, from_store
from scale0.tasks.jsonrpc.arguments import (
    MAX_NODE_METHODS,
    MAX_PULL,
    ArgumentForm,
    NodeConnect,
    NodeHeartbeat,
    NodeStatus,
    NodeTaskFailed,
    OfNode,
    ShortNodeTaskFailed,
    ShortTaskFinished,
    ShortTaskRequest,
    TaskFinished,
    TaskRequest,
    TasksRequest,
    TwoArgumentForms,
)
from scale0.tasks.jsonrpc.endpoint import NO_PARAMS, Method, RpcCall, not_stored
from scale0.tasks.jsonrpc.messages import (
    BAD_NODE,
    BAD_TASK,
    DAMAGED,
    INVALID_PARAMS,
    NO_ROOM,
    NOT_PERMITTED,
    NOT_STORED,
    NOT_YOURS,
    RATE_LIMITED,
    RpcError,
    quoted,
)

FETCH_SECONDS: Final = 0.25
MAX_FETCHES: Final = 60
"""Interval and number of retries while a result waits for its lease from another broker of a shared store."""

METHODS_OF_A_REQUEST: Final = 30
"""To look for the tasks of so many methods costs as much as a request."""

_connect: Final = ArgumentForm(NodeConnect)
_of_node: Final = ArgumentForm(OfNode)
_heartbeat: Final = ArgumentForm(NodeHeartbeat)
_status: Final = ArgumentForm(NodeStatus)
_request: Final = TwoArgumentForms(ShortTaskRequest, TaskRequest)
_requests: Final = ArgumentForm(TasksRequest)
_finished: Final = TwoArgumentForms(ShortTaskFinished, TaskFinished)
_failed: Final = TwoArgumentForms(ShortNodeTaskFailed, NodeTaskFailed)


class WaitingResult:
    """A result that waits for its lease."""

    __slots__ = ("args", "call", "report", "tries")

    def __init__(self, call: RpcCall, args: Any, report: NodeReport, tries: int) -> None:
        """`args`: without the result."""
        self.call = call
        self.args = args
        self.report = report
        self.tries = tries


class NodeMethods:
    def __init__(
        self,
        state: BrokerState,
        adapter: BrokerAdapter,
        queue: TaskQueue,
        leases: Leases,
        results: ResultReads,
        reads: FairReads,
    ) -> None:
        self._state = state
        self._adapter = adapter
        self._queue = queue
        self._leases = leases
        self._results = results
        self._reads = reads

    @property
    def table(self) -> Mapping[str, Method]:
        return {
            "zerotask.broker.node_connect": self.connect,
            "zerotask.broker.node_heartbeat": self.heartbeat,
            "zerotask.broker.node_status": self.status,
            "zerotask.broker.node_disconnect": self.disconnect,
            "zerotask.broker.node_task_request": self.task_request,
            "zerotask.broker.node_tasks_request": self.tasks_request,
            "zerotask.broker.task_status": self.task_status,
            "zerotask.broker.node_task_finished": self.finished,
            "zerotask.broker.node_task_failed": self.failed,
        }

    def connect(self, call: RpcCall, now: Now, effects: Effects) -> None:
        args = _connect.read(call.params)
        node_id = args.node_id
        if node_id is None:
            held = self._adapter.backend_of(call.connection)
            made = made_for(call.connection.sender, f"node-{self._state.rng.getrandbits(64):016x}")
            node_id = held.identity if held is not None else made
        elif not is_identity(node_id):
            raise RpcError(BAD_NODE, "a node id is 1 to 128 characters of A-Z a-z 0-9 . _ : -")
        methods = args.methods or []
        if len(methods) > MAX_NODE_METHODS or not all(map(self._adapter.is_service, methods)):
            raise RpcError(INVALID_PARAMS, f"methods are at most {MAX_NODE_METHODS} printable names")
        try:
            self._adapter.check_changes(call.connection, methods, now)
        except Refusal as refusal:
            raise RpcError(RATE_LIMITED, refusal.message) from refusal
        for method in methods:
            if reason := self._adapter.why_not(call.connection, TAKE, method, now, effects):
                raise RpcError(NOT_PERMITTED, reason)
        other = self._adapter.node(node_id)
        if other is not None and other[1] is not call.connection and (other[0].pushes or self._is_used(other[1], now)):
            raise RpcError(BAD_NODE, f"{node_id} is in use by another connection")
        try:
            backend = self._adapter.register(call.connection, node_id, methods, now, effects)
        except Refusal as refusal:
            raise RpcError(BAD_NODE, refusal.message) from refusal
        self._leases.claim(backend, None, now, effects)
        self._leases.offer(backend, now, effects)
        call.answer(quoted(node_id), effects)

    def heartbeat(self, call: RpcCall, now: Now, effects: Effects) -> None:
        args = _heartbeat.read(call.params)
        backend = self._node(call, args.node_id, now, effects)
        self._adapter.heartbeat(call.connection, now)
        if args.holds is not None:
            self._check_room()
            self._leases.unreceived(backend, dict(args.holds), now, effects)
        call.answer(b"true", effects, unstored=self._state.outage is not None)

    def status(self, call: RpcCall, now: Now, effects: Effects) -> None:
        self._check_status(call)
        args = _status.read(call.params)
        self._node(call, args.node_id, now, effects)
        encoded = msgspec.json.encode(read_any(args.status))
        if len(encoded) > MAX_STATUS_BYTES:
            raise RpcError(INVALID_PARAMS, f"a status is at most {MAX_STATUS_BYTES} bytes")
        try:
            self._adapter.set_status(call.connection, encoded)
        except Refusal as refusal:
            raise RpcError(RATE_LIMITED, refusal.message) from refusal
        call.answer(b"true", effects, unstored=self._state.outage is not None)

    def disconnect(self, call: RpcCall, now: Now, effects: Effects) -> None:
        """Disconnects a node; its tasks are queued again."""
        self._node(call, _of_node.read(call.params).node_id, now, effects)
        self._adapter.remove(call.connection, now, effects)
        call.answer(b"true", effects)

    def task_request(self, call: RpcCall, now: Now, effects: Effects) -> None:
        args = _request.read(call.params)
        self._check_room()
        self._node(call, getattr(args, "node_id", None), now, effects)

        def found(rows: tuple[Any, ...], later: Now, out: Effects, has_room: bool = False) -> None:
            row = rows[0]
            backend = self._adapter.backend_of(call.connection)
            if call.is_answered:
                return  # refused, because the database did not answer
            if backend is None:
                call.refuse(BAD_NODE, "this connection has no node any more", out)
            elif row is None or isinstance(row, EndedTask) or is_reserved(row.method):
                call.refuse(BAD_TASK, f"unknown or complete task {args.task_id}", out)
            elif reason := self._adapter.why_not(call.connection, TAKE, row.method, later, out):
                call.refuse(NOT_PERMITTED, reason, out)
            elif row.status != QUEUED or not self._may_pull(backend) or self._queue.at_limit(row.method):
                call.answer(b"{}", out)
            elif not has_room and not reserve(call, row, out):
                return
            elif isinstance(row, OpenTask) and self._queue.shared is not None:
                self._take_and_pull(call, row.id, out)
            elif has_room or isinstance(row, QueuedTask):
                self._pull_one(call, row, backend, later, out)
            else:
                sender = call.connection.account
                self._reads.find(sender, (row.id,), partial(found, has_room=True), out, brief=False)

        # The params are read only if the answer has room for them.
        self._find(call, args.task_id, found, now, effects, call.kept_bytes)

    def _may_pull(self, backend: Backend) -> bool:
        return not self._leases.is_closed and self._leases.pull_room(backend) > 0

    def _take_and_pull(self, call: RpcCall, id_: str, effects: Effects) -> None:
        """A broker may hand out a task of a shared store only while it holds it."""

        def taken(found: tuple[ClaimedTask, ...], now: Now, out: Effects) -> None:
            row, theirs = self._queue.backlog.tasks.get(id_) or found[0].task, bool(found[0].holder)
            backend = self._adapter.backend_of(call.connection)
            if not isinstance(row, QueuedTask) and (not isinstance(row, OpenTask) or theirs):
                call.answer(b"{}", out)
            elif row.status != QUEUED or backend is None or not self._may_pull(backend) or call.is_answered:
                if isinstance(row, OpenTask):
                    self._queue.put_down(row, now, out)
                call.answer(b"{}", out)
            else:
                self._pull_one(call, row, backend, now, out)

        self._queue.backlog.claim((id_,), taken, effects)

    def _pull_one(
        self, call: RpcCall, row: QueuedTask | OpenTask, backend: Backend, now: Now, effects: Effects
    ) -> None:
        """Hands out a task; its answer has room for it."""
        task = self._take_out(row)
        if not self._leases.pull(task, backend, now, effects):
            call.refuse(DAMAGED, f"the stored params of {task.id} are damaged: the task has failed", effects)
            return
        call.on_sent(partial(set_answered, task, task.attempt))
        call.answer(task_json(task), effects)
        task.drop_params()

    def _take_out(self, row: QueuedTask | OpenTask) -> QueuedTask:
        """Removes a queued task from its queue."""
        if isinstance(row, OpenTask):
            return from_store(row)
        self._queue.method_queues.withdraw(row)
        return row

    def tasks_request(self, call: RpcCall, now: Now, effects: Effects) -> None:
        args = _requests.read(call.params)
        self._check_room()
        backend = self._node(call, args.node_id, now, effects)
        if args.holds is not None:
            self._leases.unreceived(backend, dict(args.holds), now, effects)
        call.connection.account.charge_rows(found=len(backend.services) // METHODS_OF_A_REQUEST)
        limit = min(MAX_PULL if args.limit is None else args.limit, MAX_PULL, max(0, self._leases.pull_room(backend)))
        needed = [self._queue.method_queues.need(method, now, effects) for method in sorted(backend.services)]
        if self._queue.window is not None and limit:
            self._queue.window.claim(
                [method_queue for method_queue in needed if method_queue.head() is None], limit, effects
            )
        self._pull(call, limit, MAX_LOOKS, now, effects)

    def _pull(self, call: RpcCall, limit: int, looks: int, now: Now, effects: Effects) -> None:
        if call.is_answered:
            return  # refused, because the database did not answer
        backend = self._adapter.backend_of(call.connection)
        method_queues = [
            method_queue
            for method_queue in map(self._queue.method_queues.find, taken_methods(backend))
            if method_queue is not None
        ]
        for method_queue in method_queues:
            self._queue.method_queues.top_up(method_queue, effects)
        if looks and any(not method_queue.known or method_queue.is_loading for method_queue in method_queues):
            # The queue is being read from the store: answer after that.
            self._queue.backlog.find((), lambda _, at, out: self._pull(call, limit, looks - 1, at, out), effects)
            return
        taken: list[bytes] = []
        waiting = self._queue.method_queues
        heads = waiting.heads(taken_methods(backend)) if not self._leases.is_closed else []
        limit = 0 if backend is None else min(limit, self._leases.pull_room(backend))  # other calls pulled meanwhile
        while backend is not None and heads and len(taken) < limit:
            first = waiting.need(heads[0][2], now, effects)
            head = first.head()
            if head is not None and not call.has_room(len(head.params)):
                if taken:
                    break
                call.refuse(NO_ROOM, "the answer of this array has no room for another task: repeat this call", effects)
                return
            for task in waiting.take(first, 1, effects):
                if self._leases.pull(task, backend, now, effects):
                    call.on_sent(partial(set_answered, task, task.attempt))
                    taken.append(task_json(task))
                    task.drop_params()
            waiting.renew_first(heads)
        call.answer(b"[%b]" % b",".join(taken), effects)

    def task_status(self, call: RpcCall, now: Now, effects: Effects) -> None:
        self._check_status(call)
        fields = read_status(call.params)
        backend = self._node(call, fields.pop("node_id"), now, effects)
        id_, status = fields.pop("task_id"), fields["status"]
        if status in FINAL:
            raise RpcError(INVALID_PARAMS, f"{status} is reported with node_task_finished or node_task_failed")
        task = backend.tasks.get(id_)
        if task is None:
            raise RpcError(BAD_TASK, f"this node does not have the task {id_}")
        info = msgspec.json.encode(fields)
        if len(info) > MAX_STATUS_BYTES or not self._adapter.is_shallow(info):
            raise RpcError(INVALID_PARAMS, f"a status is at most {MAX_STATUS_BYTES} bytes, and not too deep")
        self._leases.begun(task, info, now, effects)
        self._leases.save(task, effects)
        call.answer(b"true", effects)

    def finished(self, call: RpcCall, now: Now, effects: Effects) -> None:
        args = _finished.read(call.params)
        result, args.task_result = bytes(args.task_result), NO_PARAMS
        if not self._adapter.is_shallow(result):
            raise RpcError(INVALID_PARAMS, f"a result nests at most {self._state.limits.max_json_depth} deep")
        self._end(call, args, NodeReport(FINISHED, result), 0, now, effects)

    def failed(self, call: RpcCall, now: Now, effects: Effects) -> None:
        args = _failed.read(call.params)
        error, args.error = bytes(args.error), NO_PARAMS
        self._end(call, args, read_error(error, self._adapter), 0, now, effects)

    def _end(self, call: RpcCall, args: Any, report: NodeReport, tries: int, now: Now, effects: Effects) -> None:
        self._check_room()
        backend = self._node(call, getattr(args, "node_id", None), now, effects)
        attempt = getattr(args, "attempt", None)
        account, size = call.connection.account, len(report.body) + call.kept_bytes
        task = backend.tasks.get(args.task_id)
        if task is not None and (attempt is None or attempt == task.attempt):
            self._leases.end(task, report, now, effects)
            call.answer(b"true", effects)
            return

        def refuse(code: int, message: str, later: Now, out: Effects) -> None:
            self._adapter.refuse_result(call.connection, backend.identity, args.task_id, attempt, code, later, out)
            call.refuse(code, f"{message}: {args.task_id[:128]}", out)

        def compare(results: Sequence[StoredResult], later: Now, out: Effects) -> None:
            if report.is_stored_as(results[0]):
                call.answer(b"true", out)
            else:
                refuse(NOT_YOURS, "the task has ended with another result", later, out)
            self._reads.let_go(account, 1, size)

        def found(rows: tuple[Any, ...], later: Now, out: Effects) -> None:
            held = backend.tasks.get(args.task_id)
            if held is not None and (attempt is None or attempt == held.attempt):
                # Meanwhile this broker took the lease over from another broker of the shared store.
                self._leases.end(held, report, later, out)
                call.answer(b"true", out)
                return
            if tries < MAX_FETCHES and self._leases.fetch(rows[0], backend, attempt, later, out):
                again = WaitingResult(call, args, report, tries + 1)
                self._reads.hold(account, 1, size)
                self._state.timers.add((self._end_again, again), later.mono + FETCH_SECONDS)
                return
            code = late(rows[0], backend, attempt)
            if code:
                refuse(code, "unknown task" if code == BAD_TASK else "another attempt owns the task", later, out)
            else:
                self._reads.hold(account, 1, size)
                self._results.ask((rows[0].seq,), compare, out)

        # A node sends a result again after this code, and forgets it after another one.
        self._find(call, args.task_id, found, now, effects, size, NOT_STORED)

    def _end_again(self, again: WaitingResult, now: Now, effects: Effects) -> None:
        self._reads.let_go(again.call.connection.account, 1, len(again.report.body) + again.call.kept_bytes)
        try:
            self._end(again.call, again.args, again.report, again.tries, now, effects)
        except RpcError as error:
            again.call.refuse(error.code, error.message, effects, error.data)

    def _find(
        self, call: RpcCall, id_: str, found: Any, now: Now, effects: Effects, size: int, busy: int = RATE_LIMITED
    ) -> None:
        """Looks up a task, without params and result if it is not in memory; raises RpcError with the code `busy` if
        too much of this sender's waits already. `size`: bytes that are kept until then."""
        task = self._queue.backlog.tasks.get(id_)
        if task is not None:
            found((task,), now, effects)
            return
        sender = call.connection.account
        self._reads.check(sender, 1, size, busy)
        # Also of a result, which the rate limit never refuses.
        sender.charge_rows(found=1)
        self._reads.find(sender, (id_,), found, effects, size)

    def _node(self, call: RpcCall, node_id: str | None, now: Now, effects: Effects) -> Backend:
        """Returns the calling node; raises RpcError if it is not registered."""
        own = self._adapter.backend_of(call.connection)
        if own is not None and (node_id is None or own.identity == node_id):
            return own
        if node_id is None:
            raise RpcError(BAD_NODE, "this connection has not registered as a node: call node_connect first")
        if own is not None:
            raise RpcError(BAD_NODE, f"this connection is the node {own.identity}")
        other = self._adapter.node(node_id)
        if other is None:
            raise RpcError(BAD_NODE, f"unknown node {node_id[:128]}: call node_connect first")
        if other[0].pushes or self._is_used(other[1], now):
            raise RpcError(BAD_NODE, f"{node_id} is in use by another connection")
        try:
            self._adapter.rebind(call.connection, node_id, now, effects)
        except Refusal as refusal:
            raise RpcError(BAD_NODE, refusal.message) from refusal
        return other[0]

    def _is_used(self, connection: Connection, now: Now) -> bool:
        return now.mono - self._adapter.last_received(connection) <= self._state.interval

    def _check_status(self, call: RpcCall) -> None:
        """Before the params are decoded: what nests deeper may be too deep to be encoded again."""
        if len(memoryview(call.params)) > MAX_STATUS_TEXT_BYTES:
            raise RpcError(INVALID_PARAMS, f"a status is at most {MAX_STATUS_BYTES} bytes")
        if not self._adapter.is_shallow(bytes(call.params), around=1):
            raise RpcError(INVALID_PARAMS, f"a status nests at most {self._state.limits.max_json_depth} deep")

    def _check_room(self) -> None:
        if self._state.full:
            raise not_stored(self._state)


def reserve(call: RpcCall, row: QueuedTask | OpenTask, effects: Effects) -> bool:
    """Reserves room for the params of a task; False, and the call is refused, if the answer has none."""
    try:
        call.need_room(row.size if isinstance(row, OpenTask) else len(row.params))
    except RpcError as error:
        call.refuse(error.code, error.message, effects)
        return False
    return True


def set_answered(task: QueuedTask, attempt: int) -> None:
    task.answered = attempt


def task_json(task: QueuedTask) -> bytes:
    return b'{"method":%b,"params":%b,"id":"%b","attempt":%d}' % (
        quoted(task.method),
        task.params,
        task.id.encode(),
        task.attempt,
    )


def taken_methods(backend: Backend | None) -> frozenset[str]:
    """The methods whose tasks a node gets: those that it has registered, and that its key may take."""
    return frozenset() if backend is None else backend.services - backend.untaken

"""Submissions: validates `client_new_task` and accepts or refuses the task. An id `<series>.<counter>` (a growing
counter of 12 characters) whose counter is larger than any before in its series is new, which saves the lookup; any
other id is looked up in the store first. Invariants: an id is accepted once; a repeated key returns the first task's id
if method and params are the same; nothing is stored for a refused submission."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any, Final

import msgspec

from scale0.broker.core.connections import Connection
from scale0.broker.core.permissions import SUBMIT
from scale0.broker.core.state import BrokerState
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.names import is_identity, is_reserved
from scale0.storage.task_queries import LookUpSubmission, SubmissionLookup
from scale0.storage.task_rows import (
    FAILED,
    FINISHED,
    STATUS_NAMES,
    EndedTask,
    FreeReservation,
    OpenTask,
    PutDependency,
    account_name,
)
from scale0.tasks.core.broker_adapter import BrokerAdapter
from scale0.tasks.core.completion_waits import CompletionWaits
from scale0.tasks.core.fair_reads import FairReads
from scale0.tasks.core.queue import OWN_IDS, TaskQueue
from scale0.tasks.core.task import QueuedTask, belongs_to, digest_of, from_store, read_kept
from scale0.tasks.core.task_clients import TaskClients
from scale0.tasks.jsonrpc.arguments import ArgumentForm, NewTask, NewTaskOptions, read_options
from scale0.tasks.jsonrpc.endpoint import NO_PARAMS, RpcCall, not_stored
from scale0.tasks.jsonrpc.messages import (
    AFTER_FAILED,
    BAD_INPUT,
    BAD_TASK,
    INVALID_PARAMS,
    NOT_PERMITTED,
    NOT_SERVING,
    NOT_STORED,
    QUEUE_FULL,
    TOO_BIG,
    RpcError,
    error_object,
    key_conflict,
    quoted,
)

COUNTER_CHARS: Final = 12
"""Length of the counter after the last dot of an id."""
MAX_SERIES: Final = 100_000
"""Series that are remembered."""
AGAIN_SECONDS: Final = 0.02
BUSY_SECONDS: Final = 5.0
"""Retry interval and time limit while another broker is accepting the same submission."""
ROOM_BYTES: Final = 4_096
"""Space for the other fields in a message with a task's params."""

_form: Final = ArgumentForm(NewTask)


def is_plain(counter: str) -> bool:
    return counter.isascii() and counter.isalnum()


def check_same(new: NewSubmission, first: OpenTask | EndedTask) -> None:
    """Raises RpcError if the first task of a key has another method or other params."""
    digest = read_kept(first.options).digest
    if not digest:
        return  # stored by a version that did not compare
    differs = ["method"] if first.method != new.args.method else []
    if digest != digest_of(new.params):
        differs.append("params")
    if differs:
        raise key_conflict(new.options.key or "", first.id, differs)


class NewSubmission:
    """A submission that needs a lookup in the store."""

    __slots__ = ("after", "args", "call", "keyed", "options", "owner", "params", "until")

    def __init__(self, call: RpcCall, args: Any, params: bytes, options: NewTaskOptions) -> None:
        self.call = call
        self.args = args
        self.params = params
        args.params = NO_PARAMS  # a second copy
        self.options = options
        self.after = tuple(dict.fromkeys(options.after))
        self.owner: str = call.connection.public_key
        self.keyed = None if options.key is None else (args.client_id, options.key, self.owner)
        """Client, key and owner: while a task has these, it is the answer."""
        self.until = 0.0
        """When retries end while another broker is accepting the same submission; 0: not tried yet."""

    @property
    def size(self) -> int:
        """Bytes that are kept until it is decided."""
        return len(self.params) + self.call.id_bytes


class Submissions:
    def __init__(
        self,
        state: BrokerState,
        adapter: BrokerAdapter,
        queue: TaskQueue,
        clients: TaskClients,
        completion_waits: CompletionWaits,
        reads: FairReads,
    ) -> None:
        self._state = state
        self._adapter = adapter
        self._queue = queue
        self._reads = reads
        self._clients = clients
        self._completion_waits = completion_waits
        self._series: OrderedDict[str, str] = OrderedDict()
        """The largest counter of each series."""
        self._claimed: dict[str, list[NewSubmission]] = {}
        """Ids that are being looked up, and later submissions with the same id."""
        self._keys: dict[tuple[str, str, str], list[NewSubmission]] = {}
        """Keys that are being looked up, and later submissions with the same key."""

    def new_task(self, call: RpcCall, now: Now, effects: Effects) -> None:
        args = _form.read(call.params)
        state = self._state
        options = read_options(args.options, state.limits.max_options_bytes)
        params = bytes(args.params)
        self._check_params(params)
        if options.key is None:
            self._check_room(call.connection, args.client_id, params, options)
        unknown = self._queue.method_queues.find(args.method) is None
        if is_reserved(args.method) or (unknown and not self._adapter.is_service(args.method)):
            raise RpcError(INVALID_PARAMS, f"a method's name is 1 to {state.limits.max_service_bytes} printable bytes")
        reason = self._adapter.why_not(call.connection, SUBMIT, args.method, now, effects)
        if reason:
            raise RpcError(NOT_PERMITTED, reason)
        known = self._clients.check(call.connection, args.client_id, now, effects)
        id_ = args.task_id
        if not known or options.key is not None or options.after or not (id_ is None or self._is_new(id_)):
            if id_ is not None and (not is_identity(id_) or id_.startswith(OWN_IDS)):
                raise RpcError(BAD_TASK, f"a task id is 1 to 128 characters of A-Z a-z 0-9 . _ : -, not from {OWN_IDS}")
            call.connection.account.charge_rows(found=len(options.after))
            new = NewSubmission(call, args, params, options)
            self._reads.check(call.connection.account, len(options.after) + 1, new.size)
            self._reads.hold(call.connection.account, 0, new.size)
            self._look_up(new, effects)
            return
        task = self._accept(id_, args, params, options, 0, call.connection, now, effects)
        call.answer(b'"%b"' % task.id.encode(), effects)

    def _check_room(self, connection: Connection, client_id: str, params: bytes, options: NewTaskOptions) -> None:
        state = self._state
        if state.full:
            raise not_stored(state)
        account = account_name(connection.public_key, client_id)
        delayed = bool(options.delay or options.at or options.after)
        reason = self._queue.quotas.why_not(account, len(params), delayed)
        if reason:
            raise RpcError(QUEUE_FULL, reason)
        if state.draining:
            raise RpcError(NOT_SERVING, "this broker is draining: submit to another")

    def _check_params(self, params: bytes) -> None:
        limits = self._state.limits
        if len(params) > limits.max_message_bytes - ROOM_BYTES:
            raise RpcError(TOO_BIG, f"params are at most {limits.max_message_bytes - ROOM_BYTES} bytes")
        if params.count(b"[") + params.count(b"{") > limits.max_json_depth and not self._adapter.is_shallow(params):
            raise RpcError(INVALID_PARAMS, f"params nest deeper than {limits.max_json_depth}")

    def _is_new(self, id_: str) -> bool:
        """True if the counter shows that the id is unused; marks it as used.

        A known series was part of a valid id, so only the counter is checked. In a shared store only a lookup can tell,
        because another broker may be accepting the same id."""
        if self._queue.shared is not None:
            return False
        series, _, counter = id_.rpartition(".")
        last = self._series.get(series)
        if last is None or len(counter) != COUNTER_CHARS or counter <= last or not is_plain(counter):
            return False
        if self._claimed and id_ in self._claimed:
            return False
        self._series[series] = counter
        return True

    def _look_up(self, new: NewSubmission, effects: Effects) -> None:
        id_ = new.args.task_id
        if new.keyed is not None:
            waiting = self._keys.get(new.keyed)
            if waiting is not None:
                waiting.append(new)
                return
        if id_ is not None:
            claimed = self._claimed.get(id_)
            if claimed is not None:
                # Not accepted yet: a duplicate must not be answered before the task is stored.
                claimed.append(new)
                return
            self._claimed[id_] = []
        if new.keyed is not None:
            self._keys[new.keyed] = []
        self._ask(new, effects)

    def _ask(self, new: NewSubmission, effects: Effects) -> None:
        id_ = new.args.task_id
        series = None
        shared = self._queue.shared is not None
        if id_ is not None and not shared:
            prefix, _, counter = id_.rpartition(".")
            series = prefix if prefix and len(counter) == COUNTER_CHARS else None
        ids = new.after if id_ is None else (id_, *new.after)
        reserve = (id_ or "") if shared else None
        ask = LookUpSubmission(new.args.client_id, ids, new.options.key, series, reserve, new.owner)
        self._reads.ask(
            new.call.connection.account,
            ask,
            len(ids) + 1,
            lambda found, mark, now, out: self._found(new, series, found, mark, now, out),
            effects,
        )

    def _found(
        self, new: NewSubmission, series: str | None, found: SubmissionLookup, mark: int, now: Now, effects: Effects
    ) -> None:
        backlog = self._queue.backlog
        if any(
            row is not None and row.id not in backlog.tasks and backlog.is_stale(row.seq, mark) for row in found.tasks
        ):
            self._ask(new, effects)
            return
        if found.busy and not new.call.is_answered and self._wait_for(new, now):
            return
        id_, call = new.args.task_id, new.call
        self._reads.let_go(call.connection.account, 0, new.size)
        others = [] if id_ is None else self._claimed.pop(id_, [])
        if series is not None:
            self._learn_series(series, found.last)
        try:
            answer = self._decide(new, found, now, effects)
        except RpcError as error:
            call.refuse(error.code, error.message, effects, error.data)
            if self._queue.shared is not None and not found.busy:
                self._free(new, found, effects)
            if error.code in BAD_INPUT:
                self._adapter.reject(call.connection, 400, error.message, now, effects)
        else:
            call.answer(quoted(answer), effects)
        if new.keyed is not None:
            others += self._keys.pop(new.keyed, ())
        for other in others:
            if other.call.is_answered:
                self._reads.let_go(other.call.connection.account, 0, other.size)
            else:
                self._look_up(other, effects)

    def _wait_for(self, new: NewSubmission, now: Now) -> bool:
        """Schedules a retry while another broker is accepting the same submission; returns False after the time
        limit."""
        new.until = new.until or now.mono + BUSY_SECONDS
        if now.mono >= new.until:
            return False
        self._state.timers.add((self._again, new), now.mono + AGAIN_SECONDS)
        return True

    def _again(self, new: NewSubmission, now: Now, effects: Effects) -> None:
        self._ask(new, effects)

    def _free(self, new: NewSubmission, found: SubmissionLookup, effects: Effects) -> None:
        """Frees what the store reserved for a refused submission."""
        id_, key = new.args.task_id, new.options.key
        taken = id_ is not None and found.tasks[0] is not None
        if found.keyed is None and not taken and (id_ is not None or key is not None):
            effects.write(FreeReservation(id_, new.args.client_id, key, new.owner))

    def _learn_series(self, series: str, last: str) -> None:
        name, _, counter = last.rpartition(".")
        if last and (name != series or len(counter) != COUNTER_CHARS):
            # Another series has the same prefix and hides the end of this one, so this one stays unknown.
            return
        known = self._series.get(series)
        if known is None or counter > known:
            self._series[series] = counter
            if len(self._series) > MAX_SERIES:
                self._series.popitem(last=False)

    def _decide(self, new: NewSubmission, found: SubmissionLookup, now: Now, effects: Effects) -> str:
        """Accepts the submission or raises RpcError; returns the task's id."""
        args, options = new.args, new.options
        connection = new.call.connection
        if new.call.is_answered:
            raise not_stored(self._state)  # it was refused, because the database did not answer
        if options.notify and self._adapter.last_received(connection) == -math.inf:
            # The connection has closed since, so it cannot be notified.
            options = msgspec.structs.replace(options, notify=False)
        self._clients.learn(connection, found.client, args.client_id, now, effects)
        if found.keyed is not None:
            check_same(new, found.keyed)
            return found.keyed.id
        if found.busy:
            raise RpcError(NOT_STORED, "another broker is accepting a task with this id or key: try again")
        self._check_room(connection, args.client_id, new.params, options)
        id_ = args.task_id
        rows = found.tasks
        if id_ is not None:
            if rows[0] is not None or id_ in self._queue.backlog.tasks:
                raise RpcError(BAD_TASK, f"the task id {id_} is in use")
            rows = rows[1:]
            self._is_new(id_)
        befores = [self._before(new, name, row) for name, row in zip(new.after, rows, strict=True)]
        failed = [each for each in befores if isinstance(each, EndedTask) and each.status != FINISHED]
        waits = sum(not isinstance(each, EndedTask) for each in befores) if not failed else 1
        task = self._accept(id_, args, new.params, options, waits, connection, now, effects)
        if failed:
            message = f"the task {failed[0].id}, which this one waits for, is {STATUS_NAMES[failed[0].status]}"
            self._queue.end(task, FAILED, error_object(AFTER_FAILED, message), AFTER_FAILED, now, effects)
            return task.id
        for each in befores:
            if not isinstance(each, EndedTask):
                self._follow(each, task, effects)
        return task.id

    def _before(
        self, new: NewSubmission, id_: str, row: OpenTask | EndedTask | None
    ) -> QueuedTask | OpenTask | EndedTask:
        found = self._queue.backlog.tasks.get(id_) or row
        if found is None or found.client != new.args.client_id or not belongs_to(found.owner, new.owner):
            raise RpcError(BAD_TASK, f"after: unknown task {id_}")
        return found

    def _follow(self, before: QueuedTask | OpenTask, task: QueuedTask, effects: Effects) -> None:
        effects.write(PutDependency(before.seq, task.seq))
        if before.followed or (isinstance(before, OpenTask) and self._queue.shared is not None):
            # Another broker may hold and end it: in a shared store, waiting dependents are checked every second.
            return
        if isinstance(before, OpenTask):
            before = from_store(before)
        before.followed = True
        self._queue.changed(before, effects)

    def _accept(
        self,
        id_: str | None,
        args: Any,
        params: bytes,
        options: NewTaskOptions,
        waits: int,
        connection: Connection,
        now: Now,
        effects: Effects,
    ) -> QueuedTask:
        notify = 0
        if options.notify and connection.takes_pushes:
            notify = connection.number or self._completion_waits.number(connection)
            connection.waits += 1
        queue = self._queue
        if id_ is None:
            id_ = queue.next_id()
        owner = connection.public_key
        return queue.accept(id_, args.client_id, owner, args.method, params, options, notify, waits, now, effects)

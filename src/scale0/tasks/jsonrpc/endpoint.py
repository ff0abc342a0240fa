"""JSON-RPC on a broker's client sockets: decodes frames, calls the methods of the socket, and sends the answers.
Invariants: only methods in the table of the socket can be called; the answer to a batch is one batch in the same order,
sent when the last of its calls is answered; every answer waits until all earlier decisions are on disk, except where
nothing can be stored; while the database is unavailable, no call waits for it; results and
hand-outs in the answer to one frame are together at most `max_message_bytes`, or one of them (a client's socket accepts
frames of twice that)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from scale0.broker.core.connections import Connection
from scale0.broker.core.state import BrokerState
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, Message
from scale0.tasks.core.broker_adapter import BrokerAdapter
from scale0.tasks.jsonrpc.arrays import ArrayPart
from scale0.tasks.jsonrpc.messages import (
    BAD_ID,
    BAD_INPUT,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    NO_ROOM,
    NOT_SERVING,
    NOT_STORED,
    NULL_ID,
    RATE_LIMITED,
    TOO_BIG,
    MalformedCall,
    RpcError,
    answer,
    error_answer,
    error_object,
    is_id,
    read_calls,
)

UNLIMITED: Final = frozenset(
    f"zerotask.broker.{name}" for name in ("node_heartbeat", "node_task_finished", "node_task_failed")
)
"""Methods that the rate limit never refuses: a lost result runs again, and a lost heartbeat ends leases."""
UNSTORED: Final = frozenset(f"zerotask.broker.{name}" for name in ("node_heartbeat", "node_status"))
"""Methods that need no store: they are answered while the database is unavailable."""
OPEN: Final = b""
"""In the place of an answer that is still to come."""
RECORD_BYTES: Final = 4 * 1024
"""Size of the objects of a call that is answered in a later turn."""
NO_PARAMS: Final = msgspec.Raw()
"""In the place of params that are not kept."""
MAX_SHOWN_CHARS: Final = 64
"""Maximum length of a client-supplied name in an error."""


class RpcReply:
    __slots__ = (
        *("__weakref__", "_answers", "_connection", "_open", "_size", "_unstored", "batch", "full", "max_bytes"),
        *("on_sent", "waiting"),
    )

    def __init__(self, connection: Connection, count: int, batch: bool, max_bytes: int) -> None:
        self._connection = connection
        self.batch = batch
        self.max_bytes = max_bytes
        self._size = 0
        """Bytes of results and hand-outs in the answers."""
        self.full = False
        """A result did not fit: no more are read for this reply."""
        self.on_sent: list[Callable[[], None]] = []
        """Called when the reply is sent, which is after the commit."""
        self._answers: list[bytes | None] = [OPEN] * count
        self.waiting: dict[int, bytes | None] = {}
        """Places and ids of the calls that are answered in a later turn."""
        self._open = count
        self._unstored = True

    def reserve(self, size: int) -> bool:
        """Reserves room for a result of this size; False if it does not fit. The first one always does."""
        self.full = self.full or (self._size > 0 and self._size + size > self.max_bytes)
        if not self.full:
            self._size += size
        return not self.full

    def put(self, place: int, data: bytes | None, effects: Effects, unstored: bool = False) -> None:
        """Adds one answer, or None for a notification; the last one sends all. Only the first answer counts.

        `unstored`: the answer depends on nothing that is stored. If all answers do, they do not wait for the store."""
        if self.has(place):
            return
        self._answers[place] = data
        self._unstored = self._unstored and unstored
        self._open -= 1
        if not self._open:
            self._send(effects)

    def has(self, place: int) -> bool:
        """True if this place has its answer."""
        return self._answers[place] != OPEN

    def refuse_waiting(self, error: bytes, effects: Effects) -> None:
        waiting, self.waiting = self.waiting, {}
        for place, id_ in waiting.items():
            self.put(place, None if id_ is None else error_answer(id_, error), effects, unstored=True)

    def _sent(self) -> None:
        for do in self.on_sent:
            do()

    def _send(self, effects: Effects) -> None:
        connection = self._connection
        say = effects.send if self._unstored else effects.promise
        if self.on_sent:
            effects.after_commit(lambda _now, _out: self._sent())
        answers = [data for data in self._answers if data is not None]
        if not answers:
            if connection.delimiter:
                say(connection, [b"null"])
        elif self.batch:
            say(connection, [b"[%b]" % b",".join(answers)])
        else:
            say(connection, [answers[0]])


class RpcCall(msgspec.Struct, eq=False, gc=False):
    """One call. It may be kept and answered in a later turn; only its first answer counts."""

    connection: Connection
    params: msgspec.Raw
    """A view of the frame; empty once the method has returned: a call that is kept does not keep its frame."""
    _id: bytes | None
    _reply: RpcReply
    _place: int

    @property
    def kept_bytes(self) -> int:
        """What it keeps until it is answered, besides what its method keeps."""
        return len(self._id or b"") + RECORD_BYTES

    @property
    def id_bytes(self) -> int:
        return len(self._id or b"")

    @property
    def in_batch(self) -> bool:
        """True if other calls wait for this one's answer."""
        return self._reply.batch

    @property
    def is_answered(self) -> bool:
        """True for a kept call that was refused, because the database did not answer: it must have no effect."""
        return self._reply.has(self._place)

    def keep(self) -> None:
        """It is answered in a later turn."""
        self.params = NO_PARAMS
        self._reply.waiting[self._place] = self._id

    def has_room(self, size: int) -> bool:
        """Reserves room for a part of the result; False if it does not fit into the answer to this frame."""
        return self._reply.reserve(size)

    def need_room(self, size: int = 0) -> None:
        """`has_room`, or raises RpcError."""
        if not self._reply.reserve(size):
            most = self._reply.max_bytes
            raise RpcError(NO_ROOM, f"the answer of an array has at most {most} bytes of results: repeat this call")

    def on_sent(self, do: Callable[[], None]) -> None:
        """Calls `do` when the answer is sent."""
        self._reply.on_sent.append(do)

    def answer(self, result: bytes, effects: Effects, more: bool = False, unstored: bool = False) -> None:
        """`more`: parts of the result were left out, and another call returns them."""
        self._reply.put(self._place, None if self._id is None else answer(self._id, result, more), effects, unstored)

    def refuse(self, code: int, message: str, effects: Effects, data: bytes = b"", unstored: bool = False) -> None:
        self.fail(error_object(code, message, data), effects, unstored or code == NOT_STORED)

    def fail(self, error: bytes, effects: Effects, unstored: bool = False) -> None:
        self._reply.put(self._place, None if self._id is None else error_answer(self._id, error), effects, unstored)


Method = Callable[[RpcCall, Now, Effects], None]


class RpcEndpoint:
    def __init__(self, state: BrokerState, adapter: BrokerAdapter, methods: Mapping[str, Mapping[str, Method]]) -> None:
        """`methods`: by socket, by name."""
        self._state = state
        self._adapter = adapter
        self._methods = methods
        self._names = frozenset(name for table in methods.values() for name in table)
        self._waiting: WeakValueDictionary[int, RpcReply] = WeakValueDictionary()
        """Replies whose calls are answered in a later turn, in their order."""
        self._number = 0

    @property
    def table(self) -> Mapping[str, Mapping[str, Method]]:
        return self._methods

    def receive(self, connection: Connection, frames: list[bytes], now: Now, effects: Effects) -> None:
        if len(frames) != 1:
            effects.promise(
                connection,
                [error_answer(NULL_ID, error_object(INVALID_REQUEST, "a JSON-RPC message has exactly one frame"))],
            )
            self._adapter.reject(connection, codes.MALFORMED, "JSON-RPC in several frames", now, effects)
            return
        limits, frame, outage = self._state.limits, frames[0], self._state.outage is not None
        batch, calls = read_calls(frame, limits.max_batch_messages)
        too_big = len(frame) > limits.max_message_bytes
        if batch:
            connection.arrays = True
        refusal: RpcError | None = None
        if too_big:
            refusal = RpcError(TOO_BIG, f"a message is at most {limits.max_message_bytes} bytes")
        elif not self._state.serving:
            refusal = RpcError(NOT_SERVING, "this broker does not accept tasks now: use another one")
        if type(frame) is ArrayPart:
            array, first = frame.array, frame.first
            reply = array.reply = array.reply or RpcReply(connection, array.count, True, limits.max_message_bytes)
        else:
            reply, first = RpcReply(connection, len(calls), batch, limits.max_message_bytes), 0
        methods = self._methods.get(connection.socket, {})
        for place, call in enumerate(calls, first):
            if type(call) is MalformedCall:
                self._fault(connection, reply, place, call, now, effects)
                continue
            id_ = None if call.id is msgspec.UNSET else bytes(call.id)
            if id_ is not None and not is_id(id_):
                self._fault(connection, reply, place, MalformedCall(INVALID_REQUEST, BAD_ID), now, effects)
                continue
            rpc_call = RpcCall(connection, call.params, id_, reply, place)
            method = methods.get(call.method)
            try:
                if method is None:
                    raise self._unknown(call.method)
                if refusal is not None:
                    raise refusal
                is_limited = call.method not in UNLIMITED
                if is_limited and not self._adapter.allows_request(connection.account, now):
                    most = limits.max_requests_per_second
                    raise RpcError(RATE_LIMITED, f"more than {most} requests in a second: try again later")
                if outage and call.method not in UNSTORED:
                    raise not_stored(self._state)
                method(rpc_call, now, effects)
                if not rpc_call.is_answered:
                    self._keep(rpc_call, reply)
            except RpcError as error:
                rpc_call.refuse(error.code, error.message, effects, error.data, unstored=outage)
                if error.code in BAD_INPUT:
                    self._adapter.reject(connection, codes.MALFORMED, error.message, now, effects)

    def refuse_waiting(self, effects: Effects) -> None:
        """The database is unavailable: calls that wait for it are refused, and late answers are ignored."""
        error = not_stored(self._state)
        for reply in list(self._waiting.values()):
            reply.refuse_waiting(error_object(error.code, error.message, error.data), effects)
        self._waiting.clear()

    def _keep(self, call: RpcCall, reply: RpcReply) -> None:
        if not reply.waiting:
            self._number += 1
            self._waiting[self._number] = reply
        call.keep()

    def pack(self, connection: Connection, messages: Sequence[Message]) -> list[list[bytes]]:
        """A connection that uses only JSON-RPC receives nothing else."""
        return [message for message in messages if isinstance(message, list)]

    def _unknown(self, name: str) -> RpcError:
        shown = name[:MAX_SHOWN_CHARS]
        if name in self._names:
            return RpcError(METHOD_NOT_FOUND, f"{shown} must be called on the other socket")
        return RpcError(METHOD_NOT_FOUND, f"no such method: {shown}")

    def _fault(
        self, connection: Connection, reply: RpcReply, place: int, fault: MalformedCall, now: Now, effects: Effects
    ) -> None:
        unstored = self._state.outage is not None
        reply.put(place, error_answer(fault.id, error_object(fault.code, fault.message)), effects, unstored)
        self._adapter.reject(connection, codes.MALFORMED, fault.message, now, effects)


def not_stored(state: BrokerState) -> RpcError:
    """The error of a call that needs the store, while nothing can be stored."""
    cause = {"cause": "disk"} if state.outage is None else {"cause": "database", "since": state.outage.since}
    return RpcError(NOT_STORED, state.why_full, msgspec.json.encode(cause))

"""JSON-RPC as a task client speaks it: calls to bytes, and frames to answers.

Lives here: bytes. Never here: who asked. Invariant: whatever a frame holds, `read_answers` raises nothing; what it
cannot read of an array costs only that element.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from scale0.tasks.client.futures import SubmissionTemplate, TaskFault

PREFIX: Final = "zerotask.broker."
COMPLETE: Final = "zerotask.client.task_complete"

_to_json: Final = msgspec.json.Encoder().encode


class RpcErrorBody(msgspec.Struct, gc=False):
    """A JSON-RPC error."""

    code: int
    message: str = ""
    data: msgspec.Raw = msgspec.Raw()

    def trouble(self) -> TaskFault:
        """As it is kept: without the frame that it came in."""
        return TaskFault(self.code, self.message, bytes(self.data))


class Completed(msgspec.Struct, gc=False):
    """The end of a task, as it is pushed or as a wait tells it."""

    task_id: str
    status: str
    result: msgspec.Raw = msgspec.Raw()
    error: RpcErrorBody | None = None


class RpcResponse(msgspec.Struct, gc=False):
    """An answer, or a notification (with `method`)."""

    id: int | None = None
    result: msgspec.Raw = msgspec.Raw()
    error: RpcErrorBody | None = None
    method: str = ""
    params: Completed | None = None


class _Id(msgspec.Struct, gc=False):
    id: int


_many: Final = msgspec.json.Decoder(list[RpcResponse])
_one: Final = msgspec.json.Decoder(RpcResponse)
_elements: Final = msgspec.json.Decoder(list[msgspec.Raw])
_ids: Final = msgspec.json.Decoder(list[_Id])
_id: Final = msgspec.json.Decoder(_Id)
_rows: Final = msgspec.json.Decoder(list[Completed])
_text: Final = msgspec.json.Decoder(str)


def read_answers(frame: bytes) -> Sequence[RpcResponse]:
    """What the broker said, as far as it can be understood."""
    try:
        if frame[:1] == b"[":
            return _many.decode(frame)
        return (_one.decode(frame),)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return tuple(_walk(frame))


def _walk(frame: bytes) -> Iterator[RpcResponse]:
    if frame[:1] != b"[":
        return
    try:
        elements = _elements.decode(frame)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return
    for element in elements:
        try:
            yield _one.decode(element)
        except (msgspec.DecodeError, RecursionError, ValueError):
            continue


def read_rows(result: msgspec.Raw) -> Sequence[Completed]:
    """What a wait brought."""
    try:
        return _rows.decode(result)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return ()


def read_text(result: msgspec.Raw) -> str | None:
    """A result that should be a string."""
    try:
        return _text.decode(result)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None


def ids_of(frame: bytes) -> list[int]:
    """The ids of the calls in a frame of our own."""
    if frame[:1] == b"[":
        return [one.id for one in _ids.decode(frame)]
    return [_id.decode(frame).id]


def call(method: str, params: Sequence[Any], number: int) -> bytes:
    """One call."""
    said = {"jsonrpc": "2.0", "method": PREFIX + method, "params": params, "id": number}
    return _to_json(said)


def order_of(client_id: str, service: str, options: Mapping[str, Any]) -> SubmissionTemplate:
    """The two ends of the calls that submit tasks: between them stand the params and the id."""
    head = b'{"jsonrpc":"2.0","method":"%bclient_new_task","params":[%b,%b,' % (
        PREFIX.encode(),
        _to_json(client_id),
        _to_json(service),
    )
    tail = b'",%b],"id":' % _to_json(options)
    return SubmissionTemplate(service, head, tail, bool(options.get("notify")), options.get("key") is not None)


class CallSize(Protocol):
    """What a call weighs."""

    part: bytes


def frames_of(calls: Sequence[CallSize], most_calls: int, most_bytes: int) -> Iterator[bytes]:
    """Calls as few arrays, each within the limits; one call alone may weigh more, and is then alone."""
    parts = [call.part for call in calls]
    if len(parts) <= most_calls and sum(map(len, parts)) + len(parts) < most_bytes:
        yield b"[" + b",".join(parts) + b"]"
        return
    box: list[bytes] = []
    weight = 2
    for part in parts:
        if box and (len(box) >= most_calls or weight + len(part) + 1 > most_bytes):
            yield b"[" + b",".join(box) + b"]"
            box, weight = [], 2
        box.append(part)
        weight += len(part) + 1
    yield b"[" + b",".join(box) + b"]"

"""The JSON-RPC encoding of a task client: calls to bytes, and frames to responses.

Invariant: `read_responses` raises nothing, whatever a frame holds; an invalid element of an array does not affect the
others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from scale0.tasks.client.futures import Call, SubmissionTemplate, TaskFault

PREFIX: Final = "zerotask.broker."
COMPLETE: Final = "zerotask.client.task_complete"

_to_json: Final = msgspec.json.Encoder().encode


class RpcErrorBody(msgspec.Struct, gc=False):
    """A JSON-RPC error."""

    code: int
    message: str = ""
    data: msgspec.Raw = msgspec.Raw()

    def fault(self) -> TaskFault:
        """A copy that does not keep the whole frame alive."""
        return TaskFault(self.code, self.message, bytes(self.data))


class Completed(msgspec.Struct, gc=False):
    """The end of a task, as it is pushed or as a wait returns it."""

    task_id: str
    status: str
    result: msgspec.Raw = msgspec.Raw()
    error: RpcErrorBody | None = None


class RpcResponse(msgspec.Struct, gc=False):
    """A response, or a notification (with `method`)."""

    id: int | None = None
    result: msgspec.Raw = msgspec.Raw()
    error: RpcErrorBody | None = None
    more: bool = False
    """Results were left out: another wait returns them."""
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


def read_responses(frame: bytes) -> Sequence[RpcResponse]:
    try:
        if frame[:1] == b"[":
            return _many.decode(frame)
        return (_one.decode(frame),)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return tuple(_read_elements(frame))


def _read_elements(frame: bytes) -> Iterator[RpcResponse]:
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
    try:
        return _rows.decode(result)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return ()


def read_text(result: msgspec.Raw) -> str | None:
    try:
        return _text.decode(result)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None


def ids_of(frame: bytes) -> list[int]:
    """The ids of the calls in a frame of our own."""
    if frame[:1] == b"[":
        return [item.id for item in _ids.decode(frame)]
    return [_id.decode(frame).id]


def call(method: str, params: Sequence[Any], number: int) -> bytes:
    message = {"jsonrpc": "2.0", "method": PREFIX + method, "params": params, "id": number}
    return _to_json(message)


def template_of(client_id: str, service: str, options: Mapping[str, Any]) -> SubmissionTemplate:
    """The constant parts of the calls that submit tasks; the params and the id stand between them."""
    head = b'{"jsonrpc":"2.0","method":"%bclient_new_task","params":[%b,%b,' % (
        PREFIX.encode(),
        _to_json(client_id),
        _to_json(service),
    )
    tail = b'",%b],"id":' % _to_json(options)
    return SubmissionTemplate(service, head, tail, bool(options.get("notify")), options.get("key") is not None)


def frames_of(calls: Sequence[Call], max_calls: int, max_bytes: int) -> Iterator[bytes]:
    """Calls as few arrays, each within the limits; a call that is larger than the limit goes alone."""
    parts = [call.part for call in calls]
    if len(parts) <= max_calls and sum(map(len, parts)) + len(parts) < max_bytes:
        yield b"[" + b",".join(parts) + b"]"
        return
    chunk: list[bytes] = []
    size = 2
    for part in parts:
        if chunk and (len(chunk) >= max_calls or size + len(part) + 1 > max_bytes):
            yield b"[" + b",".join(chunk) + b"]"
            chunk, size = [], 2
        chunk.append(part)
        size += len(part) + 1
    yield b"[" + b",".join(chunk) + b"]"

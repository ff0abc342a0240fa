"""JSON-RPC 2.0 messages for tasks: calls, answers, notifications and error codes (PROTOCOL 6). Invariant: for any
frame, `read_calls` returns calls and faults, one for each element, in order; it raises nothing. An array with far more
elements than are allowed is counted up to the limit, and not decoded."""

from __future__ import annotations

import re
from typing import Any, Final, Literal

import msgspec

from scale0.kernel.errors import Scale0Error
from scale0.kernel.json_text import has_slow_numbers

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
BAD_CLIENT: Final = -32010
BAD_TASK: Final = -32020
NOT_YOURS: Final = -32021
KEY_CONFLICT: Final = -32022
BAD_NODE: Final = -32030
NOT_PERMITTED: Final = -32040
NOT_COMPLETE: Final = -32050
NOT_STORED: Final = -32060
QUEUE_FULL: Final = -32070
TOO_BIG: Final = -32071
NO_ROOM: Final = -32072
RATE_LIMITED: Final = -32073
NOT_SERVING: Final = -32080
ATTEMPTS_LOST: Final = -32090
AFTER_FAILED: Final = -32091
CANCELLED_ERROR: Final = -32092
DAMAGED: Final = -32093

MEANINGS: Final[dict[int, str]] = {
    PARSE_ERROR: "not JSON",
    INVALID_REQUEST: "not a JSON-RPC 2.0 request",
    METHOD_NOT_FOUND: "no such method on this socket",
    INVALID_PARAMS: "wrong arguments",
    BAD_CLIENT: "client id taken, invalid or unknown",
    BAD_TASK: "task id taken, invalid or unknown",
    NOT_YOURS: "another attempt owns the task",
    KEY_CONFLICT: "the key belongs to another task",
    BAD_NODE: "node id taken, invalid or unknown",
    NOT_COMPLETE: "the task is not complete",
    NOT_STORED: "the store cannot be used now",
    QUEUE_FULL: "the queue is full",
    TOO_BIG: "too big",
    NO_ROOM: "the answer does not fit into the answer of its array: repeat the call",
    RATE_LIMITED: "too many requests in a second: repeat the call later",
    NOT_SERVING: "this broker does not serve now",
    ATTEMPTS_LOST: "every attempt was lost",
    AFTER_FAILED: "a task that this one waits for failed",
    CANCELLED_ERROR: "the task was cancelled",
    DAMAGED: "the stored params or result are damaged",
}
"""PROTOCOL 6; the last one and NOT_SERVING are extensions."""

BAD_INPUT: Final = frozenset({PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS})
"""Codes that count towards the bad-input limit."""

MAX_ID_BYTES: Final = 1_024
"""Length of an id as JSON. A call that is answered later keeps its id, and every error repeats it."""
BAD_ID: Final = f"an id is a string, a number or null, of at most {MAX_ID_BYTES} bytes"
NO_IDS: Final = frozenset(b"{[tf")
"""First bytes of values that cannot be an id: objects, arrays, true and false."""

CALL_COMMAS: Final = 10
"""An array with fewer commas than this for each allowed call is decoded before its elements are counted."""

MAX_COMPARED_VALUES: Final = 10_000
"""Params and results with more commas and opening brackets are compared by their bytes: decoding so many values takes
up to 4 ms of the broker, and 2 MB."""
MAX_COMPARED_EXPONENTS: Final = 1_000
"""The same for numbers with an exponent: 2 ms."""

_to_json: Final = msgspec.json.Encoder().encode
NULL_ID: Final = b"null"
COMMA: Final = ord(",")


class RpcError(Scale0Error):
    """A call that is answered with an error."""

    def __init__(self, code: int, message: str, data: bytes = b"") -> None:
        super().__init__(f"{code} {message}")
        self.code = code
        self.message = message
        self.data = data
        """JSON; empty: none."""


def key_conflict(key: str, task_id: str, differs: list[str]) -> RpcError:
    """The error of a submission whose key belongs to a task with another method or other params."""
    message = f"the key {key!r} belongs to the task {task_id}, which has other values of {' and '.join(differs)}"
    return RpcError(KEY_CONFLICT, message, _to_json({"task_id": task_id, "key": key, "differs": differs}))


class CallMessage(msgspec.Struct, gc=False):
    """One call. Without an id it is a notification."""

    jsonrpc: Literal["2.0"]
    method: str
    params: msgspec.Raw = msgspec.Raw(b"[]")
    id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class MalformedCall(msgspec.Struct, frozen=True):
    """An element that is not a valid call, and its error."""

    code: int
    message: str
    id: bytes = NULL_ID


class _Id(msgspec.Struct):
    """The id of a malformed call, where it is JSON. It is not decoded."""

    id: msgspec.Raw = msgspec.Raw(b"null")


_one: Final = msgspec.json.Decoder(CallMessage)
_many: Final = msgspec.json.Decoder(list[CallMessage])
_elements: Final = msgspec.json.Decoder(list[msgspec.Raw])
_element: Final = msgspec.json.Decoder(msgspec.Raw)
_end_of_element: Final = re.compile(r"trailing characters \(byte (\d+)\)")
"""How many bytes msgspec read: a complete value, spaces, and one byte that does not belong to it."""
_id: Final = msgspec.json.Decoder(_Id)

ParsedCall = CallMessage | MalformedCall


def read_calls(frame: bytes, most: int) -> tuple[bool, list[Any]]:
    """Returns whether the frame is a batch, and its calls and faults in order."""
    if not frame.isascii():
        try:
            frame.decode()
        except UnicodeDecodeError:
            return False, [MalformedCall(PARSE_ERROR, "not UTF-8")]
    if has_more(frame, most):
        return False, [MalformedCall(INVALID_REQUEST, f"a batch holds at most {most} calls")]
    try:
        if frame[:1] == b"[":
            calls: list[Any] = _many.decode(frame)
            if not calls:
                return False, [MalformedCall(INVALID_REQUEST, "an empty batch")]
            if len(calls) > most:
                return False, [MalformedCall(INVALID_REQUEST, f"a batch holds at most {most} calls")]
            return True, calls
        return False, [_one.decode(frame)]
    except (msgspec.DecodeError, RecursionError, ValueError):
        return _walk(frame, most)


def has_more(frame: bytes, most: int) -> bool:
    """True if the frame begins as an array of more than `most` elements and has so many commas that decoding it would
    cost too much. msgspec applies `max_length` to a list only when all of its elements exist."""
    commas = frame.count(b",") if frame[:1] == b"[" else 0
    rest, place = memoryview(frame)[1:], 1
    for _ in range(most):
        if commas < CALL_COMMAS * most:
            return False
        try:
            _element.decode(rest)
            return False  # the array has no end
        except (msgspec.DecodeError, RecursionError) as error:
            end = _end_of_element.search(str(error))
        if end is None:
            return False  # not JSON: decoding ends here
        size = int(end[1])
        if rest[size - 1] != COMMA:
            return False
        commas -= frame.count(b",", place, place + size)
        rest, place = rest[size:], place + size
    return True


def _walk(frame: bytes, most: int) -> tuple[bool, list[Any]]:
    """Decodes each element separately, so that one malformed call does not affect the others."""
    if frame[:1] != b"[":
        return False, [_read_one(frame)]
    try:
        elements = _elements.decode(frame)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        return False, [MalformedCall(PARSE_ERROR, str(error)[:200])]
    if not 0 < len(elements) <= most:
        return False, [MalformedCall(INVALID_REQUEST, f"a batch holds 1 to {most} calls")]
    return True, [_read_one(bytes(element)) for element in elements]


def _read_one(data: bytes) -> ParsedCall:
    try:
        return _one.decode(data)
    except (msgspec.ValidationError, RecursionError) as error:
        try:
            given = bytes(_id.decode(data).id)
            known = NULL_ID if given[0] in NO_IDS else given
        except (msgspec.DecodeError, RecursionError, ValueError):
            known = NULL_ID
        return MalformedCall(INVALID_REQUEST, str(error)[:200], known if len(known) <= MAX_ID_BYTES else NULL_ID)
    except (msgspec.DecodeError, ValueError) as error:
        return MalformedCall(PARSE_ERROR, str(error)[:200])


def is_id(data: bytes) -> bool:
    """True for a JSON value that can be an id."""
    return len(data) <= MAX_ID_BYTES and data[0] not in NO_IDS


def canonical(data: bytes) -> bytes:
    """JSON with sorted names and without spaces: equal values have equal bytes. 1 and 1.0 are different values, because
    a handler gets an int or a float. What has many values, or many numbers that are slow to decode, stays as it is:
    then only equal bytes are equal."""
    values = data.count(b",") + data.count(b"[") + data.count(b"{")
    if values > MAX_COMPARED_VALUES or has_slow_numbers(data, MAX_COMPARED_EXPONENTS):
        return data
    try:
        return msgspec.json.encode(msgspec.json.decode(data), order="sorted")
    except (msgspec.DecodeError, RecursionError, ValueError):
        return data  # for example a number that is too large


def answer(id_: bytes, result: bytes, more: bool = False) -> bytes:
    if more:
        return b'{"jsonrpc":"2.0","id":%b,"result":%b,"more":true}' % (id_, result)
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (id_, result)


def error_object(code: int, message: str, data: bytes = b"") -> bytes:
    text = _to_json(message.encode("utf-8", "replace").decode())
    if data:
        return b'{"code":%d,"message":%b,"data":%b}' % (code, text, data)
    return b'{"code":%d,"message":%b}' % (code, text)


def error_answer(id_: bytes, error: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (id_, error)


def notification(method: bytes, params: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","method":"%b","params":%b}' % (method, params)


def quoted(text: str) -> bytes:
    return _to_json(text)

"""Long arrays of JSON-RPC calls: a broker handles them in parts, so that other clients have their turn in between.
Invariants: the parts, one after the other, hold the calls of the array in order; an array that cannot be decoded, or
that is over a limit, stays whole and is rejected as before; no frame from the wire is a part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from scale0.kernel.limits import Limits
from scale0.tasks.jsonrpc.messages import has_more

PART_CALLS: Final = 25
"""Calls in one part: about a millisecond of a broker."""
PART_BYTES: Final = 32 * 1024
"""Size of one part, if it has more than one call: a call that names many tasks is longer, and costs more."""

Split = Callable[[str, list[bytes]], Sequence[list[bytes]]]

LONG_METHODS: Final = frozenset({"zerotask.broker.node_connect", "zerotask.broker.node_tasks_request"})
"""Calls that look at all methods of a node, 1,000 at most: such a call is a part by itself."""


class MethodName(msgspec.Struct):
    method: str = ""


_elements: Final = msgspec.json.Decoder(list[msgspec.Raw])
_method: Final = msgspec.json.Decoder(MethodName)


class CutArray:
    """What the parts of one array share."""

    __slots__ = ("count", "reply")

    def __init__(self, count: int) -> None:
        self.count = count
        """Calls in the whole array."""
        self.reply: Any = None
        """The answers so far: an `RpcReply`, once the first part was received."""


class ArrayPart(bytes):
    """The frame of one part: an array by itself."""

    array: CutArray
    first: int
    """The place of its first call in the whole array."""


def array_splitter(limits: Limits, ignores: Callable[[str, bytes], bool], otherwise: Split) -> Split:
    """Split a long array into parts; other messages are split by `otherwise`.

    Each message begins with its routing id, and may have a delimiter; those of clients that are ignored stay whole."""

    def split(socket: str, message: list[bytes]) -> Sequence[list[bytes]]:
        frame = message[-1]
        if frame[:1] != b"[" or type(frame) is ArrayPart or not is_single(message):
            return otherwise(socket, message)
        if len(frame) > limits.max_message_bytes or ignores(socket, message[0]):
            return (message,)
        if has_more(frame, limits.max_batch_messages):
            return (message,)
        calls = read_elements(frame)
        if len(calls) > limits.max_batch_messages:
            return (message,)
        # A name may be written with escapes.
        may_be_long = b"\\" in frame or any(name.encode() in frame for name in LONG_METHODS)
        ends = part_ends(calls, may_be_long)
        if len(ends) < 2:
            return (message,)
        array, header, first = CutArray(len(calls)), message[:-1], 0
        parts: list[list[bytes]] = []
        for end in ends:
            part = ArrayPart(b"[%b]" % b",".join(calls[first:end]))
            part.array, part.first = array, first
            parts.append([*header, part])
            first = end
        return parts

    return split


def is_single(message: Sequence[bytes]) -> bool:
    """True for a message of one frame, after its routing id and perhaps a delimiter."""
    return len(message) == 2 or (len(message) == 3 and not message[1])


def read_elements(frame: bytes) -> list[msgspec.Raw]:
    """The elements of an array; none if the frame is not valid JSON."""
    try:
        if not frame.isascii():
            frame.decode()
        return _elements.decode(frame)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return []


def is_long(call: msgspec.Raw) -> bool:
    try:
        return _method.decode(call).method in LONG_METHODS
    except (msgspec.DecodeError, RecursionError, ValueError):
        return False


def part_ends(calls: Sequence[msgspec.Raw], may_be_long: bool = False) -> list[int]:
    """Where each part ends: the place after its last call. `may_be_long`: one of LONG_METHODS may be among them."""
    ends: list[int] = []
    count = size = 0
    for place, call in enumerate(calls):
        length = memoryview(call).nbytes
        weight = PART_CALLS if may_be_long and is_long(call) else 1
        if count + weight > PART_CALLS or (count and size + length > PART_BYTES):
            ends.append(place)
            count = size = 0
        count += weight
        size += length
    ends.append(len(calls))
    return ends

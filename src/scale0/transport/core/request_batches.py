"""REQUESTS and REPLIES: several requests for one service, or replies to them, in one message (PROTOCOL 6).

Invariants: such a batch means what its messages mean one by one. The ids of its requests are a text that they share,
followed by consecutive numbers; its bodies are one MessagePack array, so that a broker passes them on as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from scale0.kernel import codes
from scale0.kernel.effects import Message
from scale0.kernel.errors import Refusal
from scale0.transport.core import messages as options

JOINED: Final = frozenset({"REQUESTS", "REPLIES"})
"""Commands that stand for many messages, and therefore never are in a BATCH."""
MAX_REQUESTS: Final = 100
"""Requests of one REQUESTS: one or two milliseconds of a broker that must look at each."""
MAX_JOINED_BYTES: Final = 262_144
"""Bodies that we join into one message; larger ones gain nothing."""
LEAST_MESSAGE_BYTES: Final = MAX_JOINED_BYTES + 65_536
"""A broker with a lower `max_message_bytes` announces no batches: joined messages may be longer."""
DIGITS: Final = "0123456789"

_read_bodies: Final = msgspec.msgpack.Decoder(list[bytes]).decode
_read_views: Final = msgspec.msgpack.Decoder(list[memoryview]).decode
pack_bodies: Final = msgspec.msgpack.Encoder().encode


def batch_length(packed: bytes) -> int:
    """How many messages a MessagePack array claims to hold, from its header; 0 if it is not an array."""
    if not packed:
        return 0
    head = packed[0]
    if head & 0xF0 == 0x90:
        return head & 0x0F
    if head == 0xDC:
        return int.from_bytes(packed[1:3], "big")
    if head == 0xDD:
        return int.from_bytes(packed[1:5], "big")
    return 0


def bodies_of(packed: bytes) -> list[bytes]:
    """The bodies of a batch. Raises Refusal."""
    _check_length(packed)
    try:
        return _read_bodies(packed)
    except (msgspec.DecodeError, ValueError) as error:
        raise Refusal(codes.MALFORMED, f"the body is a MessagePack array of bodies: {error}") from error


def sizes_of(packed: bytes) -> list[int]:
    """The sizes of the bodies of a batch, which are not copied. Raises Refusal."""
    _check_length(packed)
    try:
        return [len(view) for view in _read_views(packed)]
    except (msgspec.DecodeError, ValueError) as error:
        raise Refusal(codes.MALFORMED, f"the body is a MessagePack array of bodies: {error}") from error


def _check_length(packed: bytes) -> None:
    """Refuse an array by its header: each body of it would need an object."""
    if not 0 < batch_length(packed) <= MAX_REQUESTS:
        raise Refusal(codes.TOO_BIG, f"the body is a MessagePack array of 1 to {MAX_REQUESTS} bodies")


def number_of(id_: Any) -> tuple[str, int] | None:
    """An id as text and number; None if it cannot belong to a batch."""
    if type(id_) is not str:
        return None
    text = id_.rstrip(DIGITS)
    digits = id_[len(text) :]
    if not digits or len(digits) > options.MAX_NUMBER_DIGITS or len(text) > options.MAX_TEXT_CHARS:
        return None
    return (text, int(digits)) if digits[0] != "0" or digits == "0" else None


def check_ids(batch: options.ManyRequests | options.ManyReplies, count: int) -> None:
    """Refuse ids that could be divided into text and number in another way. Raises Refusal."""
    end = batch.first + count
    if number_of(f"{batch.id}{end}") != (batch.id, end):
        raise Refusal(codes.MALFORMED, "the text of the ids must not end in a digit, and numbers have 15 digits")


def ids_of(message: Any, packed: bytes) -> list[Any]:
    """The id of a request or reply, or those of a batch with this body, of which only the header is read; none if that
    announces no batch."""
    if not isinstance(message, options.ManyRequests | options.ManyReplies):
        return [message.id]
    count = batch_length(packed)
    return [f"{message.id}{message.first + index}" for index in range(count)] if count <= MAX_REQUESTS else []


def joined(messages: Sequence[Message]) -> list[tuple[Message, int]]:
    """The same messages, where consecutive REQUESTs or REPLYs that can be a batch are one message; each with the number
    of messages that it stands for."""
    found: list[tuple[Message, int]] = []
    position, end = 0, len(messages)
    while position < end:
        stop = _end_of_batch(messages, position, end)
        if stop - position > 1:
            found.append((_batch_of(messages[position:stop]), stop - position))
        else:
            found.append((messages[position], 1))
        position = stop
    return found


def separated(batch: options.ManyRequests | options.ManyReplies, bodies: Sequence[bytes]) -> list[tuple[str, bytes]]:
    """The id and the body of each request or reply; none at all if the array is malformed."""
    try:
        found = bodies_of(bodies[0]) if bodies else []
    except Refusal:
        return []
    text, number = batch.id, batch.first
    return [(f"{text}{number + index}", body) for index, body in enumerate(found)]


def _end_of_batch(messages: Sequence[Message], start: int, end: int) -> int:
    first = messages[start]
    following = start + 1
    if following == end or type(first) is not tuple or len(first) != 3 or first[0] not in ("REQUEST", "REPLY"):
        return following
    place = number_of(first[1]["id"])
    if place is None:
        return following
    text, number = place
    command, size = first[0], len(first[2])
    expected = dict(first[1])
    end = min(end, start + MAX_REQUESTS)
    while following < end:
        message = messages[following]
        if type(message) is not tuple or len(message) != 3 or message[0] != command:
            break
        number += 1
        expected["id"] = f"{text}{number}"
        if message[1] != expected:
            break
        size += len(message[2])
        if size > MAX_JOINED_BYTES:
            break
        following += 1
    return following


def _batch_of(messages: Sequence[Any]) -> Message:
    command, settings, _ = messages[0]
    place = number_of(settings["id"])
    assert place is not None
    batch = {**settings, "id": place[0], "first": place[1]}
    packed = pack_bodies([message[2] for message in messages])
    if command == "REPLY":
        return ("REPLIES", batch, packed)
    return ("REQUESTS", batch, packed)

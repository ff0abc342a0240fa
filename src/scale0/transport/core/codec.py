"""The codec of `SCALE0/1`: frames to messages and back, one by one and in BATCH.

Invariants: whatever the frames hold, decoding gives messages or a `Refusal`; memory stays within a small multiple of
the size of the frames. A batch is decoded by one call into typed messages; only when that fails is it decoded message
by message, so that one bad message does not affect the others.
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, get_args

import msgspec

from scale0.kernel import codes
from scale0.kernel.effects import Message
from scale0.kernel.errors import Refusal
from scale0.kernel.json_text import MAX_OPTION_EXPONENTS, has_slow_numbers
from scale0.kernel.limits import Limits
from scale0.transport.core.request_batches import JOINED, batch_length, joined

MAGIC: Final = b"SCALE0/1"
BATCH: Final = b"BATCH"
CHUNK_MESSAGES: Final = 50
"""Requests of one chunk: about half a millisecond of a broker."""
CHUNK_BYTES: Final = 131_072
"""The same, for messages that each hold many entries; a longer message is a chunk of its own."""
QUICK_LEVELS: Final = 8
"""Levels of nesting that are removed with `replace`; only the rest is walked bracket by bracket."""

_ONE_BRACKET: Final = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b'[]{}"'))
_RUNS: Final = re.compile(rb"\[+|\]+")
_to_json: Final = msgspec.json.Encoder().encode
_to_msgpack: Final = msgspec.msgpack.Encoder().encode
RAW_MESSAGES: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])
"""Splits a BATCH into its packed messages."""
_text: Final = msgspec.msgpack.Decoder(str)
_bin: Final = msgspec.msgpack.Decoder(bytes)

Decoded = tuple[str, Any, Sequence[bytes]]
"""Command, options (of the command's type), bodies."""


def encode(message: Message) -> list[bytes]:
    """One message as frames, with options in JSON; ready frames pass through."""
    if isinstance(message, list):
        return message
    command, options, *bodies = message
    return [MAGIC, command.encode(), _to_json(options) if options else b"", *bodies]


def encode_batch(messages: Sequence[Message], limit_messages: int, limit_bytes: int) -> list[list[bytes]]:
    """Messages as few BATCHes as possible, each within the limits."""
    if len(messages) == 1:
        return [encode(messages[0])]
    if len(messages) <= limit_messages:
        packed = _to_msgpack(messages)
        if len(packed) <= limit_bytes:
            return [[MAGIC, BATCH, b"", packed]]
    half = len(messages) // 2
    return [
        *encode_batch(messages[:half], limit_messages, limit_bytes),
        *encode_batch(messages[half:], limit_messages, limit_bytes),
    ]


def encode_all(messages: Sequence[Message], limits: Limits, request_batches: bool) -> Iterator[tuple[list[bytes], int]]:
    """All messages of a client in order, in as few frames as possible; each with the number of messages that it holds.
    `request_batches`: the broker accepts REQUESTS and REPLIES."""
    parts = joined(messages) if request_batches else [(message, 1) for message in messages]
    for is_alone, run in itertools.groupby(parts, lambda part: isinstance(part[0], list) or part[0][0] in JOINED):
        if is_alone:
            yield from ((encode(message), count) for message, count in run)
            continue
        group = list(run)
        counts = iter([count for _, count in group])
        packed = encode_batch([message for message, _ in group], limits.max_batch_messages, limits.max_message_bytes)
        for frames in packed:
            held = batch_length(frames[3]) if len(frames) == 4 and frames[1] == BATCH else 1
            yield frames, sum(itertools.islice(counts, held))


def depth_within(data: bytes, limit: int) -> bool:
    """True if JSON text nests at most `limit` deep; the result for invalid JSON is undefined."""
    if data.count(b"[") + data.count(b"{") <= limit:
        return True
    left = data.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in data else data
    # Only quotes and brackets stay. Strings without brackets become two quotes, and vanish; adjacent ones become one.
    left = left.translate(_ONE_BRACKET, _NO_BRACKETS).replace(b'""', b"")
    if b'"' in left:
        left = b"".join(left.split(b'"')[::2])
    levels = min(limit, QUICK_LEVELS)
    for _ in range(levels):
        left = left.replace(b"[]", b"")  # remove the innermost brackets, all at once
    depth = 0
    for run in _RUNS.findall(left):
        depth += len(run) if run.startswith(b"[") else -len(run)
        if depth > limit - levels:
            return False
    return True


def nests_within(values: Sequence[Any], limit: int) -> bool:
    """True if lists and maps in these decoded values nest at most `limit` deep."""
    level = [one for one in values if isinstance(one, dict | list)]
    for _ in range(limit):
        if not level:
            return True
        inner = (each for one in level for each in (one.values() if isinstance(one, dict) else one))
        level = [each for each in inner if isinstance(each, dict | list)]
    return not level


class Codec:
    """Decodes the commands that one role may receive. `schemas` maps each command to the type of its options."""

    __slots__ = ("_alone", "_any", "_elsewhere", "_json", "_limits", "_msgpack", "_parts", "_typed", "_types")

    def __init__(
        self,
        schemas: Mapping[str, type],
        hot: Container[str],
        elsewhere: Container[str],
        limits: Limits,
        alone: Container[str] = (),
    ) -> None:
        """`hot` commands have a few scalar options and are decoded with the whole batch; `elsewhere` ones get 403, and
        `alone` ones in a BATCH."""
        self._alone = alone
        self._limits = limits
        self._elsewhere = elsewhere
        self._json: dict[bytes, msgspec.json.Decoder[Any]] = {
            name.encode(): msgspec.json.Decoder(schema) for name, schema in schemas.items()
        }
        self._msgpack: dict[str, msgspec.msgpack.Decoder[Any]] = {
            name: msgspec.msgpack.Decoder(schema) for name, schema in schemas.items()
        }
        self._any = {name: found for name, schema in schemas.items() if (found := any_options(schema))}
        """By command: the options that may be any value, and so nest."""
        self._types: dict[type, str] = {}
        for name, schema in schemas.items():
            if name not in hot:
                continue
            fields: list[tuple[str, Any, Any]] = [("options", schema, msgspec.NODEFAULT), ("body", bytes | None, None)]
            kind = msgspec.defstruct(name, fields, array_like=True, tag=name, forbid_unknown_fields=True, gc=False)
            self._types[kind] = name
        # Never None in the union: a batch of nils must not pass for messages.
        union: Any = functools.reduce(operator.or_, self._types) if self._types else msgspec.Raw
        self._typed = msgspec.msgpack.Decoder(list[union]) if self._types else None
        lengths = msgspec.Meta(min_length=2, max_length=limits.max_parts)
        self._parts = msgspec.msgpack.Decoder(Annotated[list[msgspec.Raw], lengths])

    @property
    def commands(self) -> Mapping[type, str]:
        """The hot commands by the types that `decode_hot` returns."""
        return self._types

    def decode_hot(self, frames: Sequence[bytes]) -> list[Any] | None:
        """A BATCH of hot commands only, as typed messages with `options` and `body`; None for everything else."""
        if len(frames) != 4 or frames[1] != BATCH or self._typed is None:
            return None
        packed = frames[3]
        if batch_length(packed) > self._limits.max_batch_messages:
            return None
        try:
            return self._typed.decode(packed)
        except (msgspec.DecodeError, RecursionError, ValueError):
            return None

    def messages(self, frames: Sequence[bytes]) -> Iterator[Decoded]:
        """All valid messages in `frames`; invalid ones are skipped."""
        typed = self.decode_hot(frames)
        if typed is None:
            yield from (decoded for decoded in self.decode(frames) if not isinstance(decoded, Refusal))
            return
        types = self._types
        for message in typed:
            body = message.body
            yield types[type(message)], message.options, () if body is None else (body,)

    def decode(self, frames: Sequence[bytes]) -> Iterator[Decoded | Refusal]:
        """The messages in `frames` (without routing id and delimiter; the first frame is MAGIC)."""
        if len(frames) < 3:
            yield Refusal(codes.MALFORMED, "a message has at least the frames SCALE0/1, command and options")
        elif frames[1] == BATCH:
            yield from self._decode_batch(frames)
        else:
            yield self._decode_one(frames)

    def _decode_one(self, frames: Sequence[bytes]) -> Decoded | Refusal:
        command, options = frames[1], frames[2]
        if len(options) > self._limits.max_options_bytes:
            return Refusal(codes.TOO_BIG, f"options are over {self._limits.max_options_bytes} bytes")
        decoder = self._json.get(command)
        if decoder is None:
            return self._unknown(command)
        if not depth_within(options, self._limits.max_json_depth):
            return Refusal(codes.MALFORMED, f"options nest deeper than {self._limits.max_json_depth}")
        if has_slow_numbers(options, MAX_OPTION_EXPONENTS):
            return Refusal(codes.MALFORMED, f"options have more than {MAX_OPTION_EXPONENTS} numbers with an exponent")
        try:
            return command.decode(), decoder.decode(options or b"{}"), frames[3:]
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            return Refusal(codes.MALFORMED, f"{command.decode()}: {error}")

    def _decode_batch(self, frames: Sequence[bytes]) -> Iterator[Decoded | Refusal]:
        if len(frames) != 4:
            yield Refusal(codes.MALFORMED, "a BATCH has exactly four frames")
            return
        packed = frames[3]
        if batch_length(packed) > self._limits.max_batch_messages:
            yield Refusal(codes.TOO_BIG, f"a BATCH holds at most {self._limits.max_batch_messages} messages")
            return
        yield from self._walk_batch(packed)

    def _walk_batch(self, packed: bytes) -> Iterator[Decoded | Refusal]:
        try:
            messages = RAW_MESSAGES.decode(packed)
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            yield Refusal(codes.MALFORMED, f"BATCH: {error}")
            return
        for message in messages:
            yield self._decode_packed(message)

    def _decode_packed(self, message: msgspec.Raw) -> Decoded | Refusal:
        """One message of a batch: decoded alone, so that its errors and its memory are its own."""
        try:
            parts = self._parts.decode(message)
            command = _text.decode(parts[0])
            if command in self._alone:
                return Refusal(codes.NOT_ALLOWED, f"{command} is not allowed in a BATCH")
            decoder = self._msgpack.get(command)
            if decoder is None:
                return self._unknown(command.encode("utf-8", "replace"))
            if len(memoryview(parts[1])) > self._limits.max_options_bytes:
                return Refusal(codes.TOO_BIG, f"options are over {self._limits.max_options_bytes} bytes")
            options = decoder.decode(parts[1])
            values = [getattr(options, name) for name in self._any.get(command, ())]
            if values and not nests_within(values, self._limits.max_json_depth - 1):
                return Refusal(codes.MALFORMED, f"options nest deeper than {self._limits.max_json_depth}")
            return command, options, [_bin.decode(part) for part in parts[2:]]
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            return Refusal(codes.MALFORMED, f"BATCH: {error}")

    def _unknown(self, command: bytes) -> Refusal:
        shown = command[:32].decode("ascii", "backslashreplace")
        if shown in self._elsewhere:
            return Refusal(codes.NOT_ALLOWED, f"{shown} is not for this socket")
        return Refusal(codes.UNKNOWN_COMMAND, f"unknown command {shown!r}")


def any_options(schema: type) -> tuple[str, ...]:
    """The options that may be any value."""
    fields = msgspec.structs.fields(schema)
    return tuple(field.name for field in fields if field.type is Any or Any in get_args(field.type))


def batch_splitter(
    limits: Limits, ignores: Callable[[str, bytes], bool]
) -> Callable[[str, list[bytes]], Sequence[list[bytes]]]:
    """Split a long BATCH into several short ones, so that other clients have their turn in between.

    The chunks, one after the other, mean what the BATCH means. An invalid BATCH, or one over the limit, stays whole and
    is rejected. Each message begins with its routing id; those of clients that are ignored are not split.
    """
    limit = limits.max_batch_messages

    def split(socket: str, message: list[bytes]) -> Sequence[list[bytes]]:
        if len(message) != 5 or message[2] != BATCH or message[1] != MAGIC:
            return (message,)
        count = batch_length(message[4])
        is_short = count < 2 or (count <= CHUNK_MESSAGES and len(message[4]) <= CHUNK_BYTES)
        is_over = count > limit or sum(map(len, message[1:])) > limits.max_message_bytes
        if is_short or is_over or ignores(socket, message[0]):
            return (message,)
        try:
            raw = RAW_MESSAGES.decode(message[4])
        except (msgspec.DecodeError, RecursionError, ValueError):
            return (message,)
        header = message[:4]
        return [[*header, _array_of(chunk)] for chunk in _chunks_of(raw)]

    return split


def _chunks_of(messages: Sequence[msgspec.Raw]) -> Iterator[Sequence[msgspec.Raw]]:
    start = size = 0
    for index, message in enumerate(messages):
        length = len(memoryview(message))
        size += length
        if index > start and (index - start == CHUNK_MESSAGES or size > CHUNK_BYTES):
            yield messages[start:index]
            start, size = index, length
    yield messages[start:]


def _array_of(messages: Sequence[msgspec.Raw]) -> bytes:
    """A MessagePack array of packed messages."""
    return b"".join((b"\xdc", len(messages).to_bytes(2, "big"), *messages))

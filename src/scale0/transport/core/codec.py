"""Frames to messages and back: the codec of `SCALE0/1`, one by one and in BATCH.

Lives here: bytes. Never here: what a message means. Invariant: whatever the frames hold, decoding gives messages or
raises `Refusal`; memory stays within a small multiple of the frames' own size. A batch is decoded by one call into
typed messages; only when that fails is it walked message by message, so that one bad message does not cost the others.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec

from scale0.kernel import codes
from scale0.kernel.effects import Message
from scale0.kernel.errors import Refusal
from scale0.kernel.limits import Limits

MAGIC: Final = b"SCALE0/1"
BATCH: Final = b"BATCH"
QUICK_LEVELS: Final = 8
"""Levels of nesting that are taken off whole: what is left then has few ends to walk along."""

# A string to its end, closed or not: no byte is looked at twice, whatever the text is.
_STRINGS: Final = re.compile(rb'"(?>[^"\\]+|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_ONE_BRACKET: Final = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_RUNS: Final = re.compile(rb"\[+|\]+")
_to_json: Final = msgspec.json.Encoder().encode
_to_msgpack: Final = msgspec.msgpack.Encoder().encode
RAW_MESSAGES: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])
"""The messages of a BATCH, each as it is packed."""
_text: Final = msgspec.msgpack.Decoder(str)
_bin: Final = msgspec.msgpack.Decoder(bytes)

Decoded = tuple[str, Any, Sequence[bytes]]
"""Command, options (of the command's type), bodies."""


def encode(message: Message) -> list[bytes]:
    """One message as frames, options in JSON; ready frames pass through."""
    if isinstance(message, list):
        return message
    command, options, *bodies = message
    return [MAGIC, command.encode(), _to_json(options) if options else b"", *bodies]


def encode_batch(messages: Sequence[Message], limit_messages: int, limit_bytes: int) -> list[list[bytes]]:
    """Many messages as few: one BATCH, halved while it is over a limit."""
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


def depth_within(data: bytes, limit: int) -> bool:
    """True if JSON text nests at most `limit` deep; wrong text may be judged either way."""
    if data.count(b"[") + data.count(b"{") <= limit:
        return True
    left = _STRINGS.sub(b"", data).translate(_ONE_BRACKET, _NO_BRACKETS)
    levels = min(limit, QUICK_LEVELS)
    for _ in range(levels):
        left = left.replace(b"[]", b"")  # the innermost ones, all at once
    depth = 0
    for run in _RUNS.findall(left):
        depth += len(run) if run.startswith(b"[") else -len(run)
        if depth > limit - levels:
            return False
    return True


class Codec:
    """Decodes what one role may hear. `schemas` names the commands and the types of their options."""

    __slots__ = ("_elsewhere", "_json", "_limits", "_msgpack", "_parts", "_typed", "_types")

    def __init__(
        self, schemas: Mapping[str, type], hot: Container[str], elsewhere: Container[str], limits: Limits
    ) -> None:
        """`hot` commands have options of a few scalars, safe to decode unseen; `elsewhere` are refused with 403."""
        self._limits = limits
        self._elsewhere = elsewhere
        self._json: dict[bytes, msgspec.json.Decoder[Any]] = {
            name.encode(): msgspec.json.Decoder(schema) for name, schema in schemas.items()
        }
        self._msgpack: dict[str, msgspec.msgpack.Decoder[Any]] = {
            name: msgspec.msgpack.Decoder(schema) for name, schema in schemas.items()
        }
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
        """The hot commands by the types that `decode_hot` gives."""
        return self._types

    def decode_hot(self, frames: Sequence[bytes]) -> list[Any] | None:
        """A BATCH of hot commands alone, as typed messages with `options` and `body`; None for everything else."""
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
        """What can be understood of `frames`, hot or not: for those who have nobody to complain to."""
        typed = self.decode_hot(frames)
        if typed is None:
            yield from (decoded for decoded in self.decode(frames) if not isinstance(decoded, Refusal))
            return
        types = self._types
        for message in typed:
            body = message.body
            yield types[type(message)], message.options, () if body is None else (body,)

    def decode(self, frames: Sequence[bytes]) -> Iterator[Decoded | Refusal]:
        """The messages in `frames` (without routing id and delimiter, the first frame being MAGIC)."""
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
        """One message of a batch: taken apart alone, so that only its own parts cost memory, and its faults only it."""
        try:
            parts = self._parts.decode(message)
            command = _text.decode(parts[0])
            decoder = self._msgpack.get(command)
            if decoder is None:
                return self._unknown(command.encode("utf-8", "replace"))
            if len(memoryview(parts[1])) > self._limits.max_options_bytes:
                return Refusal(codes.TOO_BIG, f"options are over {self._limits.max_options_bytes} bytes")
            return command, decoder.decode(parts[1]), [_bin.decode(part) for part in parts[2:]]
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            return Refusal(codes.MALFORMED, f"BATCH: {error}")

    def _unknown(self, command: bytes) -> Refusal:
        shown = command[:32].decode("ascii", "backslashreplace")
        if shown in self._elsewhere:
            return Refusal(codes.NOT_ALLOWED, f"{shown} is not for this socket")
        return Refusal(codes.UNKNOWN_COMMAND, f"unknown command {shown!r}")


def batch_length(packed: bytes) -> int:
    """How many messages a MessagePack array claims to hold, from its head alone; 0 if it is no array."""
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

"""A long BATCH as several short ones, so that others have their turn between them.

Lives here: where a BATCH is cut. Never here: what its messages mean. Invariant: the portions mean, one after the other,
what the BATCH means; one that is over the limit or broken stays whole, and is refused as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from scale0.kernel.limits import Limits
from scale0.transport.core.codec import BATCH, MAGIC, RAW_MESSAGES, batch_length

PORTION_MESSAGES: Final = 100
"""Requests of one portion: one or two milliseconds of a broker."""


def portions_of(
    limits: Limits, ignores: Callable[[str, bytes], bool]
) -> Callable[[str, list[bytes]], Sequence[list[bytes]]]:
    """What cuts messages of a door, each with its routing id first; `ignores`: it is not worth it for that one."""
    limit = limits.max_batch_messages

    def portions(door: str, message: list[bytes]) -> Sequence[list[bytes]]:
        if len(message) != 5 or message[2] != BATCH or message[1] != MAGIC:
            return (message,)
        if not PORTION_MESSAGES < batch_length(message[4]) <= limit or ignores(door, message[0]):
            return (message,)
        try:
            raw = RAW_MESSAGES.decode(message[4])
        except (msgspec.DecodeError, RecursionError, ValueError):
            return (message,)
        head = message[:4]
        starts = range(0, len(raw), PORTION_MESSAGES)
        return [[*head, _array_of(raw[start : start + PORTION_MESSAGES])] for start in starts]

    return portions


def _array_of(messages: Sequence[msgspec.Raw]) -> bytes:
    """A MessagePack array of what is packed already."""
    return b"".join((b"\xdc", len(messages).to_bytes(2, "big"), *messages))

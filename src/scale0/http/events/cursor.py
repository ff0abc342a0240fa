"""Where a reader stands: the number of the last event of each source, as `source:seq,source:seq`.

Lives here: the text and back. Never here: what the numbers mean to whom. Invariants: a vector has one text, and only
that text is read; what is no vector is refused, whoever sent it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote

from scale0.history.events.columns import MAX_BIGINT
from scale0.kernel.errors import Scale0Error

MAX_SOURCES: Final = 64
"""Brokers and Helens whose events one server tells of; a header of a request must hold them all."""
MAX_TEXT: Final = 4_096
_PLAIN: Final = ":"
"""Besides letters, digits and `_.-~`: these are in identities."""
_PART: Final = re.compile(r"([A-Za-z0-9._~:%-]{1,512}):(0|[1-9][0-9]{0,18})", re.ASCII)

Vector = Mapping[str, int]
"""By source: everything up to this number is known."""


class InvalidCursor(Scale0Error):
    """A text that is no position."""


def write(vector: Vector) -> str:
    """The text; sources in their order."""
    return ",".join(f"{quote(source, safe=_PLAIN)}:{vector[source]}" for source in sorted(vector))


def read(text: str) -> dict[str, int]:
    """What a text says. NoVector if it says nothing."""
    if not text:
        return {}
    parts = text.split(",") if len(text) <= MAX_TEXT else []
    if not 1 <= len(parts) <= MAX_SOURCES:
        raise InvalidCursor("a position is too long, or of too many sources")
    found: dict[str, int] = {}
    for part in parts:
        match = _PART.fullmatch(part)
        if match is None or int(match[2]) > MAX_BIGINT:
            raise InvalidCursor("a position is written source:number,source:number")
        found[unquote(match[1], errors="replace")] = int(match[2])
    if write(found) != text:
        raise InvalidCursor("a position names each source once, in order, and as an event's id does")
    return found

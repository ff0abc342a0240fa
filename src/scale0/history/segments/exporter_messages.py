"""What the writer's process and its parent say to each other: lines of JSON over two pipes.

Lives here: the words of both. Never here: a pipe. The parent says `Settings` once, then perhaps FINISH; the end of its
pipe means that it is gone. Invariant: a line is bounded, whatever an error has to say.
"""

from __future__ import annotations

from typing import Final

import msgspec

FINISH: Final = b"finish\n"
"""Write what there is, and end."""
MAX_LINE_BYTES: Final = 64 * 1024
MAX_WHY_CHARS: Final = 1_000


class SegmentWritten(msgspec.Struct, frozen=True, tag="wrote"):
    """These events are safe: the journal need not have them any more."""

    first_seq: int
    last_seq: int
    name: str = ""
    """Of the segment; blank: it was there already."""


class ExportFailed(msgspec.Struct, frozen=True, tag="failed"):
    """Something is in the way; it is tried again after a while."""

    why: str
    damaged: bool = False
    """It is a row of the journal: trying again does not help."""


class SegmentRemoved(msgspec.Struct, frozen=True, tag="removed"):
    """Days that were older than wanted."""

    days: tuple[str, ...]


Said = SegmentWritten | ExportFailed | SegmentRemoved

decode: Final = msgspec.json.Decoder(Said).decode


def line(said: Said) -> bytes:
    """As it goes over the pipe."""
    return msgspec.json.encode(said) + b"\n"


def why(error: BaseException) -> str:
    """An error in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:MAX_WHY_CHARS]

"""The name of a segment: `written=<day>/seg-<source>-<boot>-<first seq>-<last seq>.parquet`.

One range of one source has one name, and a name that `name_of` would not make is not a segment. The source is
percent-encoded (Spark fails on `:` in a name); its `-` stays, because the three numbers are parsed from the right.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from scale0.history.events.columns import MAX_BIGINT

MAX_NAME_BYTES: Final = 255
"""The longest name that file systems allow."""
MAX_NUMBERS_BYTES: Final = 3 * (1 + 19)
"""A dash and the largest number, three times."""

_PREFIX: Final = "seg-"
_SUFFIX: Final = ".parquet"
_DAY: Final = "written="

_PLAIN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
"""Bytes of a source that are not encoded."""
_NUMBER: Final = r"(0|[1-9][0-9]{0,18})"
_NAME: Final = re.compile(
    rf"seg-((?:[A-Za-z0-9._-]|%[0-9A-F]{{2}})+)-{_NUMBER}-{_NUMBER}-{_NUMBER}\.parquet",
    re.ASCII,
)
_FOLDER: Final = re.compile(r"written=([0-9]{4})-([0-9]{2})-([0-9]{2})", re.ASCII)


class Segment(NamedTuple):
    """The events `first_seq` to `last_seq` of one boot of one source."""

    source: str
    boot: int
    first_seq: int
    last_seq: int

    @property
    def events(self) -> int:
        """The number of events: a segment has no gaps."""
        return self.last_seq - self.first_seq + 1


def encode(source: str) -> str:
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in source.encode())


def decode(text: str) -> str | None:
    """The source, or None if the text is not an encoded source."""
    try:
        source = unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        return None
    return source if source and encode(source) == text else None


def fits(source: str) -> bool:
    """True if the segment names of this source are short enough for every file system, with any numbers."""
    return 0 < len(encode(source)) <= MAX_NAME_BYTES - len(_PREFIX) - len(_SUFFIX) - MAX_NUMBERS_BYTES


def name_of(segment: Segment) -> str:
    """The file name. ValueError for an impossible segment, which is a bug."""
    source, boot, first, last = segment
    if not fits(source):
        raise ValueError(f"the source {source!r} is too long for the name of a file")
    if not (0 <= boot <= MAX_BIGINT and 1 <= first <= last <= MAX_BIGINT):
        raise ValueError(f"impossible segment: events {first} to {last} of boot {boot}")
    return f"{_PREFIX}{encode(source)}-{boot}-{first}-{last}{_SUFFIX}"


def parse(name: str) -> Segment | None:
    """The segment of this name; None if it is not a segment."""
    match = _NAME.fullmatch(name) if len(name) <= MAX_NAME_BYTES else None
    if match is None:
        return None
    source = decode(match[1])
    boot, first, last = int(match[2]), int(match[3]), int(match[4])
    if source is None or not fits(source) or boot > MAX_BIGINT or not 1 <= first <= last <= MAX_BIGINT:
        return None
    return Segment(source, boot, first, last)


def folder_of(day: date) -> str:
    return f"{_DAY}{day.isoformat()}"


def day_of(folder: str) -> date | None:
    """The day of a directory; None if it is not one of ours."""
    match = _FOLDER.fullmatch(folder)
    if match is None:
        return None
    try:
        return date(int(match[1]), int(match[2]), int(match[3]))
    except ValueError:
        return None


def day_at(wall: float) -> date:
    return datetime.fromtimestamp(wall, UTC).date()

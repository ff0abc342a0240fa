"""Damage of SQLite's write-ahead log that loses commits: it is cut, or one bit of it flips.

The format: a header of 32 bytes, then frames with a header of 24 bytes and a page. A frame is valid while its salts are
those of the file's header; the last frame of a commit has the size of the database, which is not 0.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

DATABASE: Final = "scale0.db"
DATABASE_LOG: Final = f"{DATABASE}-wal"
HEADER_BYTES, FRAME_HEADER_BYTES = 32, 24
KEPT_COMMITS: Final = 1
"""The newest commit is not damaged alone: the process may have been killed before it noted or acknowledged that one."""


def commits(data: bytes | bytearray) -> list[tuple[int, int]]:
    """Where each commit of a log begins and ends."""
    size = FRAME_HEADER_BYTES + int.from_bytes(data[8:12], "big")
    found, begin = [], HEADER_BYTES
    for at in range(HEADER_BYTES, len(data) - size + 1, size):
        if data[at + 8 : at + 16] != data[16:24]:
            break
        if data[at + 4 : at + 8] != bytes(4):
            found.append((begin, at + size))
            begin = at + size
    return found


def chosen(data: bytes | bytearray, dice: random.Random) -> int | None:
    """A byte of a commit that must be missed; None: the log has none."""
    known = commits(data)[: -KEPT_COMMITS or None]
    return dice.randrange(*dice.choice(known)) if known else None


def cut(log: Path, dice: random.Random) -> str:
    """What was done; empty: nothing."""
    data = log.read_bytes()
    at = chosen(data, dice)
    if at is None:
        return ""
    log.write_bytes(data[:at])
    return f"cut at byte {at} of {len(data)}"


def flip(log: Path, dice: random.Random) -> str:
    """What was done; empty: nothing."""
    data = bytearray(log.read_bytes())
    at = chosen(data, dice)
    if at is None:
        return ""
    data[at] ^= 1 << dice.randrange(8)
    log.write_bytes(data)
    return f"one bit of byte {at} of {len(data)} flipped"

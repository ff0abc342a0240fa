"""Backfills that wait for a stream: one small file each, in the warehouse.

Lives here: asking, and being asked. Never here: the work. Invariants: a request is whole or not there; it is removed
only after what it asked for was committed, so a killed stream does it again.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from scale0.pipeline.parameters import Parameters
from scale0.pipeline.warehouse import disk

QUEUE: Final = "queue"
SUFFIX: Final = ".json"


class Wanted(msgspec.Struct, frozen=True):
    """One backfill."""

    first_us: int
    end_us: int | None
    parameters: Parameters | None = None


def enqueue(root: Path, wanted: Wanted) -> None:
    """Leave a request for the stream."""
    folder = root / QUEUE
    disk.make(folder)
    name = f"{time.time_ns()}-{secrets.token_hex(4)}"
    partial = folder / f".{name}"
    disk.write(partial, msgspec.json.encode(wanted))
    partial.rename(folder / f"{name}{SUFFIX}")
    disk.sync(folder)


def waiting(root: Path) -> Iterator[tuple[str, Wanted]]:
    """What was asked for, oldest first. ValueError for a file that nobody here wrote."""
    folder = root / QUEUE
    if not folder.is_dir():
        return
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        yield path.name, msgspec.json.decode(path.read_bytes(), type=Wanted)


def dequeue(root: Path, name: str) -> None:
    """It is done."""
    (root / QUEUE / name).unlink(missing_ok=True)

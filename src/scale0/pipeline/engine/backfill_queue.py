"""Backfills that wait for a stream: one small file each, in the warehouse.

Lives here: asking, and being asked. Never here: the work. Invariants: a request is whole or not there; it is removed
only after what it asked for was committed, so a killed stream does it again; one that cannot be done is put away, and
stands in nobody's way.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from scale0.pipeline.parameters import Parameters
from scale0.pipeline.warehouse import durable_files

QUEUE: Final = "queue"
SUFFIX: Final = ".json"
REFUSED: Final = ".refused"
"""What the name of a request ends in that was put away."""


class QueuedBackfill(msgspec.Struct, frozen=True):
    """One backfill."""

    first_us: int
    end_us: int | None
    parameters: Parameters | None = None


def enqueue(root: Path, wanted: QueuedBackfill) -> None:
    """Leave a request for the stream."""
    folder = root / QUEUE
    durable_files.make(folder)
    name = f"{time.time_ns()}-{secrets.token_hex(4)}"
    partial = folder / f".{name}"
    durable_files.write(partial, msgspec.json.encode(wanted))
    partial.rename(folder / f"{name}{SUFFIX}")
    durable_files.sync(folder)


def waiting(root: Path) -> Iterator[tuple[str, QueuedBackfill | str]]:
    """What was asked for, oldest first; of a request that cannot be read, why."""
    folder = root / QUEUE
    if not folder.is_dir():
        return
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        yield path.name, _read(path)


def _read(path: Path) -> QueuedBackfill | str:
    try:
        return msgspec.json.decode(path.read_bytes(), type=QueuedBackfill)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return f"it is no request ({error})"
    except OSError as error:
        return f"it cannot be read ({error.strerror})"


def dequeue(root: Path, name: str) -> None:
    """It is done."""
    (root / QUEUE / name).unlink(missing_ok=True)


def put_away(root: Path, name: str) -> Path:
    """It cannot be done: kept under another name, for whoever asked; says where."""
    path = root / QUEUE / name
    aside = path.with_name(f"{name}{REFUSED}")
    path.rename(aside)
    return aside

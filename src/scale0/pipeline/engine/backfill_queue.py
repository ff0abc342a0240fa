"""Backfill requests for a running stream: one small file each, in the warehouse.

A request is complete or does not exist. It is removed after its backfill was committed, so a killed stream repeats it.
A request that fails is renamed, so that it does not block others.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from scale0.pipeline.aggregation import Parameters
from scale0.pipeline.warehouse import durable_files

QUEUE: Final = "queue"
SUFFIX: Final = ".json"
REFUSED: Final = ".refused"
"""Suffix of a request that failed."""


class QueuedBackfill(msgspec.Struct, frozen=True):
    first_us: int
    end_us: int | None
    parameters: Parameters | None = None


def enqueue(root: Path, wanted: QueuedBackfill) -> None:
    folder = root / QUEUE
    durable_files.make_directory(folder)
    name = f"{time.time_ns()}-{secrets.token_hex(4)}"
    partial = folder / f".{name}"
    durable_files.write(partial, msgspec.json.encode(wanted))
    partial.rename(folder / f"{name}{SUFFIX}")
    durable_files.sync(folder)


def queued(root: Path) -> Iterator[tuple[str, QueuedBackfill | str]]:
    """All requests, oldest first; an error message for a request that cannot be read."""
    folder = root / QUEUE
    if not folder.is_dir():
        return
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        yield path.name, _read(path)


def _read(path: Path) -> QueuedBackfill | str:
    try:
        return msgspec.json.decode(path.read_bytes(), type=QueuedBackfill)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return f"it is not a valid request ({error})"
    except OSError as error:
        return f"it cannot be read ({error.strerror})"


def dequeue(root: Path, name: str) -> None:
    (root / QUEUE / name).unlink(missing_ok=True)


def reject(root: Path, name: str) -> Path:
    """Rename a request that cannot be done, and return its new path."""
    path = root / QUEUE / name
    aside = path.with_name(f"{name}{REFUSED}")
    path.rename(aside)
    return aside

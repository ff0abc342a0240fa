"""Pure functions on file entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from scale0.pipeline.warehouse.records import FileEntry, Sum


class Listed(NamedTuple):
    """A data file to read."""

    path: str
    """Absolute."""
    parts: frozenset[int]
    """The valid parts among the requested ones."""
    carved: bool
    """True if the file holds other parts too: filter by `part`."""


def keep(entry: FileEntry, wanted: Callable[[int], bool]) -> FileEntry | None:
    """The entry restricted to the wanted parts; None if none is left."""
    parts = {part: total for part, total in entry.parts.items() if wanted(part)}
    if len(parts) == len(entry.parts):
        return entry
    return msgspec.structs.replace(entry, parts=parts, carved=True) if parts else None


def kept(entries: Iterable[FileEntry], wanted: Callable[[int], bool]) -> tuple[FileEntry, ...]:
    return tuple(left for entry in entries if (left := keep(entry, wanted)) is not None)


def sums(entries: Iterable[FileEntry]) -> dict[int, Sum]:
    """Rows and hash of each part over all files."""
    total: dict[int, Sum] = {}
    for entry in entries:
        for part, (rows, mixed) in entry.parts.items():
            before = total.get(part, (0, 0))
            total[part] = (before[0] + rows, before[1] ^ mixed)
    return total


def joined(entries: Iterable[FileEntry]) -> list[FileEntry]:
    """Merge entries of several day manifests into one per file."""
    by_path: dict[str, FileEntry] = {}
    for entry in entries:
        other = by_path.get(entry.path)
        if other is not None:
            entry = FileEntry(entry.path, entry.bytes, {**other.parts, **entry.parts}, True)
        by_path[entry.path] = entry
    return list(by_path.values())

"""Garbage collection: deletes files that no manifest of the last 24 hours lists."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from scale0.pipeline.time_ranges import DAY_US
from scale0.pipeline.warehouse.errors import RESTORE, WarehouseDamaged

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from scale0.pipeline.warehouse.records import DayManifestRef, Manifest
    from scale0.pipeline.warehouse.warehouse import Warehouse

KEPT_US: Final = DAY_US
"""How long a reader may use a manifest after it was replaced."""


class Collected(msgspec.Struct):
    manifests: int = 0
    files: int = 0
    bytes: int = 0


class _Named(msgspec.Struct):
    """The only field of an entry that is decoded here."""

    path: str


class _Names(msgspec.Struct):
    """A day manifest with only its paths."""

    events: list[_Named] = []
    pulses: list[_Named] = []
    slabs: dict[str, list[_Named]] = {}


def collect(warehouse: Warehouse, now_us: int) -> Collected:
    """Delete old manifests, then every file and directory that is no longer listed.

    The newest manifest and its files stay, and so do files that a reader may have opened within the last 24 hours. Only
    the holder of the lock collects, so every staging directory that is not its own is abandoned.
    """
    warehouse.reach("collection.begun")
    numbers = warehouse.numbers()
    manifests = {number: warehouse.manifest(number) for number in numbers}
    old = []
    for number in numbers[:-1]:
        # A manifest was current until the next one was created.
        if manifests[number + 1].written_us > now_us - KEPT_US:
            break
        old.append(number)
    named = _named(warehouse, [manifest for number, manifest in manifests.items() if number not in old])
    out = Collected()
    # From the lowest up, so that no gap is ever visible; and before the files, so that no manifest lists a deleted
    # file.
    for number in old:
        (warehouse.root / "manifest" / f"{number}.json").unlink(missing_ok=True)
        out.manifests += 1
        warehouse.reach("collection.manifest_removed")
    for path in [*_unnamed(warehouse, named), *(warehouse.root / "manifest").glob(".*")]:
        out.files += 1
        out.bytes += path.lstat().st_size
        path.unlink()
        warehouse.reach("collection.file_removed")
    _remove_empty_folders(warehouse)
    return out


def _named(warehouse: Warehouse, manifests: Iterable[Manifest]) -> set[str]:
    """Relative paths of everything that these manifests list."""
    named: set[str] = set()
    chapters: dict[str, DayManifestRef] = {}
    for manifest in manifests:
        groups = [*manifest.open.values(), *manifest.months.values(), manifest.ledger]
        named.update(entry.path for group in groups for entry in group)
        named.update(ref.path for ref in manifest.seen.values())
        chapters.update({ref.path: ref for ref in manifest.chapters.values()})
    for ref in chapters.values():
        try:
            names = warehouse.read(ref, _Names)
        except FileNotFoundError as error:
            raise WarehouseDamaged(
                f"{warehouse.path(ref.path)} is missing, so nothing was deleted: {RESTORE}"
            ) from error
        named.update(entry.path for group in (names.events, names.pulses, *names.slabs.values()) for entry in group)
    return named | chapters.keys()


def _unnamed(warehouse: Warehouse, named: set[str]) -> Iterator[Path]:
    data = warehouse.root / "data"
    for place, folders, files in os.walk(data):
        here = Path(place)
        if here == data:
            folders[:] = [folder for folder in folders if folder not in warehouse.live]
        relative = here.relative_to(warehouse.root).as_posix()
        yield from (here / name for name in files if f"{relative}/{name}" not in named)


def _remove_empty_folders(warehouse: Warehouse) -> None:
    data = warehouse.root / "data"
    for place, _, _ in os.walk(data, topdown=False):
        path = Path(place)
        if path != data and path.relative_to(data).parts[0] not in warehouse.live:
            try:
                path.rmdir()
            except OSError:
                # It holds listed files.
                pass

"""Retention drops old days from the manifest; garbage collection deletes files that are no longer listed.

Covered events stay covered, so an old segment that appears again is not new. Months stay: they are small. A month is
never computed again once one of its days was dropped.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from scale0.pipeline.time_ranges import DAY_US, Period, days_of_month, to_time
from scale0.pipeline.warehouse.records import RESTORE, WarehouseDamaged, WarehouseError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Set

    from scale0.pipeline.warehouse.records import DayManifestRef, Manifest
    from scale0.pipeline.warehouse.transaction import Transaction
    from scale0.pipeline.warehouse.warehouse import Warehouse

LEAST_KEEP_DAYS: Final = 62
"""Two months of 31 days: this month and the previous one are computed from their days; anomalies use the last 56
days.
"""


class TooFewDays(WarehouseError):
    pass


def check_keep_days(keep_days: int | None) -> int | None:
    """Return `keep_days` (None: keep all). TooFewDays if tables need more days."""
    if keep_days is not None and keep_days < LEAST_KEEP_DAYS:
        raise TooFewDays(
            f"cannot keep only {keep_days} days: this month and the previous one are computed from their days, and"
            f" anomalies use the last eight weeks; keep {LEAST_KEEP_DAYS} days or more, or omit the option to keep all"
        )
    return keep_days


def retention(transaction: Transaction, keep_days: int) -> list[int]:
    """Drop days more than `keep_days` before the base's horizon. Returns the dropped days."""
    check_keep_days(keep_days)
    return drop_before(transaction, transaction.base.horizon_us // DAY_US - keep_days)


def drop_before(transaction: Transaction, floor: int) -> list[int]:
    """Drop days before this one. Returns the dropped days."""
    if floor <= transaction.floor_day:
        return []
    transaction.floor_day = floor
    dropped = [day for day in transaction.days() if day < floor]
    for day in dropped:
        transaction.drop(day)
    # While a directory exists, its segments could be listed again and would look new.
    standing = {folder for folders in transaction.listings.values() for folder in folders}
    oldest = f"written={to_time(floor * DAY_US).date().isoformat()}"
    transaction.forgotten.update(
        folder for folder in transaction.base.seen if folder < oldest and folder not in standing
    )
    return dropped


def whole_parts(transaction: Transaction, period: Period, parts: Set[int]) -> Set[int]:
    """The parts that can still be computed: not the months of which retention dropped a day."""
    if period != "month":
        return parts
    return frozenset(month for month in parts if days_of_month(month).start >= transaction.floor_day)


KEPT_US: Final = DAY_US
"""How long a reader may use a manifest after it was replaced."""


class Collected(msgspec.Struct):
    manifests: int = 0
    files: int = 0
    bytes: int = 0


class _PathOnly(msgspec.Struct):
    """The only field of an entry that is decoded here."""

    path: str


class _DayPaths(msgspec.Struct):
    """A day manifest with only its paths."""

    events: list[_PathOnly] = []
    pulses: list[_PathOnly] = []
    slabs: dict[str, list[_PathOnly]] = {}


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
    named = _listed_paths(warehouse, [manifest for number, manifest in manifests.items() if number not in old])
    out = Collected()
    # From the lowest up, so that no gap is ever visible; and before the files, so that no manifest lists a deleted
    # file.
    for number in old:
        (warehouse.root / "manifest" / f"{number}.json").unlink(missing_ok=True)
        out.manifests += 1
        warehouse.reach("collection.manifest_removed")
    for path in [*_unlisted_files(warehouse, named), *(warehouse.root / "manifest").glob(".*")]:
        out.files += 1
        out.bytes += path.lstat().st_size
        path.unlink()
        warehouse.reach("collection.file_removed")
    _remove_empty_folders(warehouse)
    return out


def _listed_paths(warehouse: Warehouse, manifests: Iterable[Manifest]) -> set[str]:
    named: set[str] = set()
    day_refs: dict[str, DayManifestRef] = {}
    for manifest in manifests:
        groups = [*manifest.open.values(), *manifest.months.values(), manifest.ledger]
        named.update(entry.path for group in groups for entry in group)
        named.update(ref.path for ref in manifest.seen.values())
        day_refs.update({ref.path: ref for ref in manifest.chapters.values()})
    for ref in day_refs.values():
        try:
            names = warehouse.read(ref, _DayPaths)
        except FileNotFoundError as error:
            raise WarehouseDamaged(
                f"{warehouse.path(ref.path)} is missing, so nothing was deleted: {RESTORE}"
            ) from error
        named.update(entry.path for group in (names.events, names.pulses, *names.slabs.values()) for entry in group)
    return named | day_refs.keys()


def _unlisted_files(warehouse: Warehouse, named: set[str]) -> Iterator[Path]:
    data = warehouse.root / "data"
    for directory, folders, files in os.walk(data):
        here = Path(directory)
        if here == data:
            folders[:] = [folder for folder in folders if folder not in warehouse.live]
        relative = here.relative_to(warehouse.root).as_posix()
        yield from (here / name for name in files if f"{relative}/{name}" not in named)


def _remove_empty_folders(warehouse: Warehouse) -> None:
    data = warehouse.root / "data"
    for directory, _, _ in os.walk(data, topdown=False):
        path = Path(directory)
        if path != data and path.relative_to(data).parts[0] not in warehouse.live:
            try:
                path.rmdir()
            except OSError:
                # It holds listed files.
                pass

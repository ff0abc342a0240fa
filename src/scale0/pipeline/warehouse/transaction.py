"""A transaction: the newest manifest with the edits of one run, which becomes the next manifest by one commit.

Only day manifests of changed days are written again. A part is listed by the files of one run, because replacing it
removes it everywhere else. Several threads may replace data sets concurrently.
"""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from scale0.pipeline.time_ranges import DAY_HOURS, MINUTE_US, OPEN_PART, Period, day_of
from scale0.pipeline.warehouse import durable_files
from scale0.pipeline.warehouse.records import (
    FORMAT,
    LIVENESS,
    RESTATEMENTS,
    Coverage,
    DayManifest,
    DayManifestRef,
    EventsFile,
    FileEntry,
    ListedFile,
    Manifest,
    Range,
    Ref,
    Sealed,
    SeenSegments,
    SegmentProblem,
    Sum,
    TableInfo,
    WarehouseError,
    WarehouseFenced,
    merge_entries,
    part_sums,
    restrict,
    restrict_all,
)
from scale0.pipeline.warehouse.segment_sources import public_name, without_credentials

if TYPE_CHECKING:
    from pathlib import Path

    from scale0.pipeline.warehouse.staging import StagingDirectory
    from scale0.pipeline.warehouse.warehouse import Warehouse

MAX_HOUR: Final = 2**31 - 1
"""The largest int."""


class Transaction:
    """An edit of `manifest` (None: of an empty warehouse) with files in a staging directory."""

    def __init__(self, manifest: Manifest | None, warehouse: Warehouse, staging: StagingDirectory) -> None:
        base = manifest or Manifest(0, 0, "", 0, 0, {}, "")
        self.base = base
        self.warehouse = warehouse
        self.staging = staging
        self.coverage = Coverage(base.covered)
        self.newest_us = base.newest_us
        self.floor_day = base.floor_day
        self.listings: dict[str, dict[str, int]] = {public_name(url): dict(of) for url, of in base.listings.items()}
        # Older manifests have credentials of URLs in names.
        problems = (msgspec.structs.replace(one, name=without_credentials(one.name)) for one in base.problems)
        self.problems: dict[str, SegmentProblem] = {problem.name: problem for problem in problems}
        self.tables: dict[str, TableInfo] = dict(base.tables)
        self.day_manifests: dict[int, DayManifest] = {}
        """Those that differ from the base."""
        self.dropped: set[int] = set()
        """Days that were dropped."""
        self.seen: dict[str, set[tuple[str, Range]]] = {}
        """By `written=` directory that was listed: (source, range) of processed segments."""
        self.forgotten: set[str] = set()
        """`written=` directories that are gone for good."""
        self._open = dict(base.open)
        self._months = dict(base.months)
        self._restatements = base.ledger
        self._editing = threading.Lock()
        self._periods: dict[str, Period] = dict(base.periods)

    def days(self) -> list[int]:
        return sorted(({*self.base.chapters} | {*self.day_manifests}) - self.dropped)

    def day_manifest(self, day: int) -> DayManifest:
        """The day manifest with the edits so far; an empty one if there is none."""
        if day in self.day_manifests:
            return self.day_manifests[day]
        return DayManifest(day) if day in self.dropped else self.warehouse.day_manifest(self.base, day)

    def entries(self, data_set: str, parts: Collection[int] | None = None) -> list[FileEntry]:
        """A data set's files with the requested parts (None: all), one entry per file."""
        if parts is None:
            return merge_entries(entry for group in self._groups(data_set, None) for entry in group)
        wanted = frozenset(parts)
        return merge_entries(
            entry for group in self._groups(data_set, wanted) for entry in restrict_all(group, wanted.__contains__)
        )

    def files(self, data_set: str, parts: Collection[int] | None = None) -> list[ListedFile]:
        return [
            ListedFile(str(self.warehouse.path(entry.path)), frozenset(entry.parts), entry.carved)
            for entry in self.entries(data_set, parts)
        ]

    def sums(self, data_set: str, parts: Collection[int] | None = None) -> dict[int, Sum]:
        """Rows and hash of each part of a data set: they show whether it changed."""
        return part_sums(self.entries(data_set, parts))

    def event_files(self, hours: Collection[int]) -> list[str]:
        """Absolute paths of the files with events of these hours. They hold other hours too; each event is in one
        file.
        """
        wanted = frozenset(hours)
        paths = {
            file.path: None
            for day in sorted({day_of(hour) for hour in wanted})
            for file in self.day_manifest(day).events
            if not wanted.isdisjoint(file.hours)
        }
        return [str(self.warehouse.path(path)) for path in paths]

    def kinds_in(self, hours: Collection[int]) -> dict[str, int]:
        wanted = frozenset(hours)
        total: dict[str, int] = defaultdict(int)
        for day in {day_of(hour) for hour in wanted}:
            for file in self.day_manifest(day).events:
                for hour, kinds in file.hours.items():
                    if hour in wanted:
                        for kind, count in kinds.items():
                            total[kind] += count
        return dict(sorted(total.items()))

    def hours_with_events(
        self, first: int | None = None, end: int | None = None, kinds: Collection[str] | None = None
    ) -> list[int]:
        """The hours [first, end) that have an event (of these kinds), ascending."""
        low, high = first or 0, end if end is not None else MAX_HOUR
        hours = {
            hour
            for day in self.days()
            if day_of(low) <= day and day * DAY_HOURS < high
            for file in self.day_manifest(day).events
            for hour, counts in file.hours.items()
            if low <= hour < high and (kinds is None or not counts.keys().isdisjoint(kinds))
        }
        return sorted(hours)

    def has_other_problems(self) -> bool:
        """True if the problems differ from those of the base."""
        return self.problems != {problem.name: problem for problem in self.base.problems}

    def put(self, day_manifest: DayManifest) -> None:
        if day_manifest != self.day_manifest(day_manifest.day):
            self.day_manifests[day_manifest.day] = day_manifest
            self.dropped.discard(day_manifest.day)

    def drop(self, day: int) -> None:
        self.day_manifests.pop(day, None)
        self.dropped.add(day)

    def replace(self, data_set: str, period: Period, parts: Collection[int], entries: Iterable[FileEntry]) -> None:
        """Replace these parts of a data set by these entries. Entries must hold no other parts."""
        replaced, new = frozenset(parts), tuple(entries)
        if stray := {part for entry in new for part in entry.parts} - replaced:
            raise ValueError(f"{data_set}: files hold part {min(stray)}, which is not being replaced")
        if self._periods.setdefault(data_set, period) != period:
            raise ValueError(f"{data_set} has the period {self._periods[data_set]}, not {period}")
        with self._editing:
            self._replace(data_set, period, replaced, new)

    def _replace(self, data_set: str, period: Period, replaced: frozenset[int], new: tuple[FileEntry, ...]) -> None:
        match period:
            case "open" if replaced == {OPEN_PART}:
                self._open[data_set] = new
            case "open":
                raise ValueError(f"{data_set} is open: its only part is {OPEN_PART}")
            case "month":
                self._months[data_set] = (
                    *restrict_all(self._months.get(data_set, ()), lambda part: part not in replaced),
                    *new,
                )
            case "hour":
                self._replace_days(data_set, replaced, new, day_of)
            case "day":
                self._replace_days(data_set, replaced, new, lambda part: part)

    def _replace_days(
        self, data_set: str, replaced: frozenset[int], new: tuple[FileEntry, ...], day_of_part: Callable[[int], int]
    ) -> None:
        for day in sorted({day_of_part(part) for part in replaced}):
            day_manifest = self.day_manifest(day)
            own = [left for entry in new if (left := restrict(entry, lambda part: day_of_part(part) == day))]  # noqa: B023
            entries = (*restrict_all(listed_entries(day_manifest, data_set), lambda part: part not in replaced), *own)
            self.put(with_entries(day_manifest, data_set, entries))

    def add_events(self, day: int, files: Iterable[EventsFile], pulses: Iterable[FileEntry] = ()) -> None:
        day_manifest = self.day_manifest(day)
        self.put(
            msgspec.structs.replace(
                day_manifest, events=(*day_manifest.events, *files), pulses=(*day_manifest.pulses, *pulses)
            )
        )

    def append_restatements(self, entries: Iterable[FileEntry]) -> None:
        self._restatements = (*self._restatements, *entries)

    def set_restatements(self, entries: Iterable[FileEntry]) -> None:
        """Replace the files of the restatements by others with the same rows."""
        self._restatements = tuple(entries)

    def seen_in(self, folder: str) -> set[tuple[str, Range]]:
        """(source, range) of the processed segments of a `written=` directory; the caller may add to it."""
        if folder not in self.seen:
            self.seen[folder] = self.warehouse.seen(self.base, folder).pairs()
        return self.seen[folder]

    def commit(
        self,
        horizon_us: int,
        *,
        now_us: int,
        parameters: Mapping[str, Any],
        code_version: str,
        tables: Mapping[str, TableInfo] | None = None,
    ) -> Manifest:
        """Make it the newest manifest. WarehouseFenced if another driver committed since; then nothing becomes
        visible.
        """
        content = msgspec.structs.replace(
            self.base,
            horizon_us=horizon_us,
            written_us=now_us,
            parameters=dict(parameters),
            code_version=code_version,
            newest_us=self.newest_us,
            floor_day=self.floor_day,
            covered=self.coverage.frozen(),
            open=self._open,
            months=self._months,
            ledger=self._restatements,
            periods=self._periods,
            tables=dict(self.tables if tables is None else tables),
            problems=tuple(self.problems.values()),
            listings=self.listings,
            chapters={day: ref for day, ref in self.base.chapters.items() if day not in self.dropped},
            seen={folder: ref for folder, ref in self.base.seen.items() if folder not in self.forgotten},
        )
        seen = {
            folder: _as_seen(ranges) for folder, ranges in self.seen.items() if ranges and folder not in self.forgotten
        }
        return publish(self.warehouse, self.staging, self.base, content, self.day_manifests, seen)

    def _groups(self, data_set: str, parts: frozenset[int] | None) -> Iterable[tuple[FileEntry, ...]]:
        if data_set == RESTATEMENTS:
            return [self._restatements]
        match self._periods.get(data_set, "hour"):
            case "open":
                return [self._open.get(data_set, ())]
            case "month":
                return [self._months.get(data_set, ())]
            case "day":
                days = self.days() if parts is None else sorted(parts)
            case _:
                days = self.days() if parts is None else sorted({day_of(part) for part in parts})
        return (listed_entries(self.day_manifest(day), data_set) for day in days)


def listed_entries(day_manifest: DayManifest, data_set: str) -> tuple[FileEntry, ...]:
    """A day's files of a data set, or of the liveness samples."""
    return day_manifest.pulses if data_set == LIVENESS else day_manifest.slabs.get(data_set, ())


def with_entries(day_manifest: DayManifest, data_set: str, entries: tuple[FileEntry, ...]) -> DayManifest:
    """The day manifest with these files of a data set, or of the liveness samples."""
    if data_set == LIVENESS:
        return msgspec.structs.replace(day_manifest, pulses=entries)
    slabs = {**day_manifest.slabs, data_set: entries}
    if not entries:
        del slabs[data_set]
    return msgspec.structs.replace(day_manifest, slabs=slabs)


def _as_seen(ranges: set[tuple[str, Range]]) -> SeenSegments:
    names: dict[str, list[Range]] = defaultdict(list)
    for source, one in sorted(ranges):
        names[source].append(one)
    return SeenSegments({source: tuple(ranges) for source, ranges in names.items()})


AHEAD_US: Final = 5 * MINUTE_US
"""How far a source's clock may be ahead of the driver's: later events wait."""


def horizon(transaction: Transaction, now_us: int, until_us: int | None = None) -> int:
    """The time up to which a run computes: the newest covered time, at most now + 5 min, and at most `until_us`."""
    newest = min(transaction.newest_us, now_us + AHEAD_US)
    return newest if until_us is None else min(newest, until_us)


_JSON = msgspec.json.Encoder()


def publish(
    warehouse: Warehouse,
    staging: StagingDirectory,
    base: Manifest,
    content: Manifest,
    day_manifests: Mapping[int, DayManifest],
    seen: Mapping[str, SeenSegments],
) -> Manifest:
    """Write the new files, then create the manifest that lists them.

    Nothing is visible before the hard link, everything after it. Failing to create manifest n + 1 fences off a second
    driver.
    """
    refs = dict(content.chapters)
    for day, day_manifest in sorted(day_manifests.items()):
        refs.pop(day, None)
        if day_manifest.events or day_manifest.pulses or day_manifest.slabs:
            refs[day] = _day_manifest_ref(_write(staging, "chapters", f"day-{day}.json", day_manifest), day_manifest)
            warehouse.reach("chapter.written")
    seen_refs = dict(content.seen)
    for folder, names in sorted(seen.items()):
        if folder not in base.seen or names != warehouse.seen(base, folder):
            seen_refs[folder] = _write(staging, "seen", f"{folder.partition('=')[2]}.json", names)
    staging.seal()
    manifest = msgspec.structs.replace(
        content,
        number=staging.number,
        format=FORMAT,
        attempt=staging.name,
        chapters=dict(sorted(refs.items())),
        seen=dict(sorted(seen_refs.items())),
    )
    _create(warehouse, staging, base.number, manifest)
    return manifest


def _write(staging: StagingDirectory, data_set: str, name: str, content: DayManifest | SeenSegments) -> Ref:
    path = staging.directory(data_set) / name
    body = _JSON.encode(content)
    durable_files.write(path, body)
    return Ref(staging.relative(path), len(body), hashlib.sha256(body).hexdigest())


def _day_manifest_ref(ref: Ref, day_manifest: DayManifest) -> DayManifestRef:
    most = max((len(entries) for entries in day_manifest.slabs.values()), default=0)
    return DayManifestRef(ref.path, ref.bytes, ref.sha256, len(day_manifest.events), len(day_manifest.pulses), most)


def _create(warehouse: Warehouse, staging: StagingDirectory, base_number: int, manifest: Manifest) -> None:
    folder = warehouse.root / "manifest"
    body = _JSON.encode(manifest)
    partial = folder / f".{staging.name}"
    try:
        durable_files.write(partial, _JSON.encode(Sealed(hashlib.sha256(body).hexdigest(), msgspec.Raw(body))))
        warehouse.reach("manifest.written")
        # The link fails if n + 1 exists, but not if it was created and garbage-collected while this driver slept.
        numbers = warehouse.numbers()
        if (numbers[-1] if numbers else 0) != base_number or staging.number != base_number + 1:
            raise _fenced(staging, numbers[-1] if numbers else 0)
        _link(partial, folder / f"{manifest.number}.json", staging)
        staging.committed = True
        warehouse.reach("manifest.created")
        durable_files.sync(folder)
        warehouse.reach("manifest.synced")
    finally:
        partial.unlink(missing_ok=True)


def _link(partial: Path, path: Path, staging: StagingDirectory) -> None:
    try:
        os.link(partial, path)
    except FileExistsError as error:
        # A network file system may report this for our own link if the reply to the first try was lost.
        if not partial.samefile(path):
            raise _fenced(staging, staging.number) from error
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise WarehouseError(
                f"cannot create {path} by a hard link: {error.strerror}; put the warehouse on a file system with hard"
                " links: they protect it from two concurrent drivers"
            ) from error
        raise


def _fenced(staging: StagingDirectory, newest: int) -> WarehouseFenced:
    return WarehouseFenced(
        f"another driver committed manifest {newest} of {staging.warehouse.root} while this one worked on"
        f" {staging.number}: this run was discarded; run it again"
    )

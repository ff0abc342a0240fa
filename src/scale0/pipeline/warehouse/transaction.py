"""A transaction: the newest manifest with the edits of one run, which becomes the next manifest by one commit.

Only day manifests of changed days are written again. A part is listed by the files of one run, because replacing it
removes it everywhere else. Several threads may replace data sets concurrently.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from scale0.pipeline.time_ranges import DAY_HOURS, OPEN_PART, Period, day_of
from scale0.pipeline.warehouse.commit import publish
from scale0.pipeline.warehouse.coverage import Coverage
from scale0.pipeline.warehouse.entries import Listed, joined, keep, kept, sums
from scale0.pipeline.warehouse.records import (
    LEDGER,
    PULSES,
    DayManifest,
    EventsFile,
    FileEntry,
    Manifest,
    Range,
    SeenSegments,
    SegmentProblem,
    Sum,
    TableInfo,
)
from scale0.pipeline.warehouse.segment_sources import known_as, without_key

if TYPE_CHECKING:
    from scale0.pipeline.warehouse.staging import StagingDirectory
    from scale0.pipeline.warehouse.warehouse import Warehouse

MAX_HOUR: Final = 2**31 - 1
"""The largest int."""


class Transaction:
    """An edit of `manifest` (None: of an empty warehouse) with files in a staging directory."""

    def __init__(self, manifest: Manifest | None, warehouse: Warehouse, attempt: StagingDirectory) -> None:
        base = manifest or Manifest(0, 0, "", 0, 0, {}, "")
        self.base = base
        self.warehouse = warehouse
        self.attempt = attempt
        self.coverage = Coverage(base.covered)
        self.newest_us = base.newest_us
        self.floor_day = base.floor_day
        self.listings: dict[str, dict[str, int]] = {known_as(url): dict(of) for url, of in base.listings.items()}
        self.problems: dict[str, SegmentProblem] = {
            problem.name: problem for problem in map(_kept_problem, base.problems)
        }
        self.tables: dict[str, TableInfo] = dict(base.tables)
        self.chapters: dict[int, DayManifest] = {}
        """Those that differ from the base."""
        self.dropped: set[int] = set()
        """Days that were dropped."""
        self.seen: dict[str, set[tuple[str, Range]]] = {}
        """By `written=` directory that was listed: (source, range) of processed segments."""
        self.forgotten: set[str] = set()
        """`written=` directories that are gone for good."""
        self._open = dict(base.open)
        self._months = dict(base.months)
        self._ledger = base.ledger
        self._editing = threading.Lock()
        self._periods: dict[str, Period] = dict(base.periods)

    def days(self) -> list[int]:
        return sorted(({*self.base.chapters} | {*self.chapters}) - self.dropped)

    def chapter(self, day: int) -> DayManifest:
        """The day manifest with the edits so far; an empty one if there is none."""
        if day in self.chapters:
            return self.chapters[day]
        return DayManifest(day) if day in self.dropped else self.warehouse.chapter(self.base, day)

    def covered(self) -> dict[str, tuple[Range, ...]]:
        return self.coverage.frozen()

    def entries(self, slab: str, parts: Collection[int] | None = None) -> list[FileEntry]:
        """A data set's files with the requested parts (None: all), one entry per file."""
        wanted = None if parts is None else frozenset(parts)
        if wanted is None:
            return joined(entry for group in self._groups(slab, None) for entry in group)
        return joined(entry for group in self._groups(slab, wanted) for entry in kept(group, wanted.__contains__))

    def files(self, slab: str, parts: Collection[int] | None = None) -> list[Listed]:
        """The same, for reading."""
        return [
            Listed(str(self.warehouse.path(entry.path)), frozenset(entry.parts), entry.carved)
            for entry in self.entries(slab, parts)
        ]

    def pulses(self, hours: Collection[int] | None = None) -> list[Listed]:
        """The liveness files of these hours."""
        return self.files(PULSES, hours)

    def sums(self, slab: str, parts: Collection[int] | None = None) -> dict[int, Sum]:
        """Rows and hash of each part of a data set: they show whether it changed."""
        return sums(self.entries(slab, parts))

    def event_files(self, hours: Collection[int]) -> list[str]:
        """Absolute paths of the files with events of these hours. They hold other hours too; each event is in one
        file.
        """
        wanted = frozenset(hours)
        paths = {
            file.path: None
            for day in sorted({day_of(hour) for hour in wanted})
            for file in self.chapter(day).events
            if not wanted.isdisjoint(file.hours)
        }
        return [str(self.warehouse.path(path)) for path in paths]

    def kinds_in(self, hours: Collection[int]) -> dict[str, int]:
        wanted = frozenset(hours)
        total: dict[str, int] = defaultdict(int)
        for day in {day_of(hour) for hour in wanted}:
            for file in self.chapter(day).events:
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
            for file in self.chapter(day).events
            for hour, counts in file.hours.items()
            if low <= hour < high and (kinds is None or not counts.keys().isdisjoint(kinds))
        }
        return sorted(hours)

    def has_other_problems(self) -> bool:
        """True if the problems differ from those of the base."""
        return self.problems != {problem.name: problem for problem in self.base.problems}

    def put(self, chapter: DayManifest) -> None:
        if chapter != self.chapter(chapter.day):
            self.chapters[chapter.day] = chapter
            self.dropped.discard(chapter.day)

    def drop(self, day: int) -> None:
        self.chapters.pop(day, None)
        self.dropped.add(day)

    def replace(self, slab: str, period: Period, parts: Collection[int], entries: Iterable[FileEntry]) -> None:
        """Replace these parts of a data set by these entries. Entries must hold no other parts."""
        gone, new = frozenset(parts), tuple(entries)
        if stray := {part for entry in new for part in entry.parts} - gone:
            raise ValueError(f"{slab}: files hold part {min(stray)}, which is not being replaced")
        if self._periods.setdefault(slab, period) != period:
            raise ValueError(f"{slab} has the period {self._periods[slab]}, not {period}")
        with self._editing:
            self._replace(slab, period, gone, new)

    def _replace(self, slab: str, period: Period, gone: frozenset[int], new: tuple[FileEntry, ...]) -> None:
        match period:
            case "open" if gone == {OPEN_PART}:
                self._open[slab] = new
            case "open":
                raise ValueError(f"{slab} is open: its only part is {OPEN_PART}")
            case "month":
                self._months[slab] = (*kept(self._months.get(slab, ()), lambda part: part not in gone), *new)
            case "hour":
                self._replace_days(slab, gone, new, day_of)
            case "day":
                self._replace_days(slab, gone, new, _itself)

    def _replace_days(
        self, slab: str, gone: frozenset[int], new: tuple[FileEntry, ...], day_of_part: Callable[[int], int]
    ) -> None:
        for day in sorted({day_of_part(part) for part in gone}):
            chapter = self.chapter(day)
            mine = [left for entry in new if (left := keep(entry, lambda part: day_of_part(part) == day))]  # noqa: B023
            entries = (*kept(listed(chapter, slab), lambda part: part not in gone), *mine)
            self.put(with_entries(chapter, slab, entries))

    def add_events(self, day: int, files: Iterable[EventsFile], pulses: Iterable[FileEntry] = ()) -> None:
        chapter = self.chapter(day)
        self.put(msgspec.structs.replace(chapter, events=(*chapter.events, *files), pulses=(*chapter.pulses, *pulses)))

    def append_ledger(self, entries: Iterable[FileEntry]) -> None:
        self._ledger = (*self._ledger, *entries)

    def set_ledger(self, entries: Iterable[FileEntry]) -> None:
        """Replace the files of the restatements by others with the same rows."""
        self._ledger = tuple(entries)

    def seen_in(self, folder: str) -> set[tuple[str, Range]]:
        """(source, range) of the processed segments of a `written=` directory; the caller may add to it."""
        if folder not in self.seen:
            known = self.warehouse.seen(self.base, folder)
            self.seen[folder] = {(source, one) for source, ranges in known.names.items() for one in ranges}
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
            ledger=self._ledger,
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
        return publish(self.warehouse, self.attempt, self.base, content, self.chapters, seen)

    def _groups(self, slab: str, parts: frozenset[int] | None) -> Iterable[tuple[FileEntry, ...]]:
        if slab == LEDGER:
            return [self._ledger]
        match self._periods.get(slab, "hour"):
            case "open":
                return [self._open.get(slab, ())]
            case "month":
                return [self._months.get(slab, ())]
            case "day":
                days = self.days() if parts is None else sorted(parts)
            case _:
                days = self.days() if parts is None else sorted({day_of(part) for part in parts})
        return (listed(self.chapter(day), slab) for day in days)


def listed(chapter: DayManifest, slab: str) -> tuple[FileEntry, ...]:
    """A day's files of a data set, or of the liveness samples."""
    return chapter.pulses if slab == PULSES else chapter.slabs.get(slab, ())


def with_entries(chapter: DayManifest, slab: str, entries: tuple[FileEntry, ...]) -> DayManifest:
    """The day manifest with these files of a data set, or of the liveness samples."""
    if slab == PULSES:
        return msgspec.structs.replace(chapter, pulses=entries)
    slabs = {**chapter.slabs, slab: entries}
    if not entries:
        del slabs[slab]
    return msgspec.structs.replace(chapter, slabs=slabs)


def _kept_problem(problem: SegmentProblem) -> SegmentProblem:
    """Older manifests have credentials of URLs in names."""
    return msgspec.structs.replace(problem, name=without_key(problem.name))


def _itself(part: int) -> int:
    return part


def _as_seen(ranges: set[tuple[str, Range]]) -> SeenSegments:
    names: dict[str, list[Range]] = defaultdict(list)
    for source, one in sorted(ranges):
        names[source].append(one)
    return SeenSegments({source: tuple(ranges) for source, ranges in names.items()})

"""Ingestion: valid segments become event files of the transaction, each event once.

A damaged segment stops its own source at the last valid event before it. Covered events are never ingested twice. The
same segments give the same events, in any order of arrival and any number of runs.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from scale0.history.segments import arrow
from scale0.history.segments.names import Segment, name_of
from scale0.pipeline.time_ranges import DAY_HOURS, DAY_US, day_of
from scale0.pipeline.warehouse import durable_files
from scale0.pipeline.warehouse.coverage import Coverage
from scale0.pipeline.warehouse.entries import keep
from scale0.pipeline.warehouse.inspection import Inspected, inspect_segments
from scale0.pipeline.warehouse.listing import SegmentListing, list_segments
from scale0.pipeline.warehouse.liveness import DUPLICATE, REJECTED, TAKEN, hour_kinds, pulses_of
from scale0.pipeline.warehouse.overlap import fates, of_segment, read_events
from scale0.pipeline.warehouse.records import PART, PULSES, EventsFile, FileEntry, SegmentProblem
from scale0.pipeline.warehouse.segment_sources import known_as, place_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scale0.pipeline.warehouse.transaction import Transaction

MAX_PROBLEMS: Final = 1_000
"""Problems that a manifest keeps; the oldest are dropped first."""


class IngestedSegments(msgspec.Struct):
    """The result of an ingestion."""

    segments: int = 0
    """Valid segments, including those with only duplicates."""
    events: int = 0
    duplicates: int = 0
    rejected: int = 0
    hours: dict[int, dict[str, int]] = {}
    """New events by hour of `at` and kind."""
    pulse_hours: set[int] = set()
    """Hours of `time` with new liveness samples."""
    problems: list[SegmentProblem] = []
    """Problems to report now: damaged segments in every run until they are replaced, the others once."""
    stopped: dict[str, str] = {}
    """Sources that are blocked, with the damaged segment that blocks each."""
    waiting: int = 0
    """Segments after a damaged one."""

    @property
    def failed(self) -> bool:
        """True if the run must end with exit code 1."""
        return any(problem.kind != "foreign" for problem in self.problems)


def take_in(draft: Transaction, urls: str | Sequence[str], now_us: int, *, rescan: bool = False) -> IngestedSegments:
    """Ingest new segments from these URLs or paths."""
    looks: list[SegmentListing] = []
    inspected: list[Inspected] = []
    for url in dict.fromkeys([urls] if isinstance(urls, str) else urls):
        place = place_of(url, now_us)
        look = list_segments(url, place, draft.listings.get(known_as(url), {}), draft.seen_in, rescan=rescan)
        inspected += inspect_segments(place, look.new, draft.attempt)
        looks.append(look)
    taken = adopt(draft, inspected)
    for look in looks:
        _settle(draft, look)
    _remember(draft, looks, taken)
    draft.warehouse.reach("segments.adopted")
    return taken


def adopt(draft: Transaction, inspected: Sequence[Inspected]) -> IngestedSegments:
    """Ingest the valid segments of each source."""
    adoption = _Adoption(draft)
    by_source: dict[str, list[Inspected]] = defaultdict(list)
    for one in inspected:
        by_source[one.found.segment.source].append(one)
    for source in sorted(by_source):
        adoption.take_source(source, by_source[source])
    adoption.close()
    return adoption.taken


def _settle(draft: Transaction, look: SegmentListing) -> None:
    """Record the directories that are completely ingested: they are skipped while they do not change."""
    undone = {one.folder for one in look.new if (one.segment.source, one.range) not in draft.seen_in(one.folder)}
    draft.listings[look.place] = {folder: 0 if folder in undone else stamp for folder, stamp in look.stamps.items()}


def _remember(draft: Transaction, looks: Sequence[SegmentListing], taken: IngestedSegments) -> None:
    """Keep the problems: damaged segments until they are replaced, rejected and foreign ones so that they are reported
    once.
    """
    foreign = {path for look in looks for path in look.foreign}
    passed = {path for look in looks for path in look.passed}
    for path in sorted(foreign - draft.problems.keys()):
        taken.problems.append(SegmentProblem(path, "foreign", "not a segment, ignored: you may remove it"))
    known = [
        problem
        for problem in draft.problems.values()
        if problem.kind == "rejected" or problem.name in foreign or problem.name.rpartition("/")[0] in passed
    ]
    problems = {problem.name: problem for problem in (*known, *taken.problems)}
    draft.problems = dict(list(problems.items())[-MAX_PROBLEMS:])


class _Adoption:
    def __init__(self, draft: Transaction) -> None:
        self.taken = IngestedSegments()
        self._draft = draft
        self._files: dict[int, list[EventsFile]] = defaultdict(list)
        self._pulses: list[pa.Table] = []

    def take_source(self, source: str, segments: list[Inspected]) -> None:
        """Ingest in the order of the events, up to the first damaged segment that no other segment replaces."""
        # Of two segments with one name the valid one comes first: then the other is no loss.
        segments.sort(key=lambda one: (one.found.segment, bool(one.fault), one.found.path))
        reach = Coverage({source: self._draft.covered().get(source, ())})
        for one in segments:
            if not one.fault:
                reach.add(*one.found.segment)
        stop: Inspected | None = None
        for one in segments:
            later = stop is not None and one.found.range[:2] > stop.found.range[:2]
            if one.fault:
                healed = not later and reach.holds(*one.found.segment)
                self._bad(one, healed)
                stop = stop if healed else stop or one
            elif later:
                self.taken.waiting += 1
                one.path.unlink(missing_ok=True)
            else:
                self._take(one)

    def _bad(self, one: Inspected, healed: bool) -> None:
        one.path.unlink(missing_ok=True)
        segment = one.found.segment
        if healed:
            self._done(one)
            what = "its events are known from other segments: remove it"
        else:
            self.taken.stopped.setdefault(segment.source, one.found.path)
            what = (
                f"{segment.source} is blocked before event {segment.first_seq}; put a valid copy there, and run again"
            )
        self.taken.problems.append(SegmentProblem(one.found.path, "damaged", f"{one.fault}; {what}"))

    def _done(self, one: Inspected) -> None:
        self._draft.seen_in(one.found.folder).add((one.found.segment.source, one.found.range))

    def _take(self, one: Inspected) -> None:
        segment = one.found.segment
        covered = self._draft.coverage.within(*segment)
        self.taken.segments += 1
        self._done(one)
        if covered:
            self._take_rest(one, covered)
        else:
            assert one.pulses is not None
            self._pulses.append(one.pulses)
            self._list(segment, self._draft.attempt.relative(one.path), one.bytes, one.hours, one.columns)
        self._draft.newest_us = max(self._draft.newest_us, one.last_time_us)

    def _take_rest(self, one: Inspected, covered: list[tuple[int, int]]) -> None:
        """Ingest a partly covered segment: each run of new seqs becomes a trimmed copy."""
        segment = one.found.segment
        rows = read_events([str(one.path)])
        days = np.unique(rows["at"].cast(pa.int64()).to_numpy() // DAY_US).tolist()
        held = read_events(self._holding(segment, days), of_segment(segment, covered[0][0], covered[-1][1]))
        fate = fates(rows, held, covered, self._draft.floor_day)
        seq = rows["seq"].to_numpy()
        self._pulses.append(
            pulses_of(segment.source, segment.boot, seq, rows["time"].cast(pa.int64()).to_numpy(), fate)
        )
        self.taken.duplicates += int((fate == DUPLICATE).sum())
        if rejected := np.flatnonzero(fate == REJECTED).tolist():
            self.taken.rejected += len(rejected)
            why = (
                f"{len(rejected)} events, the first is {int(seq[rejected[0]])}, have keys of known events but different"
                f" contents: rejected; the events that came first are kept"
            )
            self.taken.problems.append(SegmentProblem(one.found.path, "rejected", why))
        new = np.flatnonzero(fate == TAKEN)
        for run in np.split(new, np.flatnonzero(np.diff(new) > 1) + 1) if len(new) else ():
            self._take_copy(segment, rows.slice(int(run[0]), len(run)))
        one.path.unlink()

    def _take_copy(self, segment: Segment, rows: pa.Table) -> None:
        trimmed = Segment(segment.source, segment.boot, rows["seq"][0].as_py(), rows["seq"][-1].as_py())
        path = self._draft.attempt.place("trimmed") / name_of(trimmed)
        arrow.write(rows, path)
        durable_files.sync(path)
        words = rows["kind"].combine_chunks().dictionary_encode()
        hours = hour_kinds(
            rows["at"].cast(pa.int64()).to_numpy(), words.indices.to_numpy(), words.dictionary.to_pylist()
        )
        self._list(trimmed, self._draft.attempt.relative(path), path.stat().st_size, hours, rows.num_columns)

    def _holding(self, segment: Segment, days: list[int]) -> list[str]:
        """The files that may hold events of this boot: equal events have an equal `at`, so they are on the same day."""
        paths: dict[str, None] = {}
        for day in days:
            for file in (*self._draft.chapter(day).events, *self._files.get(day, ())):
                apart = file.source and (
                    (file.source, file.boot) != segment[:2]
                    or file.last_seq < segment.first_seq
                    or file.first_seq > segment.last_seq
                )
                if not apart:
                    paths[str(self._draft.warehouse.path(file.path))] = None
        return list(paths)

    def _list(self, segment: Segment, path: str, size: int, hours: dict[int, dict[str, int]], columns: int) -> None:
        days: dict[int, dict[int, dict[str, int]]] = defaultdict(dict)
        for hour, kinds in hours.items():
            if day_of(hour) < self._draft.floor_day:
                continue  # covered from now on, but retention has dropped its day
            days[day_of(hour)][hour] = kinds
            total = self.taken.hours.setdefault(hour, {})
            for kind, count in kinds.items():
                total[kind] = total.get(kind, 0) + count
        for day, own in days.items():
            self._files[day].append(EventsFile(path, size, *segment, own, tuple(sorted(days)), columns))
        self._draft.coverage.add(*segment)
        self.taken.events += segment.events

    def close(self) -> None:
        """Add everything to the day manifests."""
        pulses: dict[int, list[FileEntry]] = defaultdict(list)
        if self._pulses:
            entry = write_pulses(self._draft, pa.concat_tables(self._pulses))
            self.taken.pulse_hours = {hour for hour in entry.parts if day_of(hour) >= self._draft.floor_day}
            for day in {day_of(hour) for hour in self.taken.pulse_hours}:
                part = keep(entry, lambda hour: day_of(hour) == day)  # noqa: B023
                pulses[day] += [part] if part else []
        for day in sorted({*self._files, *pulses}):
            self._draft.add_events(day, self._files.get(day, ()), pulses.get(day, ()))


def write_pulses(draft: Transaction, pulses: pa.Table) -> FileEntry:
    """Write one sorted file with a row group for each day; its parts have no hash, because they are never compared."""
    path = draft.attempt.new_file(PULSES, PULSES)
    table = pulses.sort_by([(name, "ascending") for name in (PART, "source", "boot", "first_seq")])
    parts, counts = np.unique(table[PART].to_numpy(), return_counts=True)
    starts = np.flatnonzero(np.diff(table[PART].to_numpy() // DAY_HOURS, prepend=-1))
    with pq.ParquetWriter(path, table.schema, compression=arrow.COMPRESSION, write_page_checksum=True) as file:
        for start, end in zip(starts, [*starts[1:], table.num_rows], strict=True):
            # A reader of one hour skips the other days.
            file.write_table(table.slice(start, end - start))
    durable_files.sync(path)
    sums = {part: (count, 0) for part, count in zip(parts.tolist(), counts.tolist(), strict=True)}
    return FileEntry(draft.attempt.relative(path), path.stat().st_size, sums)

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
from scale0.pipeline.warehouse.deduplication import read_events, segment_filter, verdicts_of
from scale0.pipeline.warehouse.inspection import Inspected, inspect_segments
from scale0.pipeline.warehouse.liveness import (
    DUPLICATE,
    REJECTED,
    TAKEN,
    HourKinds,
    add_hour_kinds,
    liveness_samples,
    table_hour_kinds,
)
from scale0.pipeline.warehouse.records import LIVENESS, PART, Coverage, EventsFile, FileEntry, SegmentProblem, restrict
from scale0.pipeline.warehouse.segment_sources import SegmentListing, list_segments, open_source, public_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scale0.pipeline.warehouse.transaction import Transaction

MAX_PROBLEMS: Final = 1_000
"""Problems that a manifest keeps; the oldest are dropped first."""


class IngestedSegments(msgspec.Struct):
    segments: int = 0
    """Valid segments, including those with only duplicates."""
    events: int = 0
    duplicates: int = 0
    rejected: int = 0
    hours: HourKinds = {}
    """New events by hour of `at` and kind."""
    liveness_hours: set[int] = set()
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


def ingest_segments(
    transaction: Transaction, urls: str | Sequence[str], now_us: int, *, rescan: bool = False
) -> IngestedSegments:
    listings: list[SegmentListing] = []
    inspected: list[Inspected] = []
    for url in dict.fromkeys([urls] if isinstance(urls, str) else urls):
        segment_source = open_source(url, now_us)
        listing = list_segments(
            url, segment_source, transaction.listings.get(public_name(url), {}), transaction.seen_in, rescan=rescan
        )
        inspected += inspect_segments(segment_source, listing.new, transaction.staging)
        listings.append(listing)
    ingested = ingest(transaction, inspected)
    for listing in listings:
        _record_listing(transaction, listing)
    _record_problems(transaction, listings, ingested)
    transaction.warehouse.reach("segments.adopted")
    return ingested


def ingest(transaction: Transaction, inspected: Sequence[Inspected]) -> IngestedSegments:
    ingestion = _Ingestion(transaction)
    by_source: dict[str, list[Inspected]] = defaultdict(list)
    for one in inspected:
        by_source[one.found.segment.source].append(one)
    for source in sorted(by_source):
        ingestion.ingest_source(source, by_source[source])
    ingestion.close()
    return ingestion.ingested


def _record_listing(transaction: Transaction, listing: SegmentListing) -> None:
    """Record the directories that are completely ingested: they are skipped while they do not change."""
    undone = {
        one.folder for one in listing.new if (one.segment.source, one.range) not in transaction.seen_in(one.folder)
    }
    transaction.listings[listing.location] = {
        folder: 0 if folder in undone else stamp for folder, stamp in listing.stamps.items()
    }


def _record_problems(transaction: Transaction, listings: Sequence[SegmentListing], ingested: IngestedSegments) -> None:
    """Keep the problems: damaged segments until they are replaced, rejected and foreign ones so that they are reported
    once.
    """
    foreign = {path for listing in listings for path in listing.foreign}
    passed = {path for listing in listings for path in listing.passed}
    for path in sorted(foreign - transaction.problems.keys()):
        ingested.problems.append(SegmentProblem(path, "foreign", "not a segment, ignored: you may remove it"))
    known = [
        problem
        for problem in transaction.problems.values()
        if problem.kind == "rejected" or problem.name in foreign or problem.name.rpartition("/")[0] in passed
    ]
    problems = {problem.name: problem for problem in (*known, *ingested.problems)}
    transaction.problems = dict(list(problems.items())[-MAX_PROBLEMS:])


class _Ingestion:
    def __init__(self, transaction: Transaction) -> None:
        self.ingested = IngestedSegments()
        self._transaction = transaction
        self._files: dict[int, list[EventsFile]] = defaultdict(list)
        self._samples: list[pa.Table] = []

    def ingest_source(self, source: str, segments: list[Inspected]) -> None:
        """Ingest in the order of the events, up to the first damaged segment that no other segment replaces."""
        # Of two segments with one name the valid one comes first: then the other is no loss.
        segments.sort(key=lambda one: (one.found.segment, bool(one.fault), one.found.path))
        reach = Coverage({source: self._transaction.coverage.frozen().get(source, ())})
        for one in segments:
            if not one.fault:
                reach.add(*one.found.segment)
        blocking: Inspected | None = None
        for one in segments:
            later = blocking is not None and one.found.range[:2] > blocking.found.range[:2]
            if one.fault:
                replaced = not later and reach.holds(*one.found.segment)
                self._reject(one, replaced)
                blocking = blocking if replaced else blocking or one
            elif later:
                self.ingested.waiting += 1
                one.path.unlink(missing_ok=True)
            else:
                self._ingest_segment(one)

    def _reject(self, one: Inspected, replaced: bool) -> None:
        one.path.unlink(missing_ok=True)
        segment = one.found.segment
        if replaced:
            self._mark_processed(one)
            what = "its events are known from other segments: remove it"
        else:
            self.ingested.stopped.setdefault(segment.source, one.found.path)
            what = (
                f"{segment.source} is blocked before event {segment.first_seq}; put a valid copy there, and run again"
            )
        self.ingested.problems.append(SegmentProblem(one.found.path, "damaged", f"{one.fault}; {what}"))

    def _mark_processed(self, one: Inspected) -> None:
        self._transaction.seen_in(one.found.folder).add((one.found.segment.source, one.found.range))

    def _ingest_segment(self, one: Inspected) -> None:
        segment = one.found.segment
        covered = self._transaction.coverage.within(*segment)
        self.ingested.segments += 1
        self._mark_processed(one)
        if covered:
            self._ingest_rest(one, covered)
        else:
            assert one.samples is not None
            self._samples.append(one.samples)
            path = self._transaction.staging.relative(one.path)
            self._list(segment, path, one.bytes, one.hours, one.columns)
        self._transaction.newest_us = max(self._transaction.newest_us, one.last_time_us)

    def _ingest_rest(self, one: Inspected, covered: list[tuple[int, int]]) -> None:
        """Ingest a partly covered segment: each run of new seqs becomes a trimmed copy."""
        segment = one.found.segment
        rows = read_events([str(one.path)])
        days = np.unique(rows["at"].cast(pa.int64()).to_numpy() // DAY_US).tolist()
        known_events = read_events(
            self._candidate_files(segment, days), segment_filter(segment, covered[0][0], covered[-1][1])
        )
        verdict = verdicts_of(rows, known_events, covered, self._transaction.floor_day)
        seq = rows["seq"].to_numpy()
        self._samples.append(
            liveness_samples(segment.source, segment.boot, seq, rows["time"].cast(pa.int64()).to_numpy(), verdict)
        )
        self.ingested.duplicates += int((verdict == DUPLICATE).sum())
        if rejected := np.flatnonzero(verdict == REJECTED).tolist():
            self.ingested.rejected += len(rejected)
            why = (
                f"{len(rejected)} events, the first is {int(seq[rejected[0]])}, have keys of known events but different"
                f" contents: rejected; the events that came first are kept"
            )
            self.ingested.problems.append(SegmentProblem(one.found.path, "rejected", why))
        new = np.flatnonzero(verdict == TAKEN)
        for run in np.split(new, np.flatnonzero(np.diff(new) > 1) + 1) if len(new) else ():
            self._ingest_copy(segment, rows.slice(int(run[0]), len(run)))
        one.path.unlink()

    def _ingest_copy(self, segment: Segment, rows: pa.Table) -> None:
        trimmed = Segment(segment.source, segment.boot, rows["seq"][0].as_py(), rows["seq"][-1].as_py())
        path = self._transaction.staging.directory("trimmed") / name_of(trimmed)
        arrow.write(rows, path)
        durable_files.sync(path)
        size, hours = path.stat().st_size, table_hour_kinds(rows)
        self._list(trimmed, self._transaction.staging.relative(path), size, hours, rows.num_columns)

    def _candidate_files(self, segment: Segment, days: list[int]) -> list[str]:
        """The files that may hold events of this boot: equal events have an equal `at`, so they are on the same day."""
        paths: dict[str, None] = {}
        for day in days:
            for file in (*self._transaction.day_manifest(day).events, *self._files.get(day, ())):
                apart = file.source and (
                    (file.source, file.boot) != segment[:2]
                    or file.last_seq < segment.first_seq
                    or file.first_seq > segment.last_seq
                )
                if not apart:
                    paths[str(self._transaction.warehouse.path(file.path))] = None
        return list(paths)

    def _list(self, segment: Segment, path: str, size: int, hours: HourKinds, columns: int) -> None:
        days: dict[int, HourKinds] = defaultdict(dict)
        for hour, kinds in hours.items():
            if day_of(hour) < self._transaction.floor_day:
                continue  # covered from now on, but retention has dropped its day
            days[day_of(hour)][hour] = kinds
            add_hour_kinds(self.ingested.hours, {hour: kinds})
        for day, own in days.items():
            self._files[day].append(EventsFile(path, size, *segment, own, tuple(sorted(days)), columns))
        self._transaction.coverage.add(*segment)
        self.ingested.events += segment.events

    def close(self) -> None:
        """Add everything to the day manifests."""
        liveness: dict[int, list[FileEntry]] = defaultdict(list)
        if self._samples:
            entry = write_liveness(self._transaction, pa.concat_tables(self._samples))
            self.ingested.liveness_hours = {hour for hour in entry.parts if day_of(hour) >= self._transaction.floor_day}
            for day in {day_of(hour) for hour in self.ingested.liveness_hours}:
                part = restrict(entry, lambda hour: day_of(hour) == day)  # noqa: B023
                liveness[day] += [part] if part else []
        for day in sorted({*self._files, *liveness}):
            self._transaction.add_events(day, self._files.get(day, ()), liveness.get(day, ()))


def write_liveness(transaction: Transaction, liveness: pa.Table) -> FileEntry:
    """Write one sorted file with a row group for each day; its parts have no hash, because they are never compared."""
    path = transaction.staging.new_file(LIVENESS, LIVENESS)
    table = liveness.sort_by([(name, "ascending") for name in (PART, "source", "boot", "first_seq")])
    parts, counts = np.unique(table[PART].to_numpy(), return_counts=True)
    starts = np.flatnonzero(np.diff(table[PART].to_numpy() // DAY_HOURS, prepend=-1))
    with pq.ParquetWriter(path, table.schema, compression=arrow.COMPRESSION, write_page_checksum=True) as file:
        for start, end in zip(starts, [*starts[1:], table.num_rows], strict=True):
            # A reader of one hour skips the other days.
            file.write_table(table.slice(start, end - start))
    durable_files.sync(path)
    sums = {part: (count, 0) for part, count in zip(parts.tolist(), counts.tolist(), strict=True)}
    return FileEntry(transaction.staging.relative(path), path.stat().st_size, sums)

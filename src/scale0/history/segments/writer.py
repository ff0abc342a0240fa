"""Exports the journal of one source to segments, one after the other.

A segment contains events of one boot, without a gap. An event is reported as exported only when its segment is durable.
A journal row that cannot be read ends the export there, and nothing is skipped. Trimming is the task of the store's
owner.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa

from scale0.history.events.journal import JournalRow
from scale0.history.segments import arrow, audit_start
from scale0.history.segments.destination import STEPS, Failpoint, SegmentDestination, open_destination
from scale0.history.segments.journals import JournalSource, open_journal
from scale0.history.segments.names import Segment, day_at, day_of, folder_of, name_of, parse
from scale0.history.segments.settings import (
    ExporterSettings,
    ExportState,
    read_export_state,
    without_password,
    write_export_state,
)
from scale0.kernel.clock import Now
from scale0.kernel.confirmed_clock import LONG_AGO, ConfirmedClock
from scale0.kernel.errors import StoreError

RETENTION_SECONDS: Final = 600.0
"""How often old days are deleted."""
OTHERS_GRACE: Final = timedelta(days=1)
"""How much longer segments of other sources are kept: their own exporters remove them, and record where their audit
chains begin then. What is left is of sources that no longer run."""
FAILPOINTS: Final = (*STEPS, "after_state")


class Exported(NamedTuple):
    """Events that are durable in segments."""

    first_seq: int
    last_seq: int
    name: str
    """The segment; blank: an earlier process wrote it."""


def _source_of(name: str) -> str:
    segment = parse(name)
    return "" if segment is None else segment.source


def no_failpoint(_name: str) -> None:
    pass


class SegmentWriter:
    def __init__(
        self,
        settings: ExporterSettings,
        destination: SegmentDestination | None = None,
        wall: Callable[[], float] = time.time,
        mono: Callable[[], float] = time.monotonic,
        failpoint: Failpoint = no_failpoint,
        journal: JournalSource | None = None,
        writes_state: bool = True,
    ) -> None:
        self._settings = settings
        self._data_dir = Path(settings.data_dir)
        self._destination = destination or open_destination(settings.destination, settings.source, self._data_dir)
        self._journal = journal or open_journal(settings)
        self._writes_state = writes_state
        self._wall = wall
        self._mono = mono
        self._failpoint = failpoint
        self._after = 0
        """All events up to this seq are exported."""
        self._known: dict[int, list[Segment]] | None = None
        """By boot: segments of earlier processes that contain events which are still in the journal."""
        self._waiting_since: float | None = None
        self._retention_mono = mono()
        self._clock = ConfirmedClock(Now(mono(), wall()), LONG_AGO)
        self.held: list[date] = []
        """Days that only a jump of the wall clock puts beyond the retention; the caller reports and empties it."""
        self.unrecorded: str | None = None
        """Where the audit chain is to begin: the caller stores it, and nothing is deleted before the store has it."""
        self._day = ""

    def export(self, everything: bool = False) -> Iterator[Exported]:
        """Write the segments that are due, and yield each when it is durable; an error does not revoke these."""
        if self._known is None:
            self._known = self._find_known()
        first, target = self._journal.ends()
        if target < first or target <= self._after:
            self._waiting_since = None
            return
        now = self._mono()
        if self._waiting_since is None:
            self._waiting_since = now
        full = target - max(self._after, first - 1) >= self._settings.events
        if not (everything or full or now - self._waiting_since >= self._settings.seconds):
            return
        while self._after < target:
            done = self._export_next()
            if done is None:
                break
            self._after = done.last_seq
            yield done
            if full and not everything and target - self._after < self._settings.events:
                # The rest waits for a full segment, for at most `seconds`.
                self._waiting_since = now
                return
        self._waiting_since = None

    def apply_retention(self) -> list[date]:
        """Delete days beyond the retention, every RETENTION_SECONDS; the days."""
        self._read_clock()
        if self._mono() - self._retention_mono < RETENTION_SECONDS:
            return []
        removed = self.remove_old()
        if self.unrecorded is None:
            self._retention_mono = self._mono()
        return removed

    def remove_old(self) -> list[date]:
        """Delete segments beyond the retention; their days. The time is confirmed, because nothing brings them back."""
        start, self.unrecorded = self._journal.audit_start(), None
        recorded = start.after if start is not None and start.source == self._settings.source else None
        if recorded is None and (head := self._journal.audit_head()):
            self.unrecorded = audit_start.find_start(self._destination, self._journal, self._settings.source, head)
            return []
        if not self._settings.keep_days:
            return []
        days, kept = self._destination.days(), timedelta(days=self._settings.keep_days)
        first = day_at(self._read_clock()) - kept
        old = [day for day in days if day < first]
        if self._clock.jump_seconds:
            self.held = [day for day in days if first <= day < day_at(self._wall()) - kept]
        due = {day: self._due_of(day, day < first - OTHERS_GRACE) for day in old}
        last = audit_start.last_hash(self._destination, self._settings.source, due)
        if last not in (None, recorded):
            self.unrecorded = last
            return []
        removed = [day for day, names in due.items() if names is not None]
        for day in removed:
            self._destination.remove(day, due[day] or [])
        return removed

    def _due_of(self, day: date, includes_others: bool) -> list[str] | None:
        """The segments of an old day that are to be removed; None: there is nothing to do."""
        names = self._destination.names(day)
        due = [name for name in names if includes_others or _source_of(name) == self._settings.source]
        return due if due or not names else None

    def _read_clock(self) -> float:
        return self._clock.read(Now(self._mono(), self._wall()))

    def close(self) -> None:
        self._journal.close()

    def _find_known(self) -> dict[int, list[Segment]]:
        """Segments of earlier processes that contain events which are still in the journal."""
        today = day_at(self._wall())
        days = {today, today - timedelta(days=1)}
        state = read_export_state(self._data_dir)
        known_place = ("", self._settings.source) if state is None else (state.database, state.source)
        if self._writes_state and known_place != (self._public_database, self._settings.source):
            # Readers need it before the first segment: all events may be in the database, or of a new identity.
            self._write_state(
                state.day if state is not None and state.destination == self._settings.destination else ""
            )
        if state is not None and state.destination == self._settings.destination:
            days |= {day} if (day := day_of(state.day)) is not None else set()
            self._day = state.day
        floor, _ = self._journal.ends()
        known: dict[int, list[Segment]] = {}
        for day in sorted(days):
            self._destination.recover(day)
            for name in self._destination.names(day):
                segment = parse(name)
                if segment is None or segment.source != self._settings.source or segment.last_seq < floor:
                    continue
                if self._is_complete(day, name, segment):
                    known.setdefault(segment.boot, []).append(segment)
        return known

    def _is_complete(self, day: date, name: str, segment: Segment) -> bool:
        """True if it can be read to its end and contains what its name says."""
        try:
            arrow.verify(self._destination.open(day, name), segment)
        except (arrow.InvalidSegment, OSError):
            return False
        return True

    def _export_next(self) -> Exported | None:
        """One new segment, or a range that is in segments already; None: there is nothing."""
        rows = self._journal.after(self._after)
        if not rows:
            return None
        covered = self._covered(rows)
        if covered:
            return Exported(rows[0].first_seq, covered, "")
        table, last_seq = self._gather(rows)
        source = table["source"].unique().to_pylist()
        if len(source) != 1:
            raise arrow.DamagedRow(rows[0].first_seq, f"one boot has events of {len(source)} sources")
        segment = Segment(source[0], rows[0].boot, rows[0].first_seq, last_seq)
        day, name = day_at(self._wall()), name_of(segment)
        self._record_day(day)
        self._destination.put(day, name, table, self._failpoint)
        return Exported(segment.first_seq, segment.last_seq, name)

    def _covered(self, rows: list[JournalRow]) -> int:
        """The last of the first events that are in known segments; 0: none is."""
        last = 0
        for row in rows:
            known = (self._known or {}).get(row.boot, ())
            if not any(one.first_seq <= row.first_seq and row.last_seq <= one.last_seq for one in known):
                break
            last = row.last_seq
        return last

    def _gather(self, rows: list[JournalRow]) -> tuple[pa.Table, int]:
        """The events of one segment and the last seq: until the boot ends, there is a gap, or it is full."""
        first = rows[0]
        last_seq = first.first_seq - 1
        tables: list[pa.Table] = []
        while rows:
            batch: list[JournalRow] = []
            for row in rows:
                full = row.last_seq - first.first_seq + 1 > self._settings.events and (batch or tables)
                if row.boot != first.boot or row.first_seq != last_seq + 1 or full or self._covered([row]):
                    break
                batch.append(row)
                last_seq = row.last_seq
            try:
                tables += [arrow.table_of(batch)] if batch else []
            except arrow.DamagedRow as error:
                good = [row for row in batch if row.first_seq < error.first_seq]
                if not good and not tables:
                    raise
                tables += [arrow.table_of(good)] if good else []
                return pa.concat_tables(tables), error.first_seq - 1
            if len(batch) < len(rows):
                break
            rows = self._journal.after(last_seq)
        return pa.concat_tables(tables), last_seq

    def _record_day(self, day: date) -> None:
        """Before the first segment of a day: record the day, so that the next process finds it after a kill."""
        name = folder_of(day)
        if self._writes_state and (name != self._day or read_export_state(self._data_dir) is None):
            self._write_state(name)
        self._failpoint("after_state")

    @property
    def _public_database(self) -> str:
        return without_password(self._settings.database) if self._settings.database else ""

    def _write_state(self, day: str) -> None:
        settings = self._settings
        state = ExportState(
            source=settings.source, destination=settings.destination, day=day, database=self._public_database
        )
        write_export_state(self._data_dir, state)
        self._day = day


def export_orphans(settings: ExporterSettings) -> Iterator[tuple[str, Exported]]:
    """Export and trim the journals of dead brokers of the group; (source, range) of each segment.

    Only one exporter at a time has a journal, and its owner is one of them. Rows are trimmed when they are durable.
    """
    from scale0.storage.postgres.journal import JournalTable, dead_brokers_with_rows  # noqa: PLC0415  # an extra

    for source in dead_brokers_with_rows(settings.database):
        if source == settings.source:
            continue
        journal = JournalTable(settings.database, source)
        try:
            journal.ends()
        except StoreError:
            journal.close()  # another exporter was faster, or the broker is back
            continue
        # The state file in this data directory is about our own segments.
        writer = SegmentWriter(msgspec.structs.replace(settings, source=source), journal=journal, writes_state=False)
        try:
            for done in writer.export(everything=True):
                journal.trim(done.last_seq)
                yield source, done
        finally:
            writer.close()

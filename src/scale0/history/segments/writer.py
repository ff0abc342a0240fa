"""The writer: one segment after the other, from the journal to a place.

Lives here: what is due, what goes into one segment, and what of an earlier process is there already. Never here: a
process, a pipe, or a trim (the owner of the store does that, with what `export` gives back). Invariants: a segment has
events of one boot, without a gap; an event is called exported only once its segment is there for good; a journal row
that cannot be read ends the export there, and nothing is left out.
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
from scale0.history.segments import arrow
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
from scale0.kernel.errors import StoreError

KEEP_LOOK_SECONDS: Final = 600.0
"""How often old days are looked for; and, as a clock may be wrong at the start, how long after it the first time."""
FAILPOINTS: Final = (*STEPS, "after_note")


class Exported(NamedTuple):
    """Events that stand in segments for good."""

    first_seq: int
    last_seq: int
    name: str
    """Of the segment; blank: an earlier process wrote it."""


def no_failpoint(_name: str) -> None:
    """No failpoint."""


class SegmentWriter:
    """The writer of one source."""

    def __init__(
        self,
        settings: ExporterSettings,
        place: SegmentDestination | None = None,
        wall: Callable[[], float] = time.time,
        mono: Callable[[], float] = time.monotonic,
        reach: Failpoint = no_failpoint,
        journal: JournalSource | None = None,
        takes_notes: bool = True,
    ) -> None:
        self._settings = settings
        self._folder = Path(settings.data_dir)
        self._place = place or open_destination(settings.place, settings.source, self._folder)
        self._journal = journal or open_journal(settings)
        self._takes_notes = takes_notes
        self._wall = wall
        self._mono = mono
        self._reach = reach
        self._after = 0
        """All events up to this one are exported."""
        self._known: dict[int, list[Segment]] | None = None
        """By boot: what earlier processes may have written of what is still in the journal."""
        self._waits_since: float | None = None
        self._looked_mono = mono()
        self._day = ""

    def export(self, everything: bool = False) -> Iterator[Exported]:
        """Write what is due; each piece is told when it is safe. After an error, what was told stays true."""
        if self._known is None:
            self._known = self._find_known()
        first, target = self._journal.ends()
        if target < first or target <= self._after:
            self._waits_since = None
            return
        now = self._mono()
        if self._waits_since is None:
            self._waits_since = now
        full = target - max(self._after, first - 1) >= self._settings.events
        if not (everything or full or now - self._waits_since >= self._settings.seconds):
            return
        while self._after < target:
            done = self._export_next()
            if done is None:
                break
            self._after = done.last_seq
            yield done
            if full and not everything and target - self._after < self._settings.events:
                # What is left may fill a segment of its own, for as long as the first of it may wait.
                self._waits_since = now
                return
        self._waits_since = None

    def keep(self) -> list[date]:
        """Remove days that are older than wanted, now and then; which ones."""
        if self._mono() - self._looked_mono < KEEP_LOOK_SECONDS:
            return []
        self._looked_mono = self._mono()
        return self.remove_old()

    def remove_old(self) -> list[date]:
        """Remove days that are older than wanted; which ones."""
        if not self._settings.keep_days:
            return []
        first = day_at(self._wall()) - timedelta(days=self._settings.keep_days)
        old = [day for day in self._place.days() if day < first]
        for day in old:
            self._place.remove_day(day)
        return old

    def close(self) -> None:
        """Let go of the journal."""
        self._journal.close()

    def _find_known(self) -> dict[int, list[Segment]]:
        """Segments that an earlier process wrote, and of which the journal still has events."""
        today = day_at(self._wall())
        days = {today, today - timedelta(days=1)}
        note = read_export_state(self._folder)
        if self._takes_notes and (note.database if note is not None else "") != self._noted_database:
            # Who reads must not wait for the first segment: all there is may be in the database.
            self._write_note(note.day if note is not None and note.place == self._settings.place else "")
        if note is not None and note.place == self._settings.place:
            days |= {day} if (day := day_of(note.day)) is not None else set()
            self._day = note.day
        floor, _ = self._journal.ends()
        known: dict[int, list[Segment]] = {}
        for day in sorted(days):
            self._place.settle(day)
            for name in self._place.names(day):
                segment = parse(name)
                if segment is None or segment.source != self._settings.source or segment.last_seq < floor:
                    continue
                if self._is_whole(day, name, segment):
                    known.setdefault(segment.boot, []).append(segment)
        return known

    def _is_whole(self, day: date, name: str, segment: Segment) -> bool:
        """True if it can be read to its end and holds what its name says."""
        try:
            arrow.verify(self._place.open(day, name), segment)
        except (arrow.InvalidSegment, OSError):
            return False
        return True

    def _export_next(self) -> Exported | None:
        """One segment, or a stretch that is in segments already; None: there is nothing."""
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
        self._note(day)
        self._place.put(day, name, table, self._reach)
        return Exported(segment.first_seq, segment.last_seq, name)

    def _covered(self, rows: list[JournalRow]) -> int:
        """The last event of those at the beginning that stand in known segments; 0: none does."""
        last = 0
        for row in rows:
            known = (self._known or {}).get(row.boot, ())
            if not any(one.first_seq <= row.first_seq and row.last_seq <= one.last_seq for one in known):
                break
            last = row.last_seq
        return last

    def _gather(self, rows: list[JournalRow]) -> tuple[pa.Table, int]:
        """The events of one segment, and the last of them: until the boot ends, there is a gap, or it is full."""
        first = rows[0]
        last_seq = first.first_seq - 1
        tables: list[pa.Table] = []
        while rows:
            taken: list[JournalRow] = []
            for row in rows:
                full = row.last_seq - first.first_seq + 1 > self._settings.events and (taken or tables)
                if row.boot != first.boot or row.first_seq != last_seq + 1 or full or self._covered([row]):
                    break
                taken.append(row)
                last_seq = row.last_seq
            try:
                tables += [arrow.table_of(taken)] if taken else []
            except arrow.DamagedRow as error:
                good = [row for row in taken if row.first_seq < error.first_seq]
                if not good and not tables:
                    raise
                tables += [arrow.table_of(good)] if good else []
                return pa.concat_tables(tables), error.first_seq - 1
            if len(taken) < len(rows):
                break
            rows = self._journal.after(last_seq)
        return pa.concat_tables(tables), last_seq

    def _note(self, day: date) -> None:
        """Before the first segment of a day: where to look for it after a kill."""
        name = folder_of(day)
        if self._takes_notes and (name != self._day or read_export_state(self._folder) is None):
            self._write_note(name)
        self._reach("after_note")

    @property
    def _noted_database(self) -> str:
        return without_password(self._settings.database) if self._settings.database else ""

    def _write_note(self, day: str) -> None:
        settings = self._settings
        note = ExportState(source=settings.source, place=settings.place, day=day, database=self._noted_database)
        write_export_state(self._folder, note)
        self._day = day


def export_orphans(settings: ExporterSettings) -> Iterator[tuple[str, Exported]]:
    """Write out, and forget, what each of them left; whose, and what."""
    from scale0.storage.postgres.journal import JournalTable, dead_brokers_with_rows  # noqa: PLC0415  # an extra

    for source in dead_brokers_with_rows(settings.database):
        if source == settings.source:
            continue
        journal = JournalTable(settings.database, source)
        try:
            journal.ends()
        except StoreError:
            journal.close()  # another was faster, or it came back
            continue
        # The note in this data folder is about our own segments.
        writer = SegmentWriter(msgspec.structs.replace(settings, source=source), journal=journal, takes_notes=False)
        try:
            for done in writer.export(everything=True):
                journal.trim(done.last_seq)
                yield source, done
        finally:
            writer.close()

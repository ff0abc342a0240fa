"""What the data folders of this machine hold: every source that recorded here, to be read by number.

Lives here: `EventIndex`, and the bounded reads that streams and pages are made of. Never here: a loop, or who listens.
Invariants: a library is used by one thread and closed by it (SQLite wants that); shelves may be shared. A folder, a
journal or a source may appear at any time; one that cannot be read now does not keep the others from being told.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from scale0.history.events.journal import event_as_json
from scale0.history.segments import arrow
from scale0.history.segments.catalog import SegmentCatalog
from scale0.history.segments.event_reader import EventRange, EventReader, Reason, empty
from scale0.history.segments.journals import JournalSource, journal_identity, open_for_reading
from scale0.history.segments.reader import EventFilter, events_of
from scale0.history.segments.settings import ExportState, read_export_state
from scale0.http.events.cursor import MAX_SOURCES, Vector
from scale0.kernel.errors import StoreError
from scale0.kernel.log_context import about

log = logging.getLogger("scale0.http.events")

HELENS_FOLDER: Final = Path("monitoring", "helen")
"""Of `scale0 up`, below the broker's folder."""
MAX_RESUME_EVENTS: Final = 100_000
"""Of one source, that a reader who comes back is told of; what is older is a gap. `/events` has it."""
PAGE_EVENTS: Final = 2_000
"""Of one source, looked at in one step, a row of the journal more or less: it takes a thread for milliseconds."""


class OutgoingEvent(NamedTuple):
    """An event on its way out."""

    time_us: int
    source: str
    seq: int
    text: bytes


class LostEvents(NamedTuple):
    """Events that cannot be told."""

    source: str
    first_seq: int
    last_seq: int
    reason: Reason
    stands: int
    """Where a reader stands who was told of it."""


class NextEvents(NamedTuple):
    """What follows a position."""

    lines: dict[EventFilter, list[OutgoingEvent]]
    """What each choice gives."""
    lost: list[LostEvents]
    stands: dict[str, int]
    """Where who was told this stands, of the sources that had something."""


def places_of(data_dir: Path) -> list[Path]:
    """The folder of a broker, and that of the Helen that `scale0 up` put below it."""
    return [data_dir, data_dir / HELENS_FOLDER]


class EventIndex:
    """The folders, opened as far as they are there."""

    def __init__(self, folders: Sequence[Path], shelves: Sequence[SegmentCatalog]) -> None:
        self._folders = list(zip(folders, shelves, strict=True))
        self._open: dict[Path, tuple[EventReader, str]] = {}
        """By folder: its own source, and which store it was."""
        self._troubles: set[str] = set()

    def own(self) -> dict[str, EventReader]:
        """The sources whose journals are here."""
        found: dict[str, EventReader] = {}
        for folder, shelf in self._folders:
            one = self._opened(folder, shelf)
            if one is not None and len(found) < MAX_SOURCES:
                found.setdefault(one.source, one)
        return found

    def all(self) -> dict[str, EventReader]:
        """These, and those of which only segments are here."""
        found = self.own()
        for _, shelf in self._folders:
            for source in shelf.sources():
                if len(found) < MAX_SOURCES:
                    found.setdefault(source, EventReader(source, None, shelf))
        return found

    def ends(self) -> dict[str, int]:
        """The newest number of every source that has a journal here."""
        return {source: end for source, one in self.own().items() if (end := self._asked(one)) is not None}

    def step(self, stands: Vector, choices: Iterable[EventFilter]) -> NextEvents:
        """What each choice gives of the events that follow.

        Sources are merged by time as far as each of them was read; a source that is not in `stands` is new, and is told
        from its first event on.
        """
        stretches: dict[str, EventRange] = {}
        lost: list[LostEvents] = []
        for source, one in self.own().items():
            try:
                stretch, gap = _next(one, stands.get(source, 0), PAGE_EVENTS)
            except StoreError as error:
                self._tell(str(error))
                continue
            lost += [gap] if gap is not None else []
            if stretch is not None:
                stretches[source] = stretch
        return _merged(stretches, lost, choices)

    def close(self) -> None:
        """Let go of all journals."""
        for one, _ in self._open.values():
            one.close()
        self._open.clear()

    def _opened(self, folder: Path, shelf: SegmentCatalog) -> EventReader | None:
        """The folder's own source; None as long as nobody recorded there. A store that was replaced is opened anew."""
        note = read_export_state(folder)
        mark = journal_identity(folder, note)
        known = self._open.get(folder)
        if known is not None and known[1] == mark:
            return known[0]
        if known is not None:
            known[0].close()
            del self._open[folder]
        if not mark:
            return None
        journal = None
        try:
            journal = open_for_reading(folder, note)
            source = "" if journal is None else _name(note, journal)
        except StoreError as error:
            self._tell(str(error))
            source = ""
        if source:
            self._open[folder] = EventReader(source, journal, shelf), mark
            return self._open[folder][0]
        if journal is not None:
            journal.close()
        return None

    def _asked(self, one: EventReader) -> int | None:
        try:
            return one.last()
        except StoreError as error:
            self._tell(str(error))
            return None

    def _tell(self, trouble: str) -> None:
        """Once."""
        if trouble not in self._troubles:
            self._troubles.add(trouble)
            log.warning("events cannot be told: %s", trouble, extra=about())


def _name(note: ExportState | None, journal: JournalSource) -> str:
    """Who records in a folder: as its newest event says, or its writer of segments; blank: nobody did yet."""
    _, last = journal.ends()
    rows = journal.after(last - 1) if last else []
    if rows:
        try:
            return arrow.source_of(rows[-1])
        except arrow.DamagedRow:
            pass
    return "" if note is None else note.source


def _next(one: EventReader, stands: int, most: int) -> tuple[EventRange | None, LostEvents | None]:
    """What follows, and what of it cannot be told: nobody is told of more than the newest events."""
    last = one.last()
    gap: LostEvents | None = None
    if last < stands:
        gap, stands = LostEvents(one.source, 1, stands, "renumbered", 0), 0
    if last - stands > MAX_RESUME_EVENTS:
        first, stands = stands + 1, last - MAX_RESUME_EVENTS
        gap = LostEvents(one.source, first, stands, "limit", stands) if gap is None else gap._replace(stands=stands)
    stretch = one.after(stands, most)
    if stretch is not None and stretch.reason:
        first = stretch.first_seq if gap is None else gap.first_seq
        return stretch, LostEvents(one.source, first, stretch.last_seq, stretch.reason, stretch.last_seq)
    if stretch is None and gap is not None:
        stretch = EventRange(stands + 1, stands, empty())
    return stretch, gap


def _merged(stretches: dict[str, EventRange], lost: list[LostEvents], choices: Iterable[EventFilter]) -> NextEvents:
    """By time, up to where all sources were read; what lies behind that is read again in the next step."""
    times = {source: one.table["time"].cast("int64").to_pylist() for source, one in stretches.items()}
    horizon = min((max(known) for known in times.values() if known), default=0)
    stands: dict[str, int] = {}
    tables: list[pa.Table] = []
    for source, stretch in stretches.items():
        whole = len(times[source])
        count = next((n for n, time_us in enumerate(times[source]) if time_us > horizon), whole)
        stands[source] = stretch.last_seq if count == whole else stretch.first_seq + count - 1
        tables.append(stretch.table.slice(0, count))
    lines = {
        choice: list(heapq.merge(*(lines_of(choice.apply(table)) for table in tables), key=lambda line: line.time_us))
        for choice in dict.fromkeys(choices)
    }
    return NextEvents(lines, lost, stands)


def lines_of(table: pa.Table) -> list[OutgoingEvent]:
    """Events, ready to be told."""
    return [
        OutgoingEvent(event["time"], event["source"], event["seq"], event_as_json(event)) for event in events_of(table)
    ]

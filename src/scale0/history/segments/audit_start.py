"""Where the audit chain of a source begins once its oldest segments are removed.

The retention removes whole segments. The last audit event among them is the one that the first remaining one follows;
its hash is in the store before the segments are removed, so that `scale0 audit verify` can distinguish a removal by
the retention from every other.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc

from scale0.history.events.audit import AUDIT_KINDS, hash_of, previous_of
from scale0.history.segments import arrow
from scale0.history.segments.destination import SegmentDestination
from scale0.history.segments.journals import JournalSource
from scale0.history.segments.names import parse
from scale0.history.segments.reader import Event, EventFilter, HistoryReader, SegmentFile, events_of

_AUDIT: EventFilter = EventFilter(kinds=AUDIT_KINDS)


def last_hash(
    destination: SegmentDestination, source: str, names_by_day: Mapping[date, list[str] | None]
) -> str | None:
    """The hash of the last audit event of a source in these segments; None: there is none with a hash."""
    files = [
        SegmentFile(segment, day, name)
        for day, names in names_by_day.items()
        for name in names or ()
        if (segment := parse(name)) is not None and segment.source == source
    ]
    for listed in sorted(files, reverse=True):
        event = _last_event(destination, listed)
        if event is not None:
            return hash_of(event) if previous_of(event) is not None else None
    return None


def _last_event(destination: SegmentDestination, listed: SegmentFile) -> Event | None:
    """The last audit event of a segment; None: it has none, or cannot be read, which `audit verify` reports."""
    try:
        with arrow.open_segment(destination.open(listed.day, listed.name)) as file:
            for number in reversed(range(file.metadata.num_row_groups)):
                if not file.metadata.row_group(number).num_rows:
                    continue
                # One column says whether the others are worth reading.
                kinds = file.read_group(number, ["kind"])["kind"]
                if pc.any(pc.is_in(kinds, value_set=pa.array(AUDIT_KINDS, pa.string()))).as_py():
                    return events_of(_AUDIT.apply(file.read_group(number)))[-1]
    except (arrow.InvalidSegment, pa.ArrowException, OSError):
        pass
    return None


def find_start(destination: SegmentDestination, journal: JournalSource, source: str, head: str) -> str:
    """For a store that has not recorded it, because of an older version or a new identity: the hash that the first
    audit event of the source contains; if none is left, that of the newest one."""
    reader = HistoryReader(destination, journal, source, lambda _: None)
    files = reader.list_segments(None).get(source, [])
    for table in itertools.chain(reader.read_segments(files, _AUDIT), reader.read_journal(_AUDIT)):
        for event in events_of(table):
            previous = previous_of(event)
            if previous is not None:
                return previous
    return head

"""What dead brokers left in the journal that a group shares: another exports it.

Lives here: `export_left`. Never here: the journal of a broker that lives. Invariants: one exporter at a time has a
journal, and its owner is one of them; rows are forgotten once they stand in segments for good, and not before.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from scale0.history.segments.settings import ExporterSettings
from scale0.history.segments.writer import Exported, SegmentWriter
from scale0.kernel.errors import StoreError
from scale0.storage.postgres.journal import JournalTable, left_behind


def export_left(settings: ExporterSettings) -> Iterator[tuple[str, Exported]]:
    """Write out, and forget, what each of them left; whose, and what."""
    for source in left_behind(settings.database):
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

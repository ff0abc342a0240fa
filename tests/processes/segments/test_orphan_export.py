"""What a dead broker left in the journal of a group is exported by another, once.

Promise: SEG-1
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from scale0.history.events.journal import Journal
from scale0.history.events.sources import SourceAlive
from scale0.history.segments.settings import ExporterSettings
from scale0.history.segments.writer import SegmentWriter, export_orphans
from scale0.kernel.clock import Now
from scale0.storage.postgres.journal import JournalTable
from scale0.storage.postgres.store import PostgresStore
from tests.fakes.postgres import postgres_database, postgres_server, postgres_url

__all__ = ["postgres_database", "postgres_server", "postgres_url"]

pytestmark = pytest.mark.slow  # its server has to start


def settings_of(url: str, source: str, folder: Path) -> ExporterSettings:
    (folder / source).mkdir(exist_ok=True)
    place = str(folder / "segments")
    return ExporterSettings(
        source=source,
        data_dir=str(folder / source),
        destination=place,
        seconds=60,
        events=1000,
        keep_days=0,
        database=url,
    )


@pytest.fixture
def left(postgres_url, tmp_path):
    """Ann wrote five events, and is gone; bob lives."""
    ann, bob = (PostgresStore(postgres_url, name, tmp_path / name) for name in ("ann", "bob"))
    bob.open()
    opened = ann.open()
    journal_writer = Journal("ann", opened.last_boot_us + 5, opened.next_seq, opened.last_time_us)
    rows: Any = [journal_writer.append([SourceAlive("ann")] * events, Now(0.0, 100.0 + events)) for events in (2, 3)]
    ann.commit(rows)
    ann.close()
    yield postgres_url
    bob.close()


def dead_for_long(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE scale0.brokers SET gone_us = 0 WHERE alive_until_us IS NULL")


def test_it_is_written_and_forgotten_once(left, tmp_path):
    bob = settings_of(left, "bob", tmp_path)
    assert list(export_orphans(bob)) == []  # it may come back
    dead_for_long(left)
    ((source, done),) = export_orphans(bob)
    assert (source, done.first_seq, done.last_seq) == ("ann", 1, 5)
    assert list((tmp_path / "segments").rglob(done.name))
    assert list(export_orphans(bob)) == []
    table = JournalTable(left, "ann")
    assert table.ends() == (6, 5)
    table.close()


def test_one_exporter_at_a_time_has_a_journal(left, tmp_path):
    dead_for_long(left)
    owner = SegmentWriter(settings_of(left, "ann", tmp_path))
    pieces = owner.export(everything=True)
    first = next(pieces)
    assert (first.first_seq, first.last_seq) == (1, 5)
    assert list(export_orphans(settings_of(left, "bob", tmp_path))) == []
    owner.close()
    # Its segment was reported to nobody: it is found, and only the rows go.
    ((_, done),) = export_orphans(settings_of(left, "bob", tmp_path))
    assert (done.last_seq, done.name) == (5, "")

"""A journal in PostgreSQL is live, too: for the events, for pages, and for `scale0 events`."""

from __future__ import annotations

import stat
import time
from pathlib import Path
from typing import Any

import pytest

from scale0.history.events.journal import Journal
from scale0.history.events.tasks import TaskSubmitted
from scale0.history.segments.reader import events_of, open_history
from scale0.history.segments.settings import EXPORT_STATE_FILE, ExporterSettings
from scale0.history.segments.writer import SegmentWriter
from scale0.http.events.stream import EventStream
from scale0.kernel.clock import Now
from scale0.storage.postgres.store import PostgresStore
from tests.fakes.postgres import postgres_database, postgres_server, postgres_url
from tests.processes.http.event_folders import ALL, seqs, taken
from tests.unit.http.test_event_pages import Shown, keys

__all__ = ["postgres_database", "postgres_server", "postgres_url"]

pytestmark = pytest.mark.slow  # its server has to start


class Database:
    def __init__(self, url: str, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir()
        self.store = PostgresStore(url, "ann", folder)
        opened = self.store.open()
        self.wall = time.time()
        self.journal = Journal("ann", opened.last_boot_us + 5, opened.next_seq, opened.last_time_us)
        place = str(folder / "segments")
        self.writer = SegmentWriter(
            ExporterSettings(
                source="ann", data_dir=str(folder), destination=place, seconds=60, events=10, keep_days=0, database=url
            )
        )
        assert list(self.writer.export()) == []

    def fill(self, count: int) -> None:
        for _ in range(count):
            self.wall += 0.001
            row: Any = self.journal.append([TaskSubmitted(f"t{n}", "m", "c", 0) for n in range(2)], Now(0.0, self.wall))
            self.store.commit([row])

    def export(self) -> None:
        for done in self.writer.export(everything=True):
            self.store.trim_journal(done.last_seq)

    def close(self) -> None:
        self.writer.close()
        self.store.close()


@pytest.fixture
def database(postgres_url, tmp_path):
    made = Database(postgres_url, tmp_path / "data")
    yield made
    made.close()


# Promise: FEED-1
async def test_who_comes_back_reads_on_from_the_database_and_goes_on_live(database):
    database.fill(15)
    database.export()
    database.fill(5)
    events = EventStream([database.folder], poll_seconds=0.02)
    try:
        one = await events.subscribe(ALL, {"ann": 7})
        assert seqs(await taken(one, 33)) == list(range(8, 41))
        database.fill(2)
        assert seqs(await taken(one, 4)) == [41, 42, 43, 44]
    finally:
        await events.close()


# Promise: FEED-4
def test_pages_and_the_command_line_read_the_database_while_its_writer_exports(database):
    database.fill(15)
    database.export()
    database.fill(5)
    with Shown(database.folder) as shown:
        assert keys(shown.pages(ALL, 7)) == [("ann", seq) for seq in range(40, 0, -1)]
    troubles: list[str] = []
    history = open_history(database.folder, None, troubles.append)
    assert history.live
    assert [event["seq"] for event in history.last(15, ALL)] == list(range(26, 41))
    database.fill(1)
    found = [event["seq"] for table in history.read_journal(ALL) for event in events_of(table)]
    history.close()
    assert found == [41, 42]
    assert troubles == []


# Promise: FEED-2
def test_the_address_of_the_database_is_in_a_private_file_and_one_that_is_away_is_reported(database, tmp_path):
    database.fill(5)
    database.export()
    note = database.folder / EXPORT_STATE_FILE
    assert stat.S_IMODE(note.stat().st_mode) == 0o600
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    text = note.read_text()
    start = text.index('"database":"') + len('"database":"')
    away = text[:start] + "postgresql://ann:pa55word@127.0.0.1:1/nowhere" + text[text.index('"', start) :]
    (elsewhere / EXPORT_STATE_FILE).write_text(away)
    troubles: list[str] = []
    history = open_history(elsewhere, None, troubles.append)
    assert [event["seq"] for event in history.last(4, ALL)] == [7, 8, 9, 10], "segments are there"
    assert "pa55word" not in str(troubles)
    assert len(troubles) == 1

"""The writer: what is due goes into one segment of one boot, once, and nothing is ever left out.

Promise: SEG-2
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from scale0.history.segments import arrow, writer
from scale0.history.segments.destination import LocalFolder, SegmentConflict
from scale0.history.segments.names import parse
from scale0.history.segments.settings import EXPORT_STATE_FILE, password_of, read_export_state, without_password
from scale0.history.segments.writer import SegmentWriter
from scale0.kernel.confirmed_clock import CONFIRM_SECONDS
from scale0.storage.sqlite.commit_mark import MARK_NAME
from tests.fakes.journals import journal_events
from tests.processes.segments.folders import NOON, Folder, everything, segment_events, segment_files


class Clock:
    def __init__(self) -> None:
        self.wall, self.mono = NOON + 3_600, 100.0

    def later(self, seconds: float) -> None:
        self.wall += seconds
        self.mono += seconds


@pytest.fixture
def folder(tmp_path):
    made = Folder(tmp_path / "data")
    yield made
    made.store.close()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def open_writer(folder, clock):
    """Opens writers of the folder, which are closed at the end."""
    with contextlib.ExitStack() as opened:

        def one(**settings: Any) -> SegmentWriter:
            made = SegmentWriter(folder.settings(**settings), wall=lambda: clock.wall, mono=lambda: clock.mono)
            opened.callback(made.close)
            return made

        yield one


@pytest.fixture
def export(open_writer):
    """Exports the whole journal by a writer of its own: the ranges that are safe then."""

    def once(**settings: Any) -> list[tuple[int, int]]:
        with contextlib.closing(open_writer(**settings)) as made:
            return [one[:2] for one in made.export(everything=True)]

    return once


def ranges(folder: Folder) -> list[tuple[int, int]]:
    found = [parse(path.name) for path in segment_files(folder.path / "segments")]
    return [(one.first_seq, one.last_seq) for one in found if one is not None]


def test_a_segment_is_written_after_its_time_and_not_before(folder, clock, open_writer):
    folder.fill(3)
    made = open_writer()
    assert list(made.export()) == []
    clock.later(59.9)
    assert list(made.export()) == []
    clock.later(0.2)
    (done,) = made.export()
    assert done[:2] == (1, 3)
    assert ranges(folder) == [(1, 3)]
    clock.later(1_000.0)
    assert list(made.export()) == [], "there is nothing new"
    folder.beat()
    assert list(made.export()) == [], "the new event has its own 60 seconds"


def test_a_full_segment_is_written_at_once_and_the_rest_waits(folder, clock, open_writer):
    made = open_writer(events=100)
    folder.fill(25, events=10)
    assert [done[:2] for done in made.export()] == [(1, 100), (101, 200)]
    assert list(made.export()) == []
    clock.later(61)
    assert [done[:2] for done in made.export()] == [(201, 250)]


def test_a_turn_larger_than_a_segment_is_one_segment(folder, export):
    for events in (10, 250, 10):
        folder.fill(1, events=events)
    assert export(events=100) == [(1, 10), (11, 260), (261, 270)]


def test_a_segment_never_mixes_boots(folder, export):
    folder.fill(3)
    folder.restart()
    folder.fill(2)
    assert export() == [(1, 3), (4, 5)]
    for path in segment_files(folder.path / "segments"):
        segment = parse(path.name)
        assert segment is not None
        with arrow.open_segment(path) as file:
            assert file.read()["boot"].unique().to_pylist() == [segment.boot]


def test_what_is_in_a_segment_is_what_was_in_the_journal(folder, export):
    folder.fill(500, events=7)
    wanted = journal_events(folder.path)
    export(events=1_000)
    found = segment_events(folder.path / "segments")
    assert [(event["seq"], event["kind"], event["ref"], event["data"]) for event in found] == [
        (event["seq"], event["kind"], event["ref"], event["data"]) for event in wanted
    ]
    assert found[0]["time"].timestamp() == pytest.approx(wanted[0]["time"] / 1e6)


def test_a_writer_that_starts_again_writes_nothing_twice(folder, clock, export):
    folder.fill(10)
    export()
    folder.fill(5)  # the journal was not trimmed: the owner died before it could
    clock.later(86_400 * 5)
    assert export() == [(1, 10), (11, 15)]
    assert ranges(folder) == [(1, 10), (11, 15)]
    assert everything(folder.path) == list(range(1, 16))


def test_an_old_disk_that_comes_back_is_written_with_its_own_boots(folder, tmp_path, export):
    folder.fill(5)
    backup = tmp_path / "backup.db"
    with sqlite3.connect(folder.path / "scale0.db") as database, sqlite3.connect(backup) as copy:
        database.backup(copy)
    database.close()
    copy.close()
    folder.fill(5)
    export()
    folder.store.close()
    for path in folder.path.glob("scale0.db*"):
        path.unlink()
    (folder.path / MARK_NAME).unlink()
    backup.rename(folder.path / "scale0.db")
    folder.wall += 60
    folder.open()
    folder.fill(2)  # numbers 6 and 7 once more, in another boot
    assert export() == [(1, 5), (6, 7)]
    assert ranges(folder) == [(1, 10), (6, 7)], "both histories are there, and nothing twice"


def test_a_damaged_segment_of_an_earlier_writer_is_not_trusted(folder, open_writer, export):
    folder.fill(10)
    export()
    (path,) = segment_files(folder.path / "segments")
    good = path.read_bytes()
    path.write_bytes(good[: len(good) // 2])
    (done,) = open_writer().export(everything=True)
    assert done.name == path.name
    assert path.read_bytes() == good


def test_a_segment_that_is_there_is_kept_and_another_of_its_name_is_never_replaced(folder, export):
    folder.fill(10)
    export()
    (path,) = segment_files(folder.path / "segments")
    before = path.stat()
    local = LocalFolder(folder.path / "segments", "east-1")
    day = date(2026, 5, 1)
    with arrow.open_segment(path) as file:
        table = file.read()
    local.put(day, path.name, table, writer.no_failpoint)
    assert path.stat().st_ino == before.st_ino
    with pytest.raises(SegmentConflict, match="other events"):
        local.put(day, path.name, table.slice(1), writer.no_failpoint)
    assert path.stat().st_ino == before.st_ino


def test_a_damaged_row_stops_the_export_there_and_is_named(folder, open_writer):
    folder.fill(10)
    with sqlite3.connect(folder.path / "scale0.db") as database:
        database.execute("UPDATE journal SET body = substr(body, 1, length(body) - 3) WHERE first_seq = 7")
    database.close()
    made = open_writer()
    for _ in range(2):
        with pytest.raises(arrow.DamagedRow, match="event 7"):
            list(made.export(everything=True))
    assert ranges(folder) == [(1, 6)]


def test_a_gap_in_the_journal_is_no_part_of_a_segment(folder, export):
    folder.fill(10)
    with sqlite3.connect(folder.path / "scale0.db") as database:
        database.execute("DELETE FROM journal WHERE first_seq = 5")
    database.close()
    export()
    assert ranges(folder) == [(1, 4), (6, 10)]


def test_a_failed_fsync_leaves_nothing_behind_and_the_next_try_takes_another_file(folder, monkeypatch, open_writer):
    folder.fill(3)
    made = open_writer()
    synced: list[str] = []

    def fail(descriptor: int) -> None:
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        if ".writing-" in name:
            synced.append(name)
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output"):
            list(made.export(everything=True))
    assert len(set(synced)) == 2
    assert list((folder.path / "segments").rglob("*writing*")) == []
    assert ranges(folder) == []
    monkeypatch.undo()
    assert [one[:2] for one in made.export(everything=True)] == [(1, 3)]


def test_half_written_files_of_a_writer_that_died_are_removed_but_not_those_of_others(folder, export):
    folder.fill(1)
    day = folder.path / "segments" / "written=2026-05-01"
    day.mkdir(parents=True)
    (day / ".writing-east-1-77-aa").write_bytes(b"half")
    (day / ".writing-west-1-77-aa").write_bytes(b"half")
    export()
    assert [path.name for path in day.glob(".*")] == [".writing-west-1-77-aa"]


def test_days_that_are_too_old_go_and_today_never_does(folder, clock, open_writer):
    segments = folder.path / "segments"
    for day in ("2026-03-31", "2026-04-30", "2026-05-01", "2026-05-02"):
        (segments / f"written={day}").mkdir(parents=True)
        (segments / f"written={day}" / "seg-x-1-1-1.parquet").write_bytes(b"")
        (segments / f"written={day}" / ".writing-x-1").write_bytes(b"")
    (segments / "notes").mkdir()
    made = open_writer(keep_days=1)
    assert made.apply_retention() == [], "not right after the start: the clock may be wrong"
    clock.later(CONFIRM_SECONDS)
    assert made.apply_retention() == [date(2026, 3, 31)]
    assert sorted(os.listdir(segments)) == ["notes", *(f"written=2026-0{day}" for day in ("4-30", "5-01", "5-02"))]
    assert made.apply_retention() == []


# Promise: SEG-5
def test_a_jump_of_the_clock_removes_no_day_until_it_has_kept_its_time(folder, clock, open_writer):
    segments = folder.path / "segments"
    for day in ("2026-04-01", "2026-05-01"):
        (segments / f"written={day}").mkdir(parents=True)
    made = open_writer(keep_days=90)
    clock.later(CONFIRM_SECONDS)
    assert made.apply_retention() == []
    clock.wall += 365 * 86_400
    assert made.remove_old() == []
    assert made.held == [date(2026, 4, 1), date(2026, 5, 1)]
    for _ in range(5):
        clock.later(writer.RETENTION_SECONDS)
        assert made.apply_retention() == []
    again = open_writer(keep_days=90)
    assert again.remove_old() == [], "nor after a restart"
    assert len(os.listdir(segments)) == 2
    clock.wall -= 365 * 86_400
    clock.later(CONFIRM_SECONDS)
    assert made.apply_retention() == []
    clock.wall += 365 * 86_400
    assert made.apply_retention() == []
    clock.later(CONFIRM_SECONDS)
    assert made.apply_retention() == [date(2026, 4, 1), date(2026, 5, 1)]


def test_a_day_with_somebody_elses_file_is_not_removed_with_it(folder, clock, open_writer):
    day = folder.path / "segments" / "written=2026-03-31"
    day.mkdir(parents=True)
    (day / "thesis.txt").write_text("mine")
    made = open_writer(keep_days=1)
    clock.later(CONFIRM_SECONDS)
    with pytest.raises(OSError, match="not empty"):
        made.remove_old()
    assert (day / "thesis.txt").read_text() == "mine"


def test_without_a_limit_nothing_is_ever_removed(folder, clock, open_writer):
    (folder.path / "segments" / "written=1999-12-31").mkdir(parents=True)
    made = open_writer(keep_days=0)
    clock.later(CONFIRM_SECONDS)
    assert made.remove_old() == []


def test_the_note_says_where_segments_are_and_is_for_its_owner_alone(folder, export):
    folder.fill(1)
    export()
    note = read_export_state(folder.path)
    assert note is not None
    assert (note.destination, note.day) == (str(folder.path / "segments"), "written=2026-05-01")
    assert (folder.path / EXPORT_STATE_FILE).stat().st_mode & 0o777 == 0o600
    (folder.path / EXPORT_STATE_FILE).write_text('{"place": 7')
    assert read_export_state(folder.path) is None


def test_reading_the_journal_keeps_no_commit_waiting(folder, open_writer):
    folder.fill(100)
    made = open_writer()
    exporting = made.export(everything=True)
    next(exporting)
    folder.fill(1)
    folder.store.trim_journal(50)
    assert list(exporting) == []
    assert everything(folder.path) == list(range(1, 102))


def test_a_place_that_cannot_be_written_is_an_error_and_nothing_is_exported(folder, open_writer):
    folder.fill(1)
    (folder.path / "segments").write_text("in the way")
    made = open_writer()
    with pytest.raises(OSError, match="segments"):
        list(made.export(everything=True))
    Path(folder.path / "segments").unlink()
    assert len(list(made.export(everything=True))) == 1


@pytest.mark.parametrize(
    ("url", "shown", "password"),
    [
        ("postgresql://ann:pa55@db:5432/scale0", "postgresql://ann@db:5432/scale0", "pa55"),
        ("postgresql://ann@db/scale0", "postgresql://ann@db/scale0", ""),
        (
            "postgresql://db/x?user=ann&password=pa55&sslmode=require",
            "postgresql://db/x?user=ann&sslmode=require",
            "pa55",
        ),
        ("postgresql://ann:a%40b%3Ac@db/x", "postgresql://ann@db/x", "a@b:c"),
        ("postgresql://u@%2Ftmp%2Fpg/x", "postgresql://u@%2Ftmp%2Fpg/x", ""),
    ],
)
def test_a_url_is_noted_without_its_password(url, shown, password):
    assert without_password(url) == shown
    assert password_of(url) == password

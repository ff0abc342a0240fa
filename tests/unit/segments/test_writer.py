"""The writer: what is due goes into one segment of one boot, once, and nothing is ever left out.

Promise: SEG-2
"""

from __future__ import annotations

import os
import sqlite3
from datetime import date
from pathlib import Path

import pytest

from scale0.history.segments import arrow, writer
from scale0.history.segments.destination import LocalFolder, SegmentConflict
from scale0.history.segments.names import parse
from scale0.history.segments.settings import EXPORT_STATE_FILE, read_export_state
from scale0.history.segments.writer import Exported, SegmentWriter
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


def writer_of(folder: Folder, clock: Clock, **changes) -> SegmentWriter:
    settings = folder.settings(
        **{key: changes.pop(key) for key in ("seconds", "events", "keep_days") if key in changes}
    )
    return SegmentWriter(settings, wall=lambda: clock.wall, mono=lambda: clock.mono, **changes)


def ranges(folder: Folder) -> list[tuple[int, int]]:
    found = [parse(path.name) for path in segment_files(folder.path / "segments")]
    return [(one.first_seq, one.last_seq) for one in found if one is not None]


def test_a_segment_is_written_after_its_time_and_not_before(folder, clock):
    folder.fill(3)
    made = writer_of(folder, clock)
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
    made.close()


def test_a_full_segment_is_written_at_once_and_the_rest_waits(folder, clock):
    made = writer_of(folder, clock, events=100)
    folder.fill(25, events=10)
    assert [done[:2] for done in made.export()] == [(1, 100), (101, 200)]
    assert list(made.export()) == []
    clock.later(61)
    assert [done[:2] for done in made.export()] == [(201, 250)]
    made.close()


def test_a_turn_larger_than_a_segment_is_one_segment(folder, clock):
    made = writer_of(folder, clock, events=100)
    folder.fill(1, events=10)
    folder.fill(1, events=250)
    folder.fill(1, events=10)
    assert [done[:2] for done in made.export(everything=True)] == [(1, 10), (11, 260), (261, 270)]
    made.close()


def test_a_segment_never_mixes_boots(folder, clock):
    folder.fill(3)
    folder.restart()
    folder.fill(2)
    made = writer_of(folder, clock)
    assert [done[:2] for done in made.export(everything=True)] == [(1, 3), (4, 5)]
    for path in segment_files(folder.path / "segments"):
        segment = parse(path.name)
        assert segment is not None
        with arrow.open_segment(path) as file:
            assert file.read()["boot"].unique().to_pylist() == [segment.boot]
    made.close()


def test_what_is_in_a_segment_is_what_was_in_the_journal(folder, clock):
    folder.fill(500, events=7)
    wanted = journal_events(folder.path)
    made = writer_of(folder, clock, events=1_000)
    list(made.export(everything=True))
    found = segment_events(folder.path / "segments")
    assert [(event["seq"], event["kind"], event["ref"], event["data"]) for event in found] == [
        (event["seq"], event["kind"], event["ref"], event["data"]) for event in wanted
    ]
    assert found[0]["time"].timestamp() == pytest.approx(wanted[0]["time"] / 1e6)
    made.close()


def test_a_writer_that_starts_again_writes_nothing_twice(folder, clock):
    folder.fill(10)
    first = writer_of(folder, clock)
    list(first.export(everything=True))
    first.close()
    folder.fill(5)  # the journal was not trimmed: the owner died before it could
    clock.later(86_400 * 5)
    second = writer_of(folder, clock)
    assert [done[:2] for done in second.export(everything=True)] == [(1, 10), (11, 15)]
    assert ranges(folder) == [(1, 10), (11, 15)]
    assert everything(folder.path) == list(range(1, 16))
    second.close()


def test_an_old_disk_that_comes_back_is_written_with_its_own_boots(folder, clock, tmp_path):
    folder.fill(5)
    backup = tmp_path / "backup.db"
    with sqlite3.connect(folder.path / "scale0.db") as database, sqlite3.connect(backup) as copy:
        database.backup(copy)
    database.close()
    copy.close()
    folder.fill(5)
    made = writer_of(folder, clock)
    list(made.export(everything=True))
    made.close()
    folder.store.close()
    for path in folder.path.glob("scale0.db*"):
        path.unlink()
    backup.rename(folder.path / "scale0.db")
    folder.wall += 60
    folder.open()
    folder.fill(2)  # numbers 6 and 7 once more, in another boot
    again = writer_of(folder, clock)
    done = list(again.export(everything=True))
    again.close()
    assert [one[:2] for one in done] == [(1, 5), (6, 7)]
    assert ranges(folder) == [(1, 10), (6, 7)], "both histories are there, and nothing twice"


def test_a_damaged_segment_of_an_earlier_writer_is_not_trusted(folder, clock):
    folder.fill(10)
    first = writer_of(folder, clock)
    list(first.export(everything=True))
    first.close()
    (path,) = segment_files(folder.path / "segments")
    good = path.read_bytes()
    path.write_bytes(good[: len(good) // 2])
    second = writer_of(folder, clock)
    (done,) = second.export(everything=True)
    second.close()
    assert done.name == path.name
    assert path.read_bytes() == good


def test_a_segment_that_is_there_is_kept_and_another_of_its_name_is_never_replaced(folder, clock):
    folder.fill(10)
    made = writer_of(folder, clock)
    list(made.export(everything=True))
    made.close()
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


def test_a_damaged_row_stops_the_export_there_and_is_named(folder, clock):
    folder.fill(10)
    with sqlite3.connect(folder.path / "scale0.db") as database:
        database.execute("UPDATE journal SET body = substr(body, 1, length(body) - 3) WHERE first_seq = 7")
    database.close()
    made = writer_of(folder, clock)
    done: list[Exported] = []
    for _ in range(2):
        with pytest.raises(arrow.DamagedRow, match="event 7"):
            done += list_until_error(made, done)
    made.close()
    assert ranges(folder) == [(1, 6)]


def list_until_error(made: SegmentWriter, done: list[Exported]) -> list[Exported]:
    for one in made.export(everything=True):
        done.append(one)
    return []


def test_a_gap_in_the_journal_is_no_part_of_a_segment(folder, clock):
    folder.fill(10)
    with sqlite3.connect(folder.path / "scale0.db") as database:
        database.execute("DELETE FROM journal WHERE first_seq = 5")
    database.close()
    made = writer_of(folder, clock)
    list(made.export(everything=True))
    made.close()
    assert ranges(folder) == [(1, 4), (6, 10)]


def test_a_failed_fsync_leaves_nothing_behind_and_the_next_try_takes_another_file(folder, clock, monkeypatch):
    folder.fill(3)
    made = writer_of(folder, clock)
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
    made.close()


def test_half_written_files_of_a_writer_that_died_are_removed_but_not_those_of_others(folder, clock):
    folder.fill(1)
    day = folder.path / "segments" / "written=2026-05-01"
    day.mkdir(parents=True)
    (day / ".writing-east-1-77-aa").write_bytes(b"half")
    (day / ".writing-west-1-77-aa").write_bytes(b"half")
    made = writer_of(folder, clock)
    list(made.export(everything=True))
    made.close()
    assert [path.name for path in day.glob(".*")] == [".writing-west-1-77-aa"]


def test_days_that_are_too_old_go_and_today_never_does(folder, clock):
    segments = folder.path / "segments"
    for day in ("2026-03-31", "2026-04-30", "2026-05-01", "2026-05-02"):
        (segments / f"written={day}").mkdir(parents=True)
        (segments / f"written={day}" / "seg-x-1-1-1.parquet").write_bytes(b"")
        (segments / f"written={day}" / ".writing-x-1").write_bytes(b"")
    (segments / "notes").mkdir()
    made = writer_of(folder, clock, keep_days=1)
    assert made.apply_retention() == [], "not right after the start: the clock may be wrong"
    clock.mono += writer.RETENTION_SECONDS
    assert made.apply_retention() == [date(2026, 3, 31)]
    assert sorted(os.listdir(segments)) == ["notes", *(f"written=2026-0{day}" for day in ("4-30", "5-01", "5-02"))]
    assert made.apply_retention() == []
    made.close()


def test_a_day_with_somebody_elses_file_is_not_removed_with_it(folder, clock):
    day = folder.path / "segments" / "written=2026-03-31"
    day.mkdir(parents=True)
    (day / "thesis.txt").write_text("mine")
    made = writer_of(folder, clock, keep_days=1)
    with pytest.raises(OSError, match="not empty"):
        made.remove_old()
    assert (day / "thesis.txt").read_text() == "mine"
    made.close()


def test_without_a_limit_nothing_is_ever_removed(folder, clock):
    (folder.path / "segments" / "written=1999-12-31").mkdir(parents=True)
    made = writer_of(folder, clock, keep_days=0)
    assert made.remove_old() == []
    made.close()


def test_the_note_says_where_segments_are_and_is_for_its_owner_alone(folder, clock):
    folder.fill(1)
    made = writer_of(folder, clock)
    list(made.export(everything=True))
    made.close()
    note = read_export_state(folder.path)
    assert note is not None
    assert (note.destination, note.day) == (str(folder.path / "segments"), "written=2026-05-01")
    assert (folder.path / EXPORT_STATE_FILE).stat().st_mode & 0o777 == 0o600
    (folder.path / EXPORT_STATE_FILE).write_text('{"place": 7')
    assert read_export_state(folder.path) is None


def test_reading_the_journal_keeps_no_commit_waiting(folder, clock):
    folder.fill(100)
    made = writer_of(folder, clock)
    exporting = made.export(everything=True)
    next(exporting)
    folder.fill(1)
    folder.store.trim_journal(50)
    assert list(exporting) == []
    made.close()
    assert everything(folder.path) == list(range(1, 102))


def test_a_place_that_cannot_be_written_is_an_error_and_nothing_is_exported(folder, clock):
    folder.fill(1)
    (folder.path / "segments").write_text("in the way")
    made = writer_of(folder, clock)
    with pytest.raises(OSError, match="segments"):
        list(made.export(everything=True))
    Path(folder.path / "segments").unlink()
    assert len(list(made.export(everything=True))) == 1
    made.close()

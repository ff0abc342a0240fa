"""The data folder: one process at a time, nobody else's eyes, and a refusal that says what to do."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import threading

import pytest

from scale0.base.errors import StoreError
from scale0.store.interface import StoreFailed, StoreRefused
from scale0.store.lock import LOCK_NAME
from scale0.store.schema import STORE_VERSION
from scale0.store.sqlite import DATABASE_NAME, SqliteStore
from scale0.store.writes import PutSetting, ReadDocuments, ReadJournal


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "deep" / "data"


@pytest.fixture
def store(folder):
    made = SqliteStore(folder)
    yield made
    made.close()


# Promise: STORE-2
def test_a_second_store_on_one_folder_is_refused_and_told_who_has_it(folder, store):
    store.open()
    with pytest.raises(StoreRefused, match=f"in use by process {os.getpid()}"):
        SqliteStore(folder).open()
    store.commit([PutSetting("k", b"v")])
    store.close()
    again = SqliteStore(folder)
    assert again.open().settings == {"k": b"v"}
    again.close()


# Promise: STORE-2
@pytest.mark.processes
def test_a_second_process_on_one_folder_is_refused(folder, store):
    store.open()
    code = "import sys, pathlib, scale0.store.sqlite as s; s.SqliteStore(pathlib.Path(sys.argv[1])).open()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, check=False, timeout=60, env=environment
    )
    assert child.returncode == 1
    assert f"in use by process {os.getpid()}".encode() in child.stderr


@pytest.mark.parametrize("text", ["", "١٢", "12; rm", "-4"])
def test_a_lock_file_that_makes_no_sense_is_not_repeated(folder, store, text):
    store.open()
    (folder / LOCK_NAME).write_text(text)
    with pytest.raises(StoreRefused, match="in use by another process"):
        SqliteStore(folder).open()


def test_a_lock_file_left_by_a_dead_process_does_not_matter(folder, store):
    folder.mkdir(parents=True)
    (folder / LOCK_NAME).write_text("999999")
    store.open()
    assert (folder / LOCK_NAME).read_text() == f"{os.getpid()}\n"


def test_files_are_for_their_owner_alone(folder, store):
    before = os.umask(0)
    try:
        store.open()
        store.commit([PutSetting("k", b"v")])
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    finally:
        os.umask(before)
    assert set(modes.values()) == {0o600}
    assert {DATABASE_NAME, f"{DATABASE_NAME}-wal", LOCK_NAME} <= set(modes)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_commit_is_durable_and_in_the_write_ahead_log(store):
    store.open()
    writer = store._writer
    assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert writer.execute("PRAGMA synchronous").fetchone() == (2,)


def test_reads_cannot_write(store):
    store.open()
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        store._reader.execute("DELETE FROM settings")


def test_reads_and_commits_may_be_on_different_threads(store):
    store.open()
    failures: list[BaseException] = []

    def work():
        try:
            for number in range(50):
                store.commit([PutSetting("k", b"%d" % number)])
        except BaseException as error:
            failures.append(error)

    writer = threading.Thread(target=work)
    writer.start()
    while writer.is_alive():
        store.read(ReadDocuments(5))
    writer.join()
    assert failures == []


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_folder_that_cannot_be_is_refused(tmp_path, place):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreRefused, match="choose another data_dir"):
        SqliteStore(tmp_path / place).open()


def test_a_folder_that_cannot_be_written_is_refused(folder, store, monkeypatch):
    folder.mkdir(parents=True)
    # Root may write anywhere: what the system says to others is said here.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(StoreRefused, match="cannot write to the data folder"):
        store.open()


def test_a_lock_file_that_is_a_link_is_refused(folder, store, tmp_path):
    folder.mkdir(parents=True)
    (folder / LOCK_NAME).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreRefused, match="cannot write"):
        store.open()
    assert not (tmp_path / "elsewhere").exists()


def filled(folder):
    made = SqliteStore(folder)
    made.open()
    made.commit([PutSetting(f"k{n}", b"x" * 500) for n in range(200)])
    made.close()
    return folder / DATABASE_NAME


# Promise: STORE-4
@pytest.mark.parametrize(
    ("start", "junk"), [(0, b"not a database at all"), (4096, b"\xff" * 4096), (20_000, b"\x07" * 9000)]
)
def test_a_damaged_database_is_refused_with_advice_and_left_as_it_is(folder, store, start, junk):
    path = filled(folder)
    with path.open("r+b") as file:
        file.seek(start)
        file.write(junk)
    before = path.read_bytes()
    with pytest.raises(StoreRefused, match=r"damaged.*backup"):
        store.open()
    assert path.read_bytes() == before
    with pytest.raises(StoreRefused, match="damaged"):  # and the lock was let go
        SqliteStore(folder).open()


# Promise: STORE-4
def test_a_newer_database_is_refused_and_left_as_it_is(folder, store):
    path = filled(folder)
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO migrations VALUES (?)", (STORE_VERSION + 1,))
    connection.commit()
    connection.close()
    with pytest.raises(StoreRefused, match=f"has version {STORE_VERSION + 1}.*install the newer"):
        store.open()


# Promise: STORE-4
def test_a_database_of_another_program_is_refused_and_left_as_it_is(folder, store):
    folder.mkdir(parents=True)
    path = folder / DATABASE_NAME
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (x)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreRefused, match="another program"):
        store.open()
    assert path.read_bytes() == before


# Promise: STORE-3
def test_a_commit_that_sqlite_refuses_is_fatal_and_says_where(folder, store):
    store.open()
    store._writer.execute("PRAGMA max_page_count = 1")  # no room
    with pytest.raises(StoreFailed, match=r"cannot commit to .*full"):
        store.commit([PutSetting("k", b"x" * 100_000)])
    with pytest.raises(StoreFailed, match="earlier commit failed"):
        store.commit([])
    store.close()
    again = SqliteStore(folder)
    assert again.open().settings == {}
    again.close()


def test_a_trim_that_sqlite_refuses_is_fatal(store):
    store.open()
    store._writer.execute("DROP TABLE tail")
    with pytest.raises(StoreFailed, match="cannot trim"):
        store.trim_journal(1)


def test_a_read_that_sqlite_refuses_says_what_to_do(store):
    store.open()
    store._writer.execute("DROP TABLE journal")
    with pytest.raises(StoreRefused, match="cannot use"):
        store.read(ReadJournal(0, 1))


def test_reading_the_journal_does_not_scan_what_was_read(store):
    from scale0.store import sqlite

    store.open()
    plan = store._reader.execute(f"EXPLAIN QUERY PLAN {sqlite._JOURNAL}", {"after": 5, "limit": 5}).fetchall()
    assert not any("SCAN" in row[3] for row in plan)


def test_it_knows_how_much_room_is_left(folder, store):
    store.open()
    assert store.free_bytes() > 0
    with pytest.raises(StoreError):
        SqliteStore(folder / "missing").free_bytes()

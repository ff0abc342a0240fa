"""The data folder: one process at a time, nobody else's eyes, and a refusal that says what to do."""

from __future__ import annotations

import fcntl
import itertools
import os
import sqlite3
import stat
import subprocess
import sys
import threading

import pytest

from scale0.history.events.journal import JournalRow
from scale0.kernel.errors import StoreError
from scale0.storage.data_dir import LOCK_NAME
from scale0.storage.interface import StoreFailed, StoreRefused
from scale0.storage.rows import DocumentRow, PutSetting, Query, ReadJournal, TokenRow, Write
from scale0.storage.sqlite.schema import STORE_VERSION
from scale0.storage.sqlite.store import DATABASE_NAME, SqliteStore
from scale0.storage.task_queries import (
    CountTasks,
    FindTasks,
    ListTasks,
    LookUpSubmission,
    ReadDependents,
    ReadEndedDependencies,
    ReadExpiry,
    ReadPriorities,
    ReadQueue,
    ReadSchedule,
)
from scale0.storage.task_rows import (
    FAILED,
    FINISHED,
    SCHEDULED,
    DropDependency,
    DropTaskClient,
    EndedTask,
    OpenTask,
    PutDependency,
    PutTaskClient,
    ReopenTask,
    SweepTasks,
)
from tests.unit.storage.stores import database_of_version, statements_of
from tests.unit.storage.task_model import change, end, lease, name_of, put


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "deep" / "data"


@pytest.fixture
def store(folder):
    made = SqliteStore(folder)
    yield made
    made.close()


# Promise: STORE-2
def test_a_second_store_on_one_folder_is_refused_and_the_owner_is_named(folder, store):
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
    code = "import sys, pathlib, scale0.storage.sqlite.store as s; s.SqliteStore(pathlib.Path(sys.argv[1])).open()"
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


# Promise: STORE-2
def test_a_lock_file_that_was_deleted_lets_nobody_in(folder, store):
    store.open()
    (folder / LOCK_NAME).unlink()
    for _ in range(2):
        with pytest.raises(StoreRefused, match="in use by another process"):
            SqliteStore(folder).open()


# Promise: STORE-2
def test_a_lock_of_the_directory_names_no_process_that_ended(folder, store):
    folder.mkdir(parents=True)
    (folder / LOCK_NAME).write_text("999999")
    foreign = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(foreign, fcntl.LOCK_EX)
        with pytest.raises(StoreRefused, match="in use by another process, which locked the directory itself"):
            store.open()
    finally:
        os.close(foreign)
    store.open()


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
    for connection in (store._reader, store._scanner):
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            connection.execute("DELETE FROM settings")


def test_commits_reads_and_looks_may_be_on_different_threads_and_see_whole_commits(store):
    store.open()
    failures: list[BaseException] = []
    done = threading.Event()

    def work(step):
        try:
            step()
        except BaseException as error:
            failures.append(error)

    def write():
        for seq in range(1, 60):
            store.commit([put(seq), *([end(seq - 1)] if seq > 1 else [])])
        done.set()

    def find():
        while not done.is_set():
            page = store.read(FindTasks(tuple(map(name_of, range(1, 60)))))
            there = [task for task in page if task is not None]
            assert [task.seq for task in there] == list(range(1, len(there) + 1))
            assert all(isinstance(task, EndedTask) for task in there[:-1])

    def look():
        while not done.is_set():
            page = store.scan(ListTasks(100)).tasks
            assert [task.seq for task in page] == list(range(len(page), 0, -1))
            assert [isinstance(task, OpenTask) for task in page[:2]] == [True, False][: len(page)]

    threads = [threading.Thread(target=work, args=(step,)) for step in (write, find, look)]
    for thread in threads:
        thread.start()
    threads[0].join()
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_folder_that_cannot_be_is_refused(tmp_path, place):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreRefused, match="choose another data_dir"):
        SqliteStore(tmp_path / place).open()


def test_a_folder_that_cannot_be_written_is_refused(folder, store, monkeypatch):
    folder.mkdir(parents=True)
    # Root may write anywhere: the answer that others get is planted here.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(StoreRefused, match="cannot write to the data directory"):
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
    from scale0.storage.sqlite import store as sqlite

    store.open()
    plan = store._reader.execute(f"EXPLAIN QUERY PLAN {sqlite._JOURNAL}", {"after": 5, "limit": 5}).fetchall()
    assert not any("SCAN" in row[3] for row in plan)


FIRST_TASKS: list[Write] = [
    *(put(1, key="k"), put(2), put(3, status=SCHEDULED), put(5, followed=True), PutDependency(5, 3)),
    *(lease(1), change(2), end(5, FAILED), PutTaskClient("ann", "", 1), put(6), put(7)),
]
SECOND_TASKS: list[Write] = [ReopenTask(5, 1), end(2), DropDependency(5), SweepTasks(10**6, 5), DropTaskClient("ann")]
WALKS = ("count(*) FILTER", "GROUP BY after_seq")
"""Statements that may walk over a whole table: a count of what is open, and what followed a task when a broker died."""


def test_no_statement_about_tasks_walks_over_a_table_or_sorts_it(store):
    store.open()
    asks: list[Query] = [
        *(FindTasks((name_of(1), name_of(5), "x")), LookUpSubmission("ann", (name_of(1),), "k", "s")),
        *(ReadQueue("noop", 4, 0, 9, 9), ReadPriorities("noop"), ReadSchedule(0, 0, 9), ReadDependents(5, 0, 9)),
        *(ReadEndedDependencies(9), ReadExpiry(), CountTasks()),
    ]
    filters = itertools.product((None, 3), (None, SCHEDULED, FINISHED, FAILED), (None, "noop"), (None, "ann"))
    asks += [ListTasks(9, *each) for each in filters]
    statements = statements_of(store, FIRST_TASKS, SECOND_TASKS, scans=asks)
    bad = []
    for statement in set(statements):
        if not any(word in statement for word in WALKS):
            plan = store._writer.execute(f"EXPLAIN QUERY PLAN {statement}").fetchall()
            steps = [row[3] for row in plan if row[3] not in ("SCAN CONSTANT ROW", "SCAN (subquery-1)")]
            bad += [(statement, step) for step in steps if "SCAN" in step or "TEMP B-TREE" in step]
    assert bad == []
    assert sum(statement.lstrip().startswith("SELECT") for statement in statements) > len(asks)


# Promise: STORE-4
def test_a_database_of_the_first_version_keeps_what_it_had_and_gets_tasks(folder, store, monkeypatch):
    connection = database_of_version(folder / DATABASE_NAME, 1, monkeypatch)
    for statement in (
        "INSERT INTO settings VALUES ('k', x'01')",
        "INSERT INTO tokens VALUES ('d', 'ada', 'admin', 8)",
        "INSERT INTO documents VALUES (3, 'aa', '', x'02', 5, 1, 'root')",
        "INSERT INTO journal VALUES (1, 4, 9, 10, x'03')",
        "UPDATE tail SET boots = 7",
    ):
        connection.execute(statement)
    assert connection.execute("SELECT max(version) FROM migrations").fetchone() == (1,)
    connection.close()
    opened = store.open()
    assert (opened.settings, opened.next_seq, opened.last_boot_us, opened.boots) == ({"k": b"\x01"}, 5, 9, 8)
    assert opened.document == DocumentRow(3, "aa", "", b"\x02", 5, True, "root")
    assert opened.tokens == (TokenRow("d", "ada", "admin", 8, parent=""),)
    assert (opened.next_task_seq, opened.leased) == (1, ())
    store.commit(FIRST_TASKS)
    store.close()
    again = SqliteStore(folder)
    assert again.open().next_task_seq == 8
    again.close()
    connection = sqlite3.connect(folder / DATABASE_NAME)
    steps = connection.execute("SELECT version FROM migrations").fetchall()
    assert steps == [(number,) for number in range(1, STORE_VERSION + 1)]
    connection.close()


# Promise: OWN-1, STORE-4
def test_a_database_without_owners_keeps_its_tasks_and_their_keys(folder, store, monkeypatch):
    connection = database_of_version(folder / DATABASE_NAME, 3, monkeypatch)
    for statement in (
        "INSERT INTO open_tasks VALUES (1,3000,0,0,0,4,1,1,10,11,12,'a','ann','noop','n1','k',x'01',x'02',x'03',x'04')",
        "INSERT INTO ended_tasks VALUES (2,9000,4,1,1,10,11,12,99,'b','ann','noop','n1',NULL,x'',x'',x'',x'05',x'06')",
        "INSERT INTO task_ids VALUES ('a', 1), ('b', 2)",
        "INSERT INTO task_keys VALUES ('ann', 'k', 1)",
    ):
        connection.execute(statement)
    connection.close()
    opened = store.open()
    (leased,) = opened.leased
    assert (leased.id, leased.client, leased.owner, leased.node, leased.node_owner) == ("a", "ann", "", "n1", "")
    assert (leased.params, leased.options, leased.key, leased.starts) == (b"\x04", b"\x01", "k", 1)
    ended = store.read(FindTasks(("b",)))[0]
    assert (ended.owner, ended.node_owner, ended.params, ended.result) == ("", "", b"\x05", b"\x06")
    for owner in ("", "key-1"):
        found = store.read(LookUpSubmission("ann", (), "k", None, owner=owner)).keyed
        assert found.id == "a", "whoever may use the client id finds its keys"


def test_it_knows_how_much_room_is_left(folder, store):
    store.open()
    assert store.free_bytes() > 0
    with pytest.raises(StoreError):
        SqliteStore(folder / "missing").free_bytes()


def test_pages_that_were_deleted_are_room_as_far_as_the_disk_has_as_much(store, monkeypatch):
    disk = 10_000_000
    monkeypatch.setattr("scale0.storage.sqlite.store.free_bytes", lambda _: disk)
    store.open()
    assert store.free_bytes() == disk
    for seq in range(1, 41):
        store.commit([JournalRow(seq, seq, 1, 1, bytes(100_000))])
    assert store.free_bytes() == disk
    store.trim_journal(40)
    assert disk + 3_900_000 < store.free_bytes() < disk + 4_500_000
    store.commit([JournalRow(41, 41, 1, 1, bytes(1_000_000))])
    assert disk + 2_900_000 < store.free_bytes() < disk + 3_500_000, "they are used again"
    disk = 1_000
    assert store.free_bytes() == 2_000

"""The usage of accounts in every store, and a start that does not read the open tasks."""

from __future__ import annotations

import sqlite3

from scale0.storage.sqlite import schema
from scale0.storage.sqlite import store as sqlite_store
from scale0.storage.sqlite.store import DATABASE_NAME, SqliteStore
from scale0.storage.task_queries import FindTasks, StoreHeartbeat, TakeFreed
from scale0.storage.task_rows import (
    ASSIGNED,
    FAILED,
    KEPT_ROW_BYTES,
    SCHEDULED,
    AddTaskUsage,
    ReopenTask,
    SweepTasks,
    TaskUsage,
    kept_bytes,
)
from tests.unit.storage.task_model import end, name_of, put

STEPS = 1_000
"""Instructions of SQLite between two calls of the progress handler."""


# Promise: QUOTA-4
def test_usage_is_added_and_survives_a_restart(make):
    store = make()
    store.open()
    store.commit([AddTaskUsage("a", 2, 30, 1), AddTaskUsage("b", 1, 5, 0)])
    store.commit([AddTaskUsage("a", -1, -10, -1), AddTaskUsage("b", -1, -5, 0)])
    store.close()
    assert make().open().usage == (TaskUsage("a", 1, 20, 0),)


# Promise: QUOTA-4
def test_brokers_of_a_group_add_to_one_sum(group):
    one, other = group.store("one"), group.store("other")
    one.open()
    other.open()
    one.commit([AddTaskUsage("a", 2, 30, 1), AddTaskUsage("b", 1, 5, 0)])
    other.commit([AddTaskUsage("a", -2, -30, -1), AddTaskUsage("b", 1, 5, 1)])
    found = one.read(StoreHeartbeat(5_000_000))
    assert (found.usage, found.total) == ((TaskUsage("b", 2, 10, 1),), TaskUsage("", 2, 10, 1))
    assert group.store("third").open().usage == found.usage


# Promise: QUOTA-4
def test_ended_tasks_that_are_deleted_or_opened_again_no_longer_count(make):
    store = make()
    store.open()
    store.commit([put(1), put(2, client="bob", owner="key"), put(3, params=b"[12]")])
    store.commit(
        [
            *(end(1, result=b"12345", info=b"{}"), end(2, result=b"1"), end(3, FAILED, 9_500, history=b"[7]")),
            *(AddTaskUsage("ann", 0, 0, 0, 2 * KEPT_ROW_BYTES + 15), AddTaskUsage("key", 0, 0, 0, KEPT_ROW_BYTES + 1)),
        ]
    )
    assert [kept_bytes(row) - KEPT_ROW_BYTES for row in store.read(FindTasks(tuple(map(name_of, (1, 2, 3)))))] == [
        7,
        1,
        8,
    ]
    store.close()
    store = make()
    assert [each.kept for each in store.open().usage] == [2 * KEPT_ROW_BYTES + 15, KEPT_ROW_BYTES + 1]
    store.commit([SweepTasks(9_000, 10)])
    store.commit([SweepTasks(9_000, 10), ReopenTask(3, 1)])
    if not hasattr(store, "inner"):  # it is not shared
        freed = [("ann", KEPT_ROW_BYTES + 7), ("key", KEPT_ROW_BYTES + 1), ("ann", KEPT_ROW_BYTES + 8)]
        assert sorted(store.read(TakeFreed())) == sorted(freed)
        assert store.read(TakeFreed()) == ()
    store.close()
    assert make().open().usage == ()


def test_a_size_is_known_where_params_are_not_read(store):
    store.commit([put(1, params=b"[12345]")])
    brief = store.read(FindTasks((name_of(1),), brief=True))[0]
    assert (brief.params, brief.size) == (b"", 7)


# Promise: START-1
def test_a_start_does_not_read_the_open_tasks(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite_store, "QUICK_CHECK_BYTES", 0)

    def steps(count: int) -> int:
        folder = tmp_path / str(count)
        store = SqliteStore(folder)
        store.open()
        store.commit([put(seq) for seq in range(1, count + 1)])
        store.close()
        calls: list[int] = []
        connect = sqlite3.connect

        def counting(*args: object, **options: object) -> sqlite3.Connection:
            connection = connect(*args, **options)  # type: ignore[call-overload]
            connection.set_progress_handler(lambda: calls.append(1), STEPS)
            return connection  # type: ignore[no-any-return]

        with monkeypatch.context() as patch:
            patch.setattr(sqlite3, "connect", counting)
            store = SqliteStore(folder)
            store.open()
        store.close()
        return len(calls)

    assert steps(20_000) <= steps(20) + 1


# Promise: START-1
def test_what_the_predecessor_held_is_found_all_the_same(make):
    store = make()
    store.open()
    held = [
        put(1, shelved=False),
        put(2, status=ASSIGNED, shelved=False, node="n"),
        put(3),
        put(4, status=SCHEDULED, shelved=False),
    ]
    store.commit(held)
    store.close()
    again = make()
    assert [task.seq for task in again.open().leased] == [2]
    found = again.read(FindTasks(tuple(map(name_of, (1, 2, 3, 4)))))
    assert [task.shelved for task in found] == [True, False, True, False]


def test_the_tasks_of_an_older_version_count_for_their_clients(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:3])
        folder = tmp_path / "data"
        folder.mkdir(mode=0o700)
        connection = sqlite3.connect(folder / DATABASE_NAME, isolation_level=None)
        schema.migrate(connection)
        for client, status, params in (("ann", 500, b"[1]"), ("ann", 1000, b"[22]"), ("bob", 1000, b"[]")):
            connection.execute(
                """INSERT INTO open_tasks (status, shelved, waits, followed, priority, attempt, starts, submitted_us,
                runnable_us, started_us, id, client, method, node, options, info, history, params)
                VALUES (?, 0, 0, 0, 4, 0, 0, 1, 1, 0, hex(randomblob(4)), ?, 'm', '', x'', x'', x'', ?)""",
                (status, client, params),
            )
        connection.close()
    (folder / DATABASE_NAME).chmod(0o600)
    store = SqliteStore(folder)
    assert store.open().usage == (TaskUsage("ann", 2, 7, 1), TaskUsage("bob", 1, 2, 0))
    store.close()


# Promise: QUOTA-4
def test_the_ended_tasks_of_an_older_version_count_for_their_accounts(tmp_path, monkeypatch):
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:-1])
        connection = sqlite3.connect(folder / DATABASE_NAME, isolation_level=None)
        schema.migrate(connection)
    connection.execute("INSERT INTO task_usage VALUES ('key', 1, 2, 0)")
    for client, owner, result in (("ann", "", b"1"), ("ann", "", b"22"), ("bob", "key", b"333")):
        connection.execute(
            """INSERT INTO ended_tasks (status, priority, attempt, starts, submitted_us, started_us, ended_us,
            expires_us, id, client, owner, method, node, node_owner, options, info, history, params, result)
            VALUES (7000, 4, 1, 1, 1, 1, 1, 9, hex(randomblob(4)), ?, ?, 'm', '', '', x'', x'01', x'02', x'', ?)""",
            (client, owner, result),
        )
    connection.close()
    (folder / DATABASE_NAME).chmod(0o600)
    store = SqliteStore(folder)
    kept = (2 * (KEPT_ROW_BYTES + 2) + 3, KEPT_ROW_BYTES + 2 + 3)
    assert store.open().usage == (TaskUsage("ann", 0, 0, 0, kept[0]), TaskUsage("key", 1, 2, 0, kept[1]))
    store.close()

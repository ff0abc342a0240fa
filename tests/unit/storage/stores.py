"""Stores of every kind, for tests that hold for all of them, or for some.

`SingleBroker` makes a shared store look like a broker's own: it reserves what is put, claims what is written, and
puts back what was only meant to be read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scale0.storage.interface import OpenedStore
from scale0.storage.memory.store import MemoryStore
from scale0.storage.postgres.store import PostgresStore
from scale0.storage.sqlite import schema
from scale0.storage.sqlite.store import SqliteStore
from scale0.storage.task_queries import (
    ClaimTasks,
    FindTasks,
    ListTasks,
    LookUpSubmission,
    ReadDependents,
    ReadQueue,
    TakeOrphans,
)
from scale0.storage.task_rows import SCHEDULED, ChangeTask, EndTask, LeaseTask, PutTask
from simulator.fake_postgres.store import FakeDatabase, FakePostgresStore


class TaskNames:
    """What outlives a store object: numbers and names of tasks."""

    def __init__(self) -> None:
        self.next_seq = 1
        self.names: dict[int, str] = {}


class SingleBroker:
    def __init__(self, inner: Any, known: TaskNames) -> None:
        self.inner = inner
        self._known = known

    def open(self) -> OpenedStore:
        opened = self.inner.open()
        page = self.inner.read(ListTasks(1))
        self._known.next_seq = max(self._known.next_seq, *(task.seq + 1 for task in page.tasks), 1)
        orphans = self.inner.read(TakeOrphans(0, 1_000))
        leased = tuple(sorted(orphans, key=lambda task: task.seq))
        whole: OpenedStore = msgspec.structs.replace(
            opened, leased=leased, next_task_seq=self._known.next_seq, shared=None
        )
        return whole

    def commit(self, writes: Sequence[Any]) -> None:
        new = {write.seq for write in writes if isinstance(write, PutTask)}
        wanted = {write.seq for write in writes if isinstance(write, LeaseTask | ChangeTask | EndTask)} - new
        names = tuple(self._known.names[seq] for seq in sorted(wanted) if seq in self._known.names)
        if names:
            self.inner.read(ClaimTasks(names))
        for write in writes:
            if isinstance(write, PutTask):
                self.inner.read(LookUpSubmission(write.client, (write.id,), write.key, None, write.id, write.owner))
        try:
            self.inner.commit(writes)
        finally:
            self._known.names.update({write.seq: write.id for write in writes if isinstance(write, PutTask)})
        self._known.next_seq = max(self._known.next_seq, *(seq + 1 for seq in new), 1)

    def read(self, ask: Any) -> Any:
        return self._put_back(ask, self.inner.read)

    def scan(self, ask: Any) -> Any:
        return self._put_back(ask, self.inner.scan)

    def read_all(self, asks: Sequence[Any]) -> list[Any]:
        return [self.read(ask) for ask in asks]

    def _put_back(self, ask: Any, read: Any) -> Any:
        if not isinstance(ask, ReadQueue | ReadDependents):
            return read(ask)
        before = {task.id: task for task in self.inner.read(FindTasks(tuple(self._known.names.values()))) if task}
        rows = [before[task.id] for task in read(ask)]
        names = ChangeTask.__struct_fields__
        taken = [row for row in rows if isinstance(ask, ReadQueue) or row.status == SCHEDULED]
        self.inner.commit([ChangeTask(**{name: getattr(row, name) for name in names}) for row in taken])
        return tuple(rows)

    def trim_journal(self, up_to_seq: int) -> None:
        self.inner.trim_journal(up_to_seq)

    def free_bytes(self) -> int:
        room: int = self.inner.free_bytes()
        return room

    def close(self) -> None:
        self.inner.close()


def _maker(request: Any, folder: Any) -> Callable[[Any], Any]:
    match request.param:
        case "memory":
            last: list[MemoryStore] = []

            def again(failpoint: Any) -> Any:
                last.append(MemoryStore(last[-1].snapshot() if last else None, failpoint))
                return last[-1]

            return again
        case "sqlite":
            return lambda failpoint: SqliteStore(folder, failpoint)
        case "shared":
            database, known = FakeDatabase(lambda: 1_000_000_000), TaskNames()
            return lambda failpoint: SingleBroker(FakePostgresStore(database, "east-1", failpoint), known)
        case _:
            url, known = request.getfixturevalue("postgres_url"), TaskNames()
            return lambda failpoint: SingleBroker(PostgresStore(url, "east-1", folder, failpoint), known)


def stores(request: Any, folder: Any) -> Iterator[Callable[..., Any]]:
    """Make a store of the kind that a fixture asks for, over the same data again and again."""
    made: list[Any] = []
    maker = _maker(request, folder)

    def one(failpoint: Any = None) -> Any:
        if made:
            made[-1].close()
        made.append(maker(failpoint))
        return made[-1]

    yield one
    if made:
        made[-1].close()


SQLITE_TRANSACTIONS = {"BEGIN ", "BEGIN", "BEGIN IMMEDIATE", "COMMIT", "ROLLBACK"}


def statements_of(store: Any, *commits: Sequence[Any], scans: Sequence[Any]) -> list[str]:
    """What an SQLite store executes for these commits and scans."""
    found: list[str] = []
    for connection in (store._writer, store._scanner):
        connection.set_trace_callback(found.append)
    for writes in commits:
        store.commit(writes)
    for query in scans:
        store.scan(query)
    for connection in (store._writer, store._scanner):
        connection.set_trace_callback(None)
    return [statement for statement in found if statement not in SQLITE_TRANSACTIONS]


def database_of_version(path: Path, version: int, monkeypatch: pytest.MonkeyPatch) -> sqlite3.Connection:
    """An SQLite database as it was when its schema had so many versions."""
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, isolation_level=None)
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:version])
        schema.migrate(connection)
    return connection

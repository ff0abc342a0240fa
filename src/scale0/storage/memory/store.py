"""The store in memory, for tests, the simulator and brokers without durable state; answers equal those of SQLite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from scale0.history.events.journal import JournalRow
from scale0.storage import rows
from scale0.storage.interface import (
    CHECK_WRITES,
    FIRST_SEQ,
    TASK_WRITES,
    Handlers,
    OpenedStore,
    StoreFailed,
    StoreRefused,
    check_writes,
    dispatch,
    hit_failpoint,
)
from scale0.storage.memory.checks import CHECK_ANSWERS, MemoryChecks, Tables
from scale0.storage.memory.tasks import TASK_ANSWERS, MemoryTasks, TasksSnapshot
from scale0.storage.rows import Answer, DocumentRow, Query, TokenRow, Write, bounded

DEFAULT_FREE_BYTES: Final = 1 << 40
"""The free space that the store reports, unless a test sets less."""


class MemorySnapshot(msgspec.Struct, frozen=True):
    """All committed state, at one moment."""

    settings: dict[str, bytes] = {}
    documents: dict[tuple[int, str], DocumentRow] = {}
    tokens: dict[str, TokenRow] = {}
    journal: tuple[JournalRow, ...] = ()
    next_seq: int = FIRST_SEQ
    last_time_us: int = 0
    last_boot_us: int = 0
    boots: int = 0
    tasks: TasksSnapshot = TasksSnapshot()
    checks: Tables = {}


class MemoryStore:
    def __init__(
        self,
        snapshot: MemorySnapshot | None = None,
        failpoint: Callable[[str], None] | None = None,
        free_bytes: int = DEFAULT_FREE_BYTES,
    ) -> None:
        start = snapshot or MemorySnapshot()
        self._settings = dict(start.settings)
        self._documents = dict(start.documents)
        self._tokens = dict(start.tokens)
        self._journal = list(start.journal)
        self._next_seq = start.next_seq
        self._last_time_us = start.last_time_us
        self._last_boot_us = start.last_boot_us
        self._boots = start.boots
        self._tasks = MemoryTasks(start.tasks)
        self._checks = MemoryChecks(start.checks)
        self._failpoint = failpoint
        self._free_bytes = free_bytes
        self._state = "new"

    def open(self) -> OpenedStore:
        if self._state != "new":
            raise StoreRefused("this store was opened before; create another from its snapshot")
        self._state = "open"
        self._boots += 1
        return OpenedStore(
            settings=dict(self._settings),
            document=next((each for each in self._documents.values() if each.current), None),
            tokens=tuple(self._tokens[digest] for digest in sorted(self._tokens)),
            next_seq=self._next_seq,
            last_time_us=self._last_time_us,
            last_boot_us=self._last_boot_us,
            boots=self._boots,
            next_task_seq=self._tasks.next_seq,
            leased=self._tasks.start(),
            usage=self._tasks.usage(),
        )

    @property
    def next_seq(self) -> int:
        return self._next_seq

    def commit(self, writes: Sequence[Write]) -> None:
        if self._state != "open":
            raise StoreFailed("the store is not open, or an earlier commit failed")
        check_writes(writes, self._next_seq)
        try:
            for name in ("before_begin", "after_writes", "before_commit"):
                hit_failpoint(self._failpoint, name)
            # These are first, because only these can fail.
            task_writes: Any = (write for write in writes if type(write) in TASK_WRITES)
            self._tasks.apply(task_writes)
        except BaseException:
            self._state = "failed"
            raise
        check_rows: Any = (write for write in writes if type(write) in CHECK_WRITES)
        self._checks.apply(check_rows)
        for write in writes:
            if type(write) not in TASK_WRITES and type(write) not in CHECK_WRITES:
                dispatch(_WRITES, self, write)
        hit_failpoint(self._failpoint, "after_commit")

    def _append_journal(self, row: JournalRow) -> None:
        self._journal.append(row)
        self._next_seq = row.last_seq + 1
        self._last_time_us = row.time_us
        self._last_boot_us = row.boot

    def _put_setting(self, write: rows.PutSetting) -> None:
        self._settings[write.key] = write.value

    def _drop_setting(self, write: rows.DropSetting) -> None:
        self._settings.pop(write.key, None)

    def _put_token(self, write: rows.PutToken) -> None:
        self._tokens[write.digest] = TokenRow(*msgspec.structs.astuple(write))

    def _drop_token(self, write: rows.DropToken) -> None:
        self._tokens.pop(write.digest, None)

    def _put_document(self, write: rows.PutDocument) -> None:
        if write.current:
            for key, each in self._documents.items():
                if each.current:
                    self._documents[key] = msgspec.structs.replace(each, current=False)
        key = (write.version, write.hash)
        known = self._documents.get(key)
        if known is None:
            self._documents[key] = DocumentRow(*msgspec.structs.astuple(write))
        elif write.current:
            self._documents[key] = msgspec.structs.replace(known, current=True)

    def read(self, query: Query) -> Answer:
        if self._state != "open":
            raise StoreRefused("the store is not open")
        kind = type(query)
        state: Any = self._tasks if kind in TASK_ANSWERS else self._checks if kind in CHECK_ANSWERS else self
        answer: Answer = dispatch(_ANSWERS, state, query)
        return answer

    def read_all(self, queries: Sequence[Query]) -> list[Answer]:
        return [self.read(query) for query in queries]

    def scan(self, query: Query) -> Answer:
        return self.read(query)

    def _read_documents(self, query: rows.ReadDocuments) -> tuple[DocumentRow, ...]:
        keys = sorted(self._documents, reverse=True)
        if query.before_version is not None:
            keys = [key for key in keys if key < (query.before_version, query.before_hash)]
        return tuple(self._documents[key] for key in keys[: bounded(query.limit)])

    def _read_document(self, query: rows.ReadDocument) -> DocumentRow | None:
        if query.hash is not None:
            return self._documents.get((query.version, query.hash))
        of_version = [each for each in self._documents.values() if each.version == query.version]
        return max(of_version, key=lambda each: (each.current, each.hash), default=None)

    def _read_journal(self, query: rows.ReadJournal) -> tuple[JournalRow, ...]:
        rows = [row for row in self._journal if row.last_seq > query.after_seq]
        return tuple(rows[: bounded(query.limit)])

    def trim_journal(self, up_to_seq: int) -> None:
        if self._state != "open":
            raise StoreFailed("the store is not open, or an earlier commit failed")
        self._journal = [row for row in self._journal if row.last_seq > up_to_seq]

    def free_bytes(self) -> int:
        return self._free_bytes

    def close(self) -> None:
        self._state = "closed"

    def snapshot(self) -> MemorySnapshot:
        """A copy of all committed state; later commits do not change it."""
        return MemorySnapshot(
            settings=dict(self._settings),
            documents=dict(self._documents),
            tokens=dict(self._tokens),
            journal=tuple(self._journal),
            next_seq=self._next_seq,
            last_time_us=self._last_time_us,
            last_boot_us=self._last_boot_us,
            boots=self._boots,
            tasks=self._tasks.snapshot(),
            checks=self._checks.snapshot(),
        )

    def restore(self, snapshot: MemorySnapshot) -> MemoryStore:
        """A new store with the state of a snapshot, as if a backup were restored. This one is closed."""
        self.close()
        return MemoryStore(snapshot, free_bytes=self._free_bytes)

    def crash(self) -> MemoryStore:
        """The process died: a new store with the committed state. This one is closed."""
        return self.restore(self.snapshot())


_WRITES: Final[Handlers] = {
    JournalRow: MemoryStore._append_journal,
    rows.PutSetting: MemoryStore._put_setting,
    rows.DropSetting: MemoryStore._drop_setting,
    rows.PutToken: MemoryStore._put_token,
    rows.DropToken: MemoryStore._drop_token,
    rows.PutDocument: MemoryStore._put_document,
}
_ANSWERS: Final[Handlers] = {
    rows.ReadDocuments: MemoryStore._read_documents,
    rows.ReadDocument: MemoryStore._read_document,
    rows.ReadJournal: MemoryStore._read_journal,
    **CHECK_ANSWERS,
    **TASK_ANSWERS,
}

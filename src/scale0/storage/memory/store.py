"""The store in memory: for tests and the simulated world.

Lives here: `MemoryStore`. Never here: a file. Invariant: it answers as the SQLite twin does, and what `crash` leaves
is what was committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from scale0.history.events.journal import JournalRow
from scale0.storage.check_rows import CheckQuery
from scale0.storage.interface import (
    CHECK_WRITES,
    FIRST_SEQ,
    TASK_WRITES,
    OpenedStore,
    StoreFailed,
    StoreRefused,
    check_writes,
    hit_failpoint,
)
from scale0.storage.memory.checks import ChecksSnapshot, MemoryChecks
from scale0.storage.memory.tasks import MemoryTasks, TasksSnapshot
from scale0.storage.rows import (
    Answer,
    DocumentRow,
    DropSetting,
    DropToken,
    PutDocument,
    PutSetting,
    PutToken,
    Query,
    ReadDocument,
    ReadDocuments,
    ReadJournal,
    TokenRow,
    Write,
    bounded,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DEFAULT_FREE_BYTES: Final = 1 << 40
"""Room on the disk that this store does not have, unless a test says less."""


class MemorySnapshot(msgspec.Struct, frozen=True):
    """Everything that is committed, at one moment."""

    settings: dict[str, bytes] = {}
    documents: dict[tuple[int, str], DocumentRow] = {}
    tokens: dict[str, TokenRow] = {}
    journal: tuple[JournalRow, ...] = ()
    next_seq: int = FIRST_SEQ
    last_time_us: int = 0
    last_boot_us: int = 0
    boots: int = 0
    tasks: TasksSnapshot = TasksSnapshot()
    checks: ChecksSnapshot = ChecksSnapshot()


class MemoryStore:
    """The twin without a disk."""

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
            raise StoreRefused("this store was opened before: make another from its snapshot")
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
            leased=self._tasks.begin(),
            open_tasks=len(self._tasks),
        )

    @property
    def next_seq(self) -> int:
        """Of the next event."""
        return self._next_seq

    def commit(self, writes: Sequence[Write]) -> None:
        if self._state != "open":
            raise StoreFailed("the store is not open, or an earlier commit failed")
        check_writes(writes, self._next_seq)
        try:
            for name in ("before_begin", "after_writes", "before_commit"):
                hit_failpoint(self._failpoint, name)
            # First of all, because only these can fail.
            about_tasks: Any = (write for write in writes if type(write) in TASK_WRITES)
            self._tasks.apply(about_tasks)
        except BaseException:
            self._state = "failed"
            raise
        about_checks: Any = (write for write in writes if type(write) in CHECK_WRITES)
        self._checks.apply(about_checks)
        for write in writes:
            self._apply(write)
        hit_failpoint(self._failpoint, "after_commit")

    def _apply(self, write: Write) -> None:
        match write:
            case JournalRow():
                self._journal.append(write)
                self._next_seq = write.last_seq + 1
                self._last_time_us = write.time_us
                self._last_boot_us = write.boot
            case PutSetting(key, value):
                self._settings[key] = value
            case DropSetting(key):
                self._settings.pop(key, None)
            case PutToken():
                self._tokens[write.digest] = TokenRow(*msgspec.structs.astuple(write))
            case DropToken(digest):
                self._tokens.pop(digest, None)
            case PutDocument():
                self._put_document(write)
            case _:
                pass

    def _put_document(self, write: PutDocument) -> None:
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

    def read(self, ask: Query) -> Answer:
        if self._state != "open":
            raise StoreRefused("the store is not open")
        match ask:
            case ReadDocuments(limit, version, name):
                keys = sorted(self._documents, reverse=True)
                if version is not None:
                    keys = [key for key in keys if key < (version, name)]
                return tuple(self._documents[key] for key in keys[: bounded(limit)])
            case ReadDocument(version, exact):
                if exact is not None:
                    return self._documents.get((version, exact))
                found = [each for each in self._documents.values() if each.version == version]
                return max(found, key=lambda each: (each.current, each.hash), default=None)
            case ReadJournal(after_seq, limit):
                rows = [row for row in self._journal if row.last_seq > after_seq]
                return tuple(rows[: bounded(limit)])
            case _ if isinstance(ask, CheckQuery):
                return self._checks.answer(ask)
            case _:
                return self._tasks.answer(ask)

    def read_all(self, asks: Sequence[Query]) -> list[Answer]:
        return [self.read(ask) for ask in asks]

    def scan(self, ask: Query) -> Answer:
        return self.read(ask)

    def trim_journal(self, up_to_seq: int) -> None:
        if self._state != "open":
            raise StoreFailed("the store is not open, or an earlier commit failed")
        self._journal = [row for row in self._journal if row.last_seq > up_to_seq]

    def free_bytes(self) -> int:
        return self._free_bytes

    def fill(self, free_bytes: int) -> None:
        """Let the disk that is not there have this much room."""
        self._free_bytes = free_bytes

    def close(self) -> None:
        self._state = "closed"

    def snapshot(self) -> MemorySnapshot:
        """All that is committed now; later commits do not change it."""
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
        """A new store as it was at the snapshot: an old disk comes back. This one ends."""
        self.close()
        return MemoryStore(snapshot, free_bytes=self._free_bytes)

    def crash(self) -> MemoryStore:
        """The process died: a new store with what was committed. This one ends."""
        return self.restore(self.snapshot())

"""The interface of a store: its Protocol, what opening it returns, its errors, failpoints and the dispatch by class.

When `commit` returns, all its writes are durable. When it raises, the process must end, because the core has already
acted on decisions that were not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, get_args

import msgspec

from scale0.history.events.audit import AuditStart
from scale0.history.events.columns import Event
from scale0.history.events.journal import Journal, JournalRow
from scale0.kernel.clock import Now
from scale0.kernel.errors import StoreError
from scale0.storage.check_rows import CheckWrite, PutIncident, PutSpool
from scale0.storage.rows import (
    MAX_INTEGER,
    Answer,
    DocumentRow,
    PutDocument,
    PutSetting,
    PutToken,
    Query,
    TokenRow,
    Write,
)
from scale0.storage.task_rows import OpenTask, TaskUsage, TaskWrite

FIRST_SEQ: Final = 1
"""The number of the first event in a new store."""

AUDIT_HEAD: Final = "audit_head"
"""The setting with the hash of the newest audit event, stored with that event."""

AUDIT_START: Final = "audit_start"
"""The setting with an `AuditStart`, stored before the retention removes anything. A store of an older version has none,
and one of a broker with a new identity that of the former, until the exporter has found the first event."""

FIRST_TASK_SEQ: Final = 1
"""The number of the first task in a new store."""

TASK_WRITES: Final[frozenset[type]] = frozenset(get_args(TaskWrite))
CHECK_WRITES: Final[frozenset[type]] = frozenset(get_args(CheckWrite))

_UNCHECKED: Final = TASK_WRITES | CHECK_WRITES - {PutSpool, PutIncident}
"""The majority of all writes: they have no number, or fail the commit if a store cannot hold it."""

Failpoint = Literal["before_begin", "after_writes", "before_commit", "after_commit"]
FAILPOINTS: Final[tuple[Failpoint, ...]] = ("before_begin", "after_writes", "before_commit", "after_commit")
"""Where a test may end the process within a commit, in their order."""

Handlers = Mapping[type, Callable[[Any, Any], Any]]
"""By the class of a write or query: the function that applies or answers it, given the store's state and the item."""


class StoreRefused(StoreError):
    """The store cannot be opened or read; nothing has changed, and the message says what to do."""


class StoreUnavailable(StoreRefused):
    """The database cannot be reached now; a later attempt may succeed."""


class StoreFailed(StoreError):
    """A commit failed, so the state on disk is unknown: the process must end, and must not try again."""


class StoreFenced(StoreFailed):
    """In a shared store: other brokers declared this one dead and took over its work. It must restart."""


class SharedStoreInfo(msgspec.Struct, frozen=True):
    """The position of a broker in a shared store."""

    slot: int
    """Its number among all brokers that ever used the store, 0 to MAX_SLOT: part of the seq of its tasks."""
    epoch: int
    """Every commit is fenced by it; it ends when the broker stops or is declared dead."""


SLOT_BITS: Final = 10
MAX_SLOT: Final = 2**SLOT_BITS - 1
"""A seq in a shared store is a counter followed by the slot of the broker that made it. The counter is at least the
wall clock in microseconds, so that the tasks of several brokers are approximately in order."""


class OpenedStore(msgspec.Struct, frozen=True):
    """The stored state that a broker needs to start."""

    settings: dict[str, bytes]
    document: DocumentRow | None
    """The current one."""
    tokens: tuple[TokenRow, ...]
    """By digest, expired ones included."""
    next_seq: int
    last_time_us: int
    """Of the last journal row; 0 in a new store."""
    last_boot_us: int
    """Of the last journal row: the next boot must be larger, whatever the clock says. 0 in a new store."""
    boots: int
    """How often the store was opened, this time included."""
    next_task_seq: int = FIRST_TASK_SEQ
    """Larger than that of every task that ever was, deleted ones included."""
    leased: tuple[OpenTask, ...] = ()
    """The tasks that are ASSIGNED or RUNNING, by seq, without params that are larger than KEPT_PARAMS_BYTES: these
    are empty. Opening moves all that are QUEUED to the stored backlog."""
    usage: tuple[TaskUsage, ...] = ()
    """What the open tasks of each account use; in a shared store the largest accounts of the group."""
    shared: SharedStoreInfo | None = None
    """Set for a store that is shared with other brokers. Then `leased` is empty, because the leases of the predecessor
    are orphans, and `next_task_seq` is the broker's own next counter."""


class Store(Protocol):
    """One store of one process. `commit` and `trim_journal` are called on one writer thread, one at a time.

    `read` and `scan` give equal answers. Each is called by one thread at a time, possibly during the other or a commit:
    `read` is for what the core waits for, `scan` for what may take long.
    """

    def open(self) -> OpenedStore:
        """Open it for this process alone; once per object. StoreRefused if that is not possible."""
        ...

    def commit(self, writes: Sequence[Write]) -> None:
        """Store all writes durably, or raise StoreFailed. Invalid writes are a bug: ValueError, nothing is stored."""
        ...

    def read(self, query: Query) -> Answer:
        """Answer from committed state, all of it from one moment."""
        ...

    def read_all(self, queries: Sequence[Query]) -> list[Answer]:
        """`read` for each, in their order; a remote store may need fewer round trips."""
        ...

    def scan(self, query: Query) -> Answer:
        """`read` on a connection of its own, so that lists, counts and histories do not delay `read`."""
        ...

    def trim_journal(self, up_to_seq: int) -> None:
        """Delete journal rows all of whose events are exported; the numbering continues."""
        ...

    def free_bytes(self) -> int:
        """Free space where it writes, and what it can use again of its own files. StoreFailed if they are gone."""
        ...

    def close(self) -> None:
        """Release it. Closing twice is no error."""
        ...


class StoredJournal:
    """The journal of one process, continued from its store."""

    def __init__(self, source: str, boot_us: int, opened: OpenedStore) -> None:
        head = opened.settings.get(AUDIT_HEAD, b"").decode()
        self._source = source
        self._journal = Journal(source, boot_us, opened.next_seq, opened.last_time_us, head)

    def append(self, events: Sequence[Event], now: Now) -> tuple[Write, ...]:
        """What one commit must store together: the row of these events, and the new head of the audit chain."""
        head = self._journal.audit_head
        row = self._journal.append(events, now)
        if row is None:
            return ()
        if self._journal.audit_head == head:
            return (row,)
        newest = PutSetting(AUDIT_HEAD, self._journal.audit_head.encode())
        return (row, newest) if head else (row, newest, PutSetting(AUDIT_START, AuditStart("", self._source).encode()))


def dispatch(handlers: Handlers, state: Any, item: Any) -> Any:
    """Apply a write or answer a query by the handler of its class; a class without one is a bug."""
    handler = handlers.get(type(item))
    if handler is None:
        raise TypeError(f"{type(item).__name__}: this store does not support it")
    return handler(state, item)


def check_writes(writes: Sequence[Write], next_seq: int) -> int:
    """The seq after these writes. ValueError for a number too large, or a journal with a gap or a repetition."""
    for write in writes:
        if type(write) in _UNCHECKED:
            continue
        match write:
            case JournalRow():
                if write.first_seq != next_seq or write.last_seq < write.first_seq:
                    raise ValueError(f"journal row {write.first_seq}..{write.last_seq}, expected from {next_seq}")
                next_seq = write.last_seq + 1
                _check_integers(next_seq, write.boot, write.time_us)
            case PutDocument():
                _check_integers(write.version, write.time_us)
            case PutToken():
                _check_integers(write.expires_us)
            case PutSpool():
                _check_integers(write.heard_us)
            case PutIncident():
                _check_integers(write.opened_us, write.closed_us or 0)
            case _:
                pass
    return next_seq


def _check_integers(*numbers: int) -> None:
    for number in numbers:
        if not 0 <= number <= MAX_INTEGER:
            raise ValueError(f"{number} does not fit a store's integer")


def hit_failpoint(failpoint: Callable[[str], None] | None, name: Failpoint) -> None:
    if failpoint is not None:
        failpoint(name)

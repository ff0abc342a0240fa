"""The store as the runner sees it.

Lives here: the Protocol, what opening gives, the errors and the names of the failpoints. Never here: a database.
Invariant: when `commit` returns, all its writes are durable; when it raises, the process must end, because the
machines have already decided on what was not stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, Protocol, get_args

import msgspec

from scale0.history.events.journal import JournalRow
from scale0.kernel.errors import StoreError
from scale0.storage.check_rows import CheckWrite, PutIncident, PutSpool
from scale0.storage.rows import MAX_INTEGER, Answer, DocumentRow, PutDocument, PutToken, Query, TokenRow, Write
from scale0.storage.task_rows import OpenTask, TaskWrite

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FIRST_SEQ: Final = 1
"""The number of the first event in a new store."""

FIRST_TASK_SEQ: Final = 1
"""The number of the first task in a new store."""

TASK_WRITES: Final[frozenset[type]] = frozenset(get_args(TaskWrite))
CHECK_WRITES: Final[frozenset[type]] = frozenset(get_args(CheckWrite))

_UNCHECKED: Final = TASK_WRITES | CHECK_WRITES - {PutSpool, PutIncident}
"""Most of all writes: they have no number, or fail the commit if a store cannot keep them."""

Failpoint = Literal["before_begin", "after_writes", "before_commit", "after_commit"]
FAILPOINTS: Final[tuple[Failpoint, ...]] = ("before_begin", "after_writes", "before_commit", "after_commit")
"""Where a test may end the process within a commit, in their order."""


class StoreRefused(StoreError):
    """It cannot be opened or read as it is; nothing has changed, and the message says what to do."""


class StoreFailed(StoreError):
    """A commit failed, so nobody knows what is on disk: the process must end, and must not try again."""


class StoreFenced(StoreFailed):
    """Of a shared store: others took this broker for dead, and went on without it. It must begin anew."""


class SharedStoreInfo(msgspec.Struct, frozen=True):
    """What a broker of a shared store must know of its place there."""

    slot: int
    """Its number among the brokers that ever used the store, 0 to MAX_SLOT: part of the seq of its tasks."""
    epoch: int
    """Of this life: each commit is fenced by it."""


SLOT_BITS: Final = 10
MAX_SLOT: Final = 2**SLOT_BITS - 1
"""A seq in a shared store is a counter, then the slot of the broker that made it. The counter is not below the time of
the wall clock in microseconds, so that tasks of several brokers are in order, nearly."""


class OpenedStore(msgspec.Struct, frozen=True):
    """What a store remembers, as a broker needs it to start."""

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
    """How often it was opened, this time included."""
    next_task_seq: int = FIRST_TASK_SEQ
    """Larger than that of every task that ever was, forgotten ones included."""
    leased: tuple[OpenTask, ...] = ()
    """The tasks that are ASSIGNED or RUNNING, by seq. Opening puts all that are QUEUED on the shelf."""
    open_tasks: int = 0
    """How many tasks have not ended."""
    shared: SharedStoreInfo | None = None
    """The store is shared with other brokers. Then `leased` is empty: what its predecessor held are orphans; and
    `next_task_seq` is the next counter of its own."""


class Store(Protocol):
    """One store of one process. `commit` and `trim_journal` are called on one writer thread, one at a time.

    `read` and `look` answer alike. Each is called by one thread at a time, and that may be while the other, or a
    commit, is at work: `read` is for what a machine waits for, `look` for what may take long.
    """

    def open(self) -> OpenedStore:
        """Take it for this process alone; once per object. StoreRefused if that cannot be."""
        ...

    def commit(self, writes: Sequence[Write]) -> None:
        """Store all of it, durably, or raise StoreFailed. Unfit writes are our own mistake: ValueError, none stored."""
        ...

    def read(self, ask: Query) -> Answer:
        """Answer from what is committed, all of it from one moment."""
        ...

    def read_all(self, asks: Sequence[Query]) -> list[Answer]:
        """`read` for each, in their order; a store that is far away may need fewer trips for them."""
        ...

    def scan(self, ask: Query) -> Answer:
        """The same, on a way of its own: lists, counts and histories must not keep `read` waiting."""
        ...

    def trim_journal(self, up_to_seq: int) -> None:
        """Forget journal rows all of whose events are exported; the numbers go on."""
        ...

    def free_bytes(self) -> int:
        """Room that is left where it writes."""
        ...

    def close(self) -> None:
        """Let go of it. Closing twice is no error."""
        ...


def check_writes(writes: Sequence[Write], next_seq: int) -> int:
    """The seq after these writes. ValueError for a number too large, or a journal that has a gap or a repetition."""
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
    """Pass a failpoint: nothing in normal runs."""
    if failpoint is not None:
        failpoint(name)

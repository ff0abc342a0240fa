"""What a commit can contain, what can be queried, and the answers; tasks and checks have modules of their own.

The writes of a commit apply in their order, all or none. At most one document is current, and it stays current until
another one replaces it.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from scale0.history.events.journal import JournalRow
from scale0.storage.check_rows import CheckAnswer, CheckQuery, CheckWrite
from scale0.storage.task_queries import (
    ClaimedTask,
    ClaimTasks,
    LookUpSubmission,
    ReadDependents,
    ReadQueue,
    StoreHeartbeatResult,
    SubmissionLookup,
    TakeDue,
    TakeOrphans,
    TakeTaskCommands,
    TaskPage,
    TaskQuery,
)
from scale0.storage.task_rows import EndedTask, OpenTask, PutTaskCommand, TaskWrite

MAX_INTEGER: Final = 2**63 - 1
"""The largest number that every store can hold. A version from outside must be refused above it before it gets here."""

MAX_READ_ROWS: Final = 10_000
"""The most rows in one answer, whatever limit a query has."""

LIST_SCAN_ROWS: Final = 20_000
"""How many open and how many ended tasks one page may scan for a filter that has no index."""


class PutSetting(msgspec.Struct, frozen=True):
    """Store a value of the broker's own."""

    key: str
    value: bytes


class DropSetting(msgspec.Struct, frozen=True):
    """Delete a setting; a missing one is no error."""

    key: str


class DocumentRow(msgspec.Struct, frozen=True):
    """A network document."""

    version: int
    hash: str
    parent: str
    body: bytes
    time_us: int
    current: bool
    author: str


class PutDocument(DocumentRow, frozen=True):
    """Store a network document permanently; with `current` it replaces the current one.

    A known (version, hash) is the same document: its first author and time stay.
    """


class TokenRow(msgspec.Struct, frozen=True):
    digest: str
    name: str
    role: str
    expires_us: int
    parent: str = ""
    """The digest of the token that made this session; blank: none did, or a version that did not store it."""


class PutToken(TokenRow, frozen=True):
    """Store a token by its digest, never the token itself."""


class DropToken(msgspec.Struct, frozen=True):
    """Delete a token; a missing one is no error."""

    digest: str


Write = PutSetting | DropSetting | PutDocument | PutToken | DropToken | JournalRow | TaskWrite | CheckWrite


class ReadDocuments(msgspec.Struct, frozen=True):
    """The documents before (version, hash), newest first; without a version, from the newest on."""

    limit: int
    before_version: int | None = None
    before_hash: str = ""
    """Where the previous page ended within a version that has several documents."""


class ReadDocument(msgspec.Struct, frozen=True):
    """One document; without a hash the current one of that version, else the one with the largest hash."""

    version: int
    hash: str | None = None


class ReadJournal(msgspec.Struct, frozen=True):
    """Journal rows that contain events after `after_seq`, oldest first."""

    after_seq: int
    limit: int


Query = ReadDocuments | ReadDocument | ReadJournal | TaskQuery | CheckQuery

TaskAnswer = (
    tuple[OpenTask | EndedTask | None, ...]
    | tuple[OpenTask, ...]
    | tuple[EndedTask, ...]
    | tuple[tuple[int, int], ...]
    | tuple[tuple[str, int], ...]
    | tuple[tuple[int, bytes, int] | None, ...]
    | tuple[str, ...]
    | tuple[ClaimedTask, ...]
    | tuple[PutTaskCommand, ...]
    | StoreHeartbeatResult
    | dict[int, int]
    | dict[str, int]
    | SubmissionLookup
    | TaskPage
    | int
    | None
)
"""The class of a TaskQuery determines which."""

Answer = tuple[DocumentRow, ...] | DocumentRow | tuple[JournalRow, ...] | TaskAnswer | CheckAnswer


def bounded(limit: int) -> int:
    """The number of rows that a query with this limit gets."""
    return max(0, min(limit, MAX_READ_ROWS))


def clamp(number: int) -> int:
    """A number of a query's, in the range that a store can compare."""
    return max(-MAX_INTEGER, min(number, MAX_INTEGER))


CLAIMS: Final = (ReadQueue, ReadDependents, TakeDue, ClaimTasks, TakeOrphans, TakeTaskCommands)
"""In a shared store these queries change something, as do LookUpSubmission with a reservation and StoreHeartbeat."""


def is_claim(query: Any) -> bool:
    """True for a query that changes something in a shared store: it is fenced as a commit is."""
    return isinstance(query, CLAIMS) or (isinstance(query, LookUpSubmission) and query.reserve is not None)

"""What a commit can contain, what can be asked, and what comes back; of tasks, `tasks` says it, of checks `checks`.

Lives here: frozen data. Never here: how it is kept. Writes of one commit count in their order, and all or none of
them. Invariant: at most one document is current, and it stops being so only when another takes its place.
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
"""The largest number that every store can keep. Versions from outside must be refused above it before they get here."""

MAX_READ_ROWS: Final = 10_000
"""The most that one ask gets, whatever it says: an answer is one message to a machine."""

LIST_SCAN_ROWS: Final = 20_000
"""How many tasks a page looks at, of the open and of the ended each, for a filter that has no index."""


class PutSetting(msgspec.Struct, frozen=True):
    """Remember a value of the broker's own under a key."""

    key: str
    value: bytes


class DropSetting(msgspec.Struct, frozen=True):
    """Forget a key; one that is not there is no error."""

    key: str


class PutDocument(msgspec.Struct, frozen=True):
    """Keep a network document for ever; with `current`, it takes the place of the one that was.

    The same (version, hash) again is the same document: its first author and time stay.
    """

    version: int
    hash: str
    parent: str
    body: bytes
    time_us: int
    current: bool
    author: str


class PutToken(msgspec.Struct, frozen=True):
    """Remember a token by its digest, never by itself."""

    digest: str
    name: str
    role: str
    expires_us: int


class DropToken(msgspec.Struct, frozen=True):
    """Forget a token; one that is not there is no error."""

    digest: str


Write = PutSetting | DropSetting | PutDocument | PutToken | DropToken | JournalRow | TaskWrite | CheckWrite


class DocumentRow(msgspec.Struct, frozen=True):
    """A network document as it is kept."""

    version: int
    hash: str
    parent: str
    body: bytes
    time_us: int
    current: bool
    author: str


class TokenRow(msgspec.Struct, frozen=True):
    """A token as it is kept."""

    digest: str
    name: str
    role: str
    expires_us: int


class ReadDocuments(msgspec.Struct, frozen=True):
    """The history, newest first: the documents before (version, hash), or from the newest on."""

    limit: int
    before_version: int | None = None
    before_hash: str = ""
    """Where the last page ended within a version that has several documents."""


class ReadDocument(msgspec.Struct, frozen=True):
    """One document; without a hash the current one of that version, else the one with the largest hash."""

    version: int
    hash: str | None = None


class ReadJournal(msgspec.Struct, frozen=True):
    """Journal rows that hold events after `after_seq`, oldest first."""

    after_seq: int
    limit: int


Query = ReadDocuments | ReadDocument | ReadJournal | TaskQuery | CheckQuery

TaskAnswer = (
    tuple[OpenTask | EndedTask | None, ...]
    | tuple[OpenTask, ...]
    | tuple[EndedTask, ...]
    | tuple[tuple[int, int], ...]
    | tuple[tuple[str, int], ...]
    | tuple[str, ...]
    | tuple[ClaimedTask, ...]
    | tuple[PutTaskCommand, ...]
    | StoreHeartbeatResult
    | dict[int, int]
    | SubmissionLookup
    | TaskPage
    | int
    | None
)
"""Which of them, the class of a TaskAsk says."""

Answer = tuple[DocumentRow, ...] | DocumentRow | tuple[JournalRow, ...] | TaskAnswer | CheckAnswer


def bounded(limit: int) -> int:
    """How many rows an ask gets."""
    return max(0, min(limit, MAX_READ_ROWS))


def clamp(number: int) -> int:
    """A number of an ask's, as a store can compare it: beyond the largest there is nothing."""
    return max(-MAX_INTEGER, min(number, MAX_INTEGER))


CLAIMS: Final = (ReadQueue, ReadDependents, TakeDue, ClaimTasks, TakeOrphans, TakeTaskCommands)
"""The asks that change something, beside FindNew with a reservation and Beat."""


def is_claim(ask: Any) -> bool:
    """True for an ask that changes something: it is fenced as a commit is."""
    return isinstance(ask, CLAIMS) or (isinstance(ask, LookUpSubmission) and ask.reserve is not None)

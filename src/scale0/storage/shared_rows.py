"""A store that the brokers of a group share: what passes between them, beside the tasks themselves (`tasks`).

Lives here: frozen data. Never here: how it is kept, or what a broker makes of it.

In a shared store (`Opened.shared`) each open task is held by one broker, or by
nobody. It is held while it is ASSIGNED or RUNNING, or QUEUED and not shelved, by the broker that last wrote it or took
it; on the shelf and while it is SCHEDULED nobody holds it. What a broker that died held, nobody holds: a lease without
a holder is an *orphan*. A broker writes only what it holds, and takes what nobody holds by an ask: those that take say
so. A store that is not shared belongs to one broker, who holds all of it; such asks only read there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from scale0.storage.task_rows import EndedTask, OpenTask

CANCEL: Final = "cancel"
RELEASE: Final = "release"
OWN_IDS: Final = "s0:"
"""Ids that begin so are made by brokers, each its own: nobody reserves them."""


class ReleaseTask(msgspec.Struct, frozen=True):
    """Nobody holds this lease from now on: its node is with another broker of a shared store, who will take it."""

    seq: int


class FreeId(msgspec.Struct, frozen=True):
    """A submission was refused after all: what `FindNew` has reserved for it is free again. None: nothing of that."""

    id: str | None
    client: str
    key: str | None


class PutErrand(msgspec.Struct, frozen=True):
    """Have another broker do something with a task that it holds. The same again is one errand."""

    to: str
    """The broker."""
    kind: str
    """CANCEL or RELEASE."""
    id: str
    body: bytes
    """Of CANCEL: the error with which it ends."""


class PeekShelf(msgspec.Struct, frozen=True):
    """Of a shared store: what its shelf holds of these methods: a tuple of (method, priority), in no order."""

    methods: tuple[str, ...]


class PeekQueue(msgspec.Struct, frozen=True):
    """Of a shared store: the ids of the first tasks on the shelf of a method: a tuple, of at most `limit`."""

    method: str
    limit: int


class TakeDue(msgspec.Struct, frozen=True):
    """Of a shared store: OpenTasks that are SCHEDULED with waits 0, nobody's, and runnable by `now_us`: taken.

    By (runnable_us, seq), at most `limit`.
    """

    now_us: int
    limit: int


class ClaimTasks(msgspec.Struct, frozen=True):
    """Tasks by id, and those that are open and nobody's are taken: a tuple of `Claimed`, as long as `ids`.

    With a node, the orphans whose node it is are taken too, and stand behind, by seq.
    """

    ids: tuple[str, ...]
    node: str | None = None


class Claimed(msgspec.Struct, frozen=True):
    """Of the answer to ClaimTasks."""

    task: OpenTask | EndedTask | None
    holder: str = ""
    """The other broker that holds it; empty: this one does, or it is not open."""


class FindEnded(msgspec.Struct, frozen=True):
    """Of a shared store: the EndedTasks among these, in no order: a tuple."""

    ids: tuple[str, ...]


class TakeOrphans(msgspec.Struct, frozen=True):
    """Of a shared store: OpenTasks that have been orphans for so long, by the store's clock: taken. At most `limit`."""

    patience_us: int
    limit: int


class TakeErrands(msgspec.Struct, frozen=True):
    """Of a shared store: what others want of this broker, which is forgotten there: a tuple of `PutErrand`."""

    limit: int


class Beat(msgspec.Struct, frozen=True):
    """Of a shared store: this broker is alive, and means to say so again within `lease_us`: a `Beaten`.

    Brokers that have not said so in time are dead: their epoch ends, so that no commit of theirs can follow, and nobody
    holds what they held. A broker whose own time was over when it says this judges nobody: perhaps all were kept
    waiting.
    """

    lease_us: int
    judges: bool = True
    """False: it judges nobody, because others may need a moment more than it did to find the store again."""


class Beaten(msgspec.Struct, frozen=True):
    """The answer to Beat."""

    open_tasks: int
    """In the whole store, nearly."""
    died: tuple[str, ...] = ()
    """Who was found dead by this beat."""
    alive: tuple[str, ...] = ()
    """The other brokers that are alive."""

"""A task in memory: what a broker must know of one that it handles now.

Lives here: the record, its way to the store and back. Never here: a decision. Invariant: a task that is `fresh` is
written once, at the end of the turn that took it; after that, every change is a write of its own. It makes no cycle
that lasts: its holder is let go when its lease ends, so the collector need not look at it.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from scale0.storage.task_rows import ChangeTask, LeaseTask, OpenTask, PutTask
from scale0.tasks.jsonrpc.arguments import StoredOptions

MICRO: Final = 1_000_000

_kept: Final = msgspec.msgpack.Decoder(StoredOptions)
_pack: Final = msgspec.msgpack.Encoder().encode
USUAL_KEPT: Final = StoredOptions()


def pack_kept(kept: StoredOptions) -> bytes:
    """Options as the store keeps them; the usual ones cost nothing."""
    return b"" if kept == USUAL_KEPT else _pack(kept)


def read_kept(data: bytes) -> StoredOptions:
    """Options back from the store."""
    return _kept.decode(data) if data else USUAL_KEPT


class QueuedTask(msgspec.Struct, eq=False, gc=False):
    """One task that has not ended. The first fields are those of OpenTask, in its order."""

    seq: int
    id: str
    client: str
    method: str
    params: bytes
    priority: int
    status: int
    attempt: int
    starts: int
    node: str
    submitted_us: int
    runnable_us: int
    started_us: int
    waits: int
    shelved: bool
    followed: bool
    key: str | None
    options: bytes
    info: bytes
    history: bytes
    kept: StoredOptions
    fresh: bool = False
    """Taken in this turn: what opens it is not written yet."""
    backend: Any = None
    """Who has it now: a `Holder`."""
    native: bool = False
    """It was pushed: TASKSCANCEL may be said."""
    said: bool = False
    """Its node said that it runs."""
    restored: bool = False
    """Its lease is older than this broker: whether it runs, only its node knows."""
    handed: float = 0.0
    started: float = 0.0
    """Monotonic; 0: not started."""
    waited: float = 0.0
    """Seconds from runnable to this hand-out."""
    deadline: float = 0.0
    timed: int = 0
    """The attempt that the deadline is about."""
    recalled: int = 0
    """The attempt that its holder was asked to give back."""
    ended: bool = False
    bucket: int = 0

    def put_write(self) -> PutTask:
        """The write that opens it."""
        return PutTask(
            self.seq,
            self.id,
            self.client,
            self.method,
            self.params,
            self.priority,
            self.status,
            self.attempt,
            self.starts,
            self.node,
            self.submitted_us,
            self.runnable_us,
            self.started_us,
            self.waits,
            self.shelved,
            self.followed,
            self.key,
            self.options,
            self.info,
            self.history,
        )

    def lease_write(self) -> LeaseTask:
        """The quick write of a hand-out."""
        return LeaseTask(self.status, self.attempt, self.starts, self.node, self.started_us, self.seq)

    def change_write(self) -> ChangeTask:
        """The write of anything else."""
        return ChangeTask(
            self.status,
            self.attempt,
            self.starts,
            self.node,
            self.runnable_us,
            self.started_us,
            self.waits,
            self.shelved,
            self.followed,
            self.info,
            self.history,
            self.seq,
        )


def from_store(row: OpenTask) -> QueuedTask:
    """A stored task in memory."""
    fields: list[Any] = [*msgspec.structs.astuple(row), read_kept(row.options)]
    return QueuedTask(*fields)


def of_seconds(wall: float) -> int:
    """Seconds as whole microseconds."""
    return int(wall * MICRO)

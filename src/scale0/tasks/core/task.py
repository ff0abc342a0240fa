"""A task in memory, and its conversion to and from stored rows. Invariant: a `fresh` task is written once, at the end
of the turn that accepted it; after that, every change is its own write. A task is in no lasting reference cycle,
because the reference to its holder is cleared when the lease ends; so garbage collection can ignore it."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

from scale0.storage.task_rows import KEPT_PARAMS_BYTES, ChangeTask, LeaseTask, OpenTask, PutTask, checksum
from scale0.tasks.jsonrpc.arguments import StoredOptions
from scale0.tasks.jsonrpc.messages import canonical

MICRO: Final = 1_000_000
DIGEST_BYTES: Final = 16

_kept: Final = msgspec.msgpack.Decoder(StoredOptions)
_pack: Final = msgspec.msgpack.Encoder().encode
USUAL_KEPT: Final = StoredOptions()


def pack_kept(kept: StoredOptions) -> bytes:
    """Returns options in their stored form; defaults are stored as no bytes."""
    return b"" if kept == USUAL_KEPT else _pack(kept)


def read_kept(data: bytes) -> StoredOptions:
    return _kept.decode(data) if data else USUAL_KEPT


def digest_of(params: bytes) -> bytes:
    """Identifies params by their value: a finished task keeps no params."""
    return hashlib.sha256(canonical(params)).digest()[:DIGEST_BYTES]


def belongs_to(owner: str, public_key: str) -> bool:
    """True if a key may use what has this owner. Without one it is not known whose it is: other rules decide."""
    return not owner or owner == public_key


class QueuedTask(msgspec.Struct, eq=False, gc=False):
    """A task that has not ended. The first fields are those of OpenTask, in the same order."""

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
    owner: str
    node_owner: str
    params_sum: int
    size: int
    kept: StoredOptions
    fresh: bool = False
    """Accepted in this turn and not written yet."""
    backend: Any = None
    """The backend that holds the lease."""
    native: bool = False
    """It was pushed, so TASKSCANCEL can be sent."""
    start_reported: bool = False
    """Its node has reported that it runs."""
    restored: bool = False
    """Its lease is older than this broker process: only its node knows whether it runs."""
    handed: float = 0.0
    hand_out: int = 0
    """The number of the hand-out by TASKS that this lease is of."""
    started: float = 0.0
    """Monotonic; 0: not started."""
    waited: float = 0.0
    """Seconds from runnable to this hand-out."""
    deadline: float = 0.0
    timed: int = 0
    """The attempt that the deadline applies to."""
    answered: int = 0
    """The attempt that was handed out by JSON-RPC in an answer that was sent."""
    recalled: int = 0
    """The attempt that its holder was asked to return."""
    ended: bool = False
    bucket: int = 0

    @property
    def is_unloaded(self) -> bool:
        """True if its params are in the store only."""
        return len(self.params) < self.size

    def drop_params(self) -> None:
        """It was handed out: another attempt reads its params again, unless they are small."""
        if self.size > KEPT_PARAMS_BYTES and not self.fresh:
            self.params = b""  # those of a new task are written first

    def is_damaged(self) -> bool:
        """True if the params, which are in memory, are not those that were submitted."""
        return self.params_sum != 0 and checksum(self.seq, self.params) != self.params_sum

    def put_write(self) -> PutTask:
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
            self.owner,
            self.node_owner,
            self.params_sum,
        )

    def lease_write(self) -> LeaseTask:
        return LeaseTask(self.status, self.attempt, self.starts, self.node, self.node_owner, self.started_us, self.seq)

    def change_write(self) -> ChangeTask:
        return ChangeTask(
            self.status,
            self.attempt,
            self.starts,
            self.node,
            self.node_owner,
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
    fields: list[Any] = [*msgspec.structs.astuple(row), read_kept(row.options)]
    return QueuedTask(*fields)


def of_seconds(wall: float) -> int:
    return int(wall * MICRO)

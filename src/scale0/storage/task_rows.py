"""Tasks as a store keeps them: their rows, and what a commit can say of them.

Lives here: frozen data. Never here: how it is kept, what can be asked (`task_asks`), or what a broker makes of it. A
task is either open or ended, never both: `PutTask` opens it, `EndTask` ends it, `ReopenTask` opens an ended one again.
Within one commit the writes about one task count in their order. Invariants: an id is unique among open and ended
tasks, and so is (client, key); a broker makes sure of that before it writes, so a store that meets a repetition has met
our own mistake and fails.

Of a store that brokers share, `sharing` says what else there is.
"""

from __future__ import annotations

from typing import Final

import msgspec

CANCEL: Final = "cancel"
RELEASE: Final = "release"
OWN_IDS: Final = "s0:"
"""Ids that begin so are made by brokers, each its own: nobody reserves them."""

SCHEDULED: Final = 500
QUEUED: Final = 1_000
ASSIGNED: Final = 3_000
RUNNING: Final = 5_000
FINISHED: Final = 7_000
FAILED: Final = 9_000
CANCELLED: Final = 9_500

STATUS_NAMES: Final = {
    SCHEDULED: "scheduled",
    QUEUED: "queued",
    ASSIGNED: "assigned",
    RUNNING: "running",
    FINISHED: "finished",
    FAILED: "failed",
    CANCELLED: "cancelled",
}
STATUS_CODES: Final = {name: code for code, name in STATUS_NAMES.items()}


class OpenTask(msgspec.Struct, frozen=True):
    """A task that has not ended, as it is stored."""

    seq: int
    """In the order of acceptance; unique in a store, never used again."""
    id: str
    client: str
    method: str
    params: bytes
    """JSON, as it came."""
    priority: int
    status: int
    """SCHEDULED to RUNNING."""
    attempt: int
    """Of the newest hand-out; 0: none yet."""
    starts: int
    """Attempts that count towards max_attempts."""
    node: str
    """Who has it; empty: nobody."""
    submitted_us: int
    runnable_us: int
    """When it became, or will become, ready to be handed out. Wall clock."""
    started_us: int
    """Of the newest attempt; 0: it has not started."""
    waits: int
    """Tasks that must finish first."""
    shelved: bool
    """It waits in the store: it is in the index that `ReadQueue` uses. False: the broker holds it in memory."""
    followed: bool
    """Other tasks wait for it."""
    key: str | None
    options: bytes
    """The rest of its options, MessagePack."""
    info: bytes
    """What its node last said of it, JSON; empty: nothing."""
    history: bytes
    """Its ended attempts, JSON array; empty: none."""


class EndedTask(msgspec.Struct, frozen=True):
    """A task that has ended."""

    seq: int
    id: str
    client: str
    method: str
    params: bytes
    """Empty for a finished one: only what may be tried again keeps them."""
    priority: int
    status: int
    """FINISHED, FAILED or CANCELLED."""
    attempt: int
    starts: int
    node: str
    submitted_us: int
    started_us: int
    ended_us: int
    expires_us: int
    key: str | None
    options: bytes
    result: bytes
    """JSON: the result of a finished task, the error object of a failed or cancelled one."""
    info: bytes
    history: bytes


class PutTask(msgspec.Struct, frozen=True, gc=False):
    """Open a task. The fields are those of OpenTask, in its order."""

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


class LeaseTask(msgspec.Struct, frozen=True, gc=False):
    """Hand an open task out: the quick kind of change. It leaves the shelf."""

    status: int
    attempt: int
    starts: int
    node: str
    started_us: int
    seq: int


class ChangeTask(msgspec.Struct, frozen=True):
    """Everything about an open task that may change."""

    status: int
    attempt: int
    starts: int
    node: str
    runnable_us: int
    started_us: int
    waits: int
    shelved: bool
    followed: bool
    info: bytes
    history: bytes
    seq: int


class EndTask(msgspec.Struct, frozen=True, gc=False):
    """End an open task: id, client, method, priority, submitted_us, key and options stay as they were."""

    status: int
    attempt: int
    starts: int
    node: str
    started_us: int
    ended_us: int
    expires_us: int
    result: bytes
    info: bytes
    history: bytes
    seq: int


class ReopenTask(msgspec.Struct, frozen=True):
    """Open an ended task again, under its old seq and id: queued, on the shelf, with no starts.

    Its attempt, history, params, key and options stay; node, info and started_us are cleared, waits is 0.
    """

    seq: int
    runnable_us: int


def reopened(task: EndedTask, runnable_us: int, followed: bool) -> OpenTask:
    """An ended task as `ReopenTask` opens it."""
    return OpenTask(
        seq=task.seq,
        id=task.id,
        client=task.client,
        method=task.method,
        params=task.params,
        priority=task.priority,
        status=QUEUED,
        attempt=task.attempt,
        starts=0,
        node="",
        submitted_us=task.submitted_us,
        runnable_us=runnable_us,
        started_us=0,
        waits=0,
        shelved=True,
        followed=followed,
        key=task.key,
        options=task.options,
        info=b"",
        history=task.history,
    )


class SweepTasks(msgspec.Struct, frozen=True):
    """Forget at most `limit` ended tasks whose time is over, those first whose time was over first."""

    before_us: int
    limit: int


class PutDependency(msgspec.Struct, frozen=True):
    """`seq` waits for `after_seq`."""

    after_seq: int
    seq: int


class DropDependency(msgspec.Struct, frozen=True):
    """These wait for `after_seq` no more; None: nobody does. In a shared store a task that ended waits for nobody."""

    after_seq: int
    seqs: tuple[int, ...] | None = None


class PutTaskClient(msgspec.Struct, frozen=True):
    """A client id is valid from now on. The same again changes nothing but `heard_us`."""

    id: str
    owner: str
    """The key that it belongs to; empty without CURVE."""
    heard_us: int


class DropTaskClient(msgspec.Struct, frozen=True):
    """A client id is valid no longer; one that is not there is no error."""

    id: str


class ReleaseTask(msgspec.Struct, frozen=True):
    """Nobody holds this lease from now on: its node is with another broker of a shared store, who will take it."""

    seq: int


class FreeReservation(msgspec.Struct, frozen=True):
    """A submission was refused after all: what `FindNew` has reserved for it is free again. None: nothing of that."""

    id: str | None
    client: str
    key: str | None


class PutTaskCommand(msgspec.Struct, frozen=True):
    """Have another broker do something with a task that it holds. The same again is one errand."""

    to: str
    """The broker."""
    kind: str
    """CANCEL or RELEASE."""
    id: str
    body: bytes
    """Of CANCEL: the error with which it ends."""


TaskWrite = (
    PutTask
    | LeaseTask
    | ChangeTask
    | EndTask
    | ReopenTask
    | SweepTasks
    | PutDependency
    | DropDependency
    | PutTaskClient
    | DropTaskClient
    | ReleaseTask
    | FreeReservation
    | PutTaskCommand
)


class TaskClient(msgspec.Struct, frozen=True):
    """A client id as it is kept."""

    id: str
    owner: str
    heard_us: int

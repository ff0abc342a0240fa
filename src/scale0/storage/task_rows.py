"""Tasks as a store keeps them: their rows, and the writes of a commit that concern them.

A task is either open or ended: `PutTask` opens it, `EndTask` ends it, `ReopenTask` opens an ended one again. The writes
of one commit about one task apply in their order. An id is unique among open and ended tasks, and so is (client, key,
owner); the broker ensures that before it writes, so a store that meets a duplicate fails the commit.

In a shared store (`OpenedStore.shared`) at most one broker holds an open task: the one that wrote or took it last,
while the task is ASSIGNED or RUNNING, or QUEUED and not shelved. Nobody holds a shelved or SCHEDULED task. A broker
that dies holds nothing any more; a lease without a holder is an *orphan*. A broker writes only tasks that it holds, and
takes unheld tasks by a query (`task_queries` marks those that take). A store that is not shared belongs to one broker,
which holds everything; there such queries only read.

The fields of PutTask, EndedTask and the writes are the names of the columns in both databases; the SQL stores build
their statements from them (`sql_tasks`).
"""

from __future__ import annotations

import zlib
from typing import Final

import msgspec

CANCEL: Final = "cancel"
RELEASE: Final = "release"
OWN_IDS: Final = "s0:"
"""The prefix of ids that brokers generate, each its own: they need no reservation."""

KEPT_PARAMS_BYTES: Final = 1_024
"""Params of a leased task that a broker keeps in memory: its record needs about as much. Larger ones are read from the
store for another attempt."""
ACCOUNT: Final = "coalesce(nullif(owner, ''), client)"
"""`account_name` of a task in SQL: the expression in the indexes, so a query must use it as it is."""


def account_name(owner: str, client: str) -> str:
    """Whom a task counts for: the public key that submitted it, or its client id without keys. Accounts have quotas,
    and take turns within a method and priority."""
    return owner or client


SCHEDULED: Final = 500
QUEUED: Final = 1_000
ASSIGNED: Final = 3_000
RUNNING: Final = 5_000
FINISHED: Final = 7_000
FAILED: Final = 9_000
CANCELLED: Final = 9_500


def checksum(seq: int, data: bytes) -> int:
    """The checksum of the params or the result of a task, never 0: that means not known. With the seq, because damage
    may also exchange rows."""
    return zlib.crc32(data, seq & 0xFFFF_FFFF) or 1


OPEN_STATUSES: Final = (SCHEDULED, QUEUED, ASSIGNED, RUNNING)
ENDED_STATUSES: Final = (FINISHED, FAILED, CANCELLED)

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


class PutTask(msgspec.Struct, frozen=True, gc=False):
    """Open a task."""

    seq: int
    """In the order of acceptance; unique in a store, never used again."""
    id: str
    client: str
    method: str
    params: bytes
    """JSON, as the client sent it."""
    priority: int
    status: int
    """SCHEDULED to RUNNING."""
    attempt: int
    """The number of the newest attempt; 0: none yet."""
    starts: int
    """Attempts that count towards max_attempts."""
    node: str
    """The node that has it; empty: none."""
    submitted_us: int
    runnable_us: int
    """When it became, or will become, runnable. Wall clock."""
    started_us: int
    """When the newest attempt started; 0: it has not started."""
    waits: int
    """The number of tasks that must finish first."""
    shelved: bool
    """It is in the stored backlog, in the index that `ReadQueue` uses. False: the broker holds it in memory."""
    followed: bool
    """Other tasks depend on it."""
    key: str | None
    options: bytes
    """Its other options, MessagePack."""
    info: bytes
    """The last progress report of its node, JSON; empty: none."""
    history: bytes
    """Its ended attempts, a JSON array; empty: none."""
    owner: str = ""
    """The public key that submitted it; empty: without CURVE, or by a version that did not store it."""
    node_owner: str = ""
    """The public key of the node that has it; empty likewise."""
    params_sum: int = 0
    """The checksum of its params; 0: not known, because a version without checksums stored it."""


class OpenTask(PutTask, frozen=True):
    """A task that has not ended, as it is read."""

    size: int = 0
    """The bytes of its params, also where these are not read. No column: a store computes it."""


def opened(write: PutTask) -> OpenTask:
    """A task as `PutTask` opens it."""
    return OpenTask(**msgspec.structs.asdict(write), size=len(write.params))


class EndedTask(msgspec.Struct, frozen=True):
    seq: int
    id: str
    client: str
    method: str
    params: bytes
    """Empty for a finished task: only a task that may be reopened keeps them."""
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
    owner: str = ""
    node_owner: str = ""
    params_sum: int = 0
    """Of the params that were submitted, also if they are not kept."""
    result_sum: int = 0
    """The checksum of its result; 0: not known."""


KEPT_ROW_BYTES: Final = 1_024
"""What an ended task counts beside its params, result, info and history: its row, its id and the entries of indexes."""


def kept_bytes(task: EndedTask) -> int:
    """What an ended task counts until it is deleted; the SQL stores compute the same from `KEPT_SIZE`."""
    return KEPT_ROW_BYTES + len(task.params) + len(task.result) + len(task.info) + len(task.history)


class LeaseTask(msgspec.Struct, frozen=True, gc=False):
    """Lease an open task to a node: the frequent kind of change. It leaves the stored backlog."""

    status: int
    attempt: int
    starts: int
    node: str
    node_owner: str
    started_us: int
    seq: int


class ChangeTask(msgspec.Struct, frozen=True):
    """Set all fields of an open task that may change."""

    status: int
    attempt: int
    starts: int
    node: str
    node_owner: str
    runnable_us: int
    started_us: int
    waits: int
    shelved: bool
    followed: bool
    info: bytes
    history: bytes
    seq: int


class EndTask(msgspec.Struct, frozen=True, gc=False):
    """End an open task: id, client, method, priority, submitted_us, key, options and owner stay."""

    status: int
    attempt: int
    starts: int
    node: str
    node_owner: str
    started_us: int
    ended_us: int
    expires_us: int
    result: bytes
    info: bytes
    history: bytes
    seq: int
    result_sum: int = 0


class ReopenTask(msgspec.Struct, frozen=True):
    """Open an ended task again, under its seq and id: queued, in the stored backlog, with no starts.

    Its attempt, history, params, key, options and owner stay; node, node_owner, info and started_us are cleared, waits
    is 0. What it counted as an ended task is subtracted from the usage of its account.
    """

    seq: int
    runnable_us: int


def ended(task: OpenTask, write: EndTask) -> EndedTask:
    """An open task as `EndTask` ends it: only a task that may be reopened keeps its params."""
    values = msgspec.structs.asdict(task) | msgspec.structs.asdict(write)
    if write.status == FINISHED:
        values["params"] = b""
    return EndedTask(**{name: values[name] for name in EndedTask.__struct_fields__})


def reopened(task: EndedTask, runnable_us: int, followed: bool) -> OpenTask:
    """An ended task as `ReopenTask` opens it."""
    values = msgspec.structs.asdict(task) | {
        "status": QUEUED,
        "starts": 0,
        "node": "",
        "node_owner": "",
        "runnable_us": runnable_us,
        "started_us": 0,
        "waits": 0,
        "shelved": True,
        "followed": followed,
        "info": b"",
        "size": len(task.params),
    }
    return OpenTask(**{name: values[name] for name in OpenTask.__struct_fields__})


class SweepTasks(msgspec.Struct, frozen=True):
    """Delete at most `limit` ended tasks that expired by `before_us`, the first expired first. What they counted is
    subtracted from the usage of their accounts."""

    before_us: int
    limit: int


class PutDependency(msgspec.Struct, frozen=True):
    """`seq` depends on `after_seq`."""

    after_seq: int
    seq: int


class DropDependency(msgspec.Struct, frozen=True):
    """These no longer depend on `after_seq`; None: no task does. In a shared store an ended task depends on nothing."""

    after_seq: int
    seqs: tuple[int, ...] | None = None


class TaskClient(msgspec.Struct, frozen=True):
    """A client id that is valid."""

    id: str
    owner: str
    """The user that it belongs to: role and name of a key. Empty without CURVE."""
    heard_us: int


class PutTaskClient(TaskClient, frozen=True):
    """A client id is valid from now on; a known id only gets a new `heard_us`."""


class DropTaskClient(msgspec.Struct, frozen=True):
    """A client id is no longer valid, unless it was heard later; a missing one is no error."""

    id: str
    heard_us: int = 2**63 - 1


class TaskUsage(msgspec.Struct, frozen=True):
    """What the tasks of one account use; `account_name` decides which tasks an account has."""

    account: str
    tasks: int
    bytes: int
    """Of params."""
    delayed: int
    """Those that are SCHEDULED."""
    kept: int = 0
    """Bytes of ended tasks: see `kept_bytes`."""


class AddTaskUsage(TaskUsage, frozen=True):
    """Add these numbers, which may be negative, to the usage of an account; without tasks and kept bytes it is
    forgotten.

    The broker writes the changes of a turn in the commit of that turn: so the sums are exact, and reading them costs
    nothing per task. In a shared store each broker adds to sums of its own.
    """


class ReleaseTask(msgspec.Struct, frozen=True):
    """In a shared store: nobody holds this lease any more, because its node moved to another broker, which takes it."""

    seq: int


class FreeReservation(msgspec.Struct, frozen=True):
    """In a shared store: a submission was refused, so its reserved id and key are free again. None: not reserved."""

    id: str | None
    client: str
    key: str | None
    owner: str = ""


class PutTaskCommand(msgspec.Struct, frozen=True):
    """In a shared store: ask another broker to change a task that it holds. A repeated command is stored once."""

    to: str
    """The identity of the broker."""
    kind: str
    """CANCEL or RELEASE."""
    id: str
    body: bytes
    """For CANCEL: the error with which the task ends."""


OpenTaskWrite = PutTask | LeaseTask | ChangeTask | EndTask | ReopenTask | SweepTasks
SharedWrite = ReleaseTask | FreeReservation | PutTaskCommand
"""Only in a shared store."""
TaskWrite = OpenTaskWrite | PutDependency | DropDependency | PutTaskClient | DropTaskClient | AddTaskUsage | SharedWrite

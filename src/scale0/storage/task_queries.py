"""Queries about tasks, and their answers.

Each answer is consistent (from one moment) and has at most as many rows as its query allows. Some queries *take* tasks
in a shared store: this broker holds them afterwards (`task_rows` defines holding).
"""

from __future__ import annotations

from typing import Final

import msgspec

from scale0.storage.task_rows import EndedTask, OpenTask, TaskClient, TaskUsage

MAX_USAGE: Final = 10_000
"""Accounts in the answer to a heartbeat: a client without keys is an account."""
MAX_CLAIM_ACCOUNTS: Final = 1_000
"""Accounts that have a part of one claim: each costs a lookup in an index."""


class FindTasks(msgspec.Struct, frozen=True):
    """Tasks by id: a tuple as long as `ids`, of OpenTask, EndedTask or None."""

    ids: tuple[str, ...]
    brief: bool = False
    """Without params and results: these are empty."""


class ReadResults(msgspec.Struct, frozen=True):
    """The results of ended tasks: tuples of (status, result, result_sum), or None for one that is not ended, in order.

    No more once they would exceed `max_bytes`: the answer may be shorter than `seqs`. It has at least one element.
    """

    seqs: tuple[int, ...]
    max_bytes: int


class LookUpSubmission(msgspec.Struct, frozen=True):
    """Everything that a broker must know before it accepts a task: the answer is a `SubmissionLookup`.

    Its tasks are without params and results: these are empty.
    """

    client: str
    ids: tuple[str, ...]
    """The id of the task and of those that it depends on."""
    key: str | None
    series: str | None
    """The part of an id before its counter."""
    reserve: str | None = None
    """In a shared store: reserve this id (empty: none), and the key if there is one, for this broker if they are free.
    The broker must then write PutTask or FreeReservation. None: reserve nothing."""
    owner: str = ""
    """The public key of the client, to which its idempotency keys belong. A task without an owner is found as well."""


class SubmissionLookup(msgspec.Struct, frozen=True):
    """The answer to LookUpSubmission."""

    client: TaskClient | None
    tasks: tuple[OpenTask | EndedTask | None, ...]
    """In the order of `ids`."""
    keyed: OpenTask | EndedTask | None
    last: str
    """The largest id that starts with `series` and "."; empty: there is none, or no series was given."""
    busy: bool = False
    """Another broker has reserved the id or the key and not put its task yet: try again soon. Nothing was reserved."""


class ReadQueue(msgspec.Struct, frozen=True):
    """The stored backlog of one method and priority, by seq: OpenTasks that are QUEUED and shelved, after `after_seq`.

    At most `limit` of them, and no more once their params reach `max_bytes`; at least one if there is any. In a shared
    store they are taken, and leave the stored backlog; there each of the first `claim_accounts(limit)` accounts behind
    `owner` has an equal part of `limit`, and what is left goes to the oldest tasks. Fewer than `limit`, with fewer
    bytes than `max_bytes`: there are no more.
    """

    method: str
    priority: int
    after_seq: int
    limit: int
    max_bytes: int
    owner: str | None = None
    """Only tasks of this account; None: of all. In a shared store: the account behind which turns begin."""


def claim_accounts(limit: int) -> int:
    """How many accounts have a part of a claim."""
    return min(limit, MAX_CLAIM_ACCOUNTS)


class ReadOwners(msgspec.Struct, frozen=True):
    """The stored backlog of a method: a tuple of (priority, submitter, largest seq), highest priority first, then by
    submitter. Not in a shared store."""

    method: str


class ReadPriorities(msgspec.Struct, frozen=True):
    """The stored backlog of a method: a tuple of (priority, largest seq), highest priority first."""

    method: str


class ReadSchedule(msgspec.Struct, frozen=True):
    """OpenTasks that are SCHEDULED with waits 0, by (runnable_us, seq), after this key; at most `limit`.

    They are without params: these are empty.
    """

    after_us: int
    after_seq: int
    limit: int


class ReadDependents(msgspec.Struct, frozen=True):
    """The OpenTasks that depend on `after_seq`, by seq, after `seq`; at most `limit`.

    In a shared store: those that no other broker holds; the SCHEDULED ones are taken.
    """

    after_seq: int
    seq: int
    limit: int


class ReadEndedDependencies(msgspec.Struct, frozen=True):
    """EndedTasks on which others still depend, because a broker died in between. By seq, at most `limit`.

    They are without params and results.
    """

    limit: int


class ReadExpiry(msgspec.Struct, frozen=True):
    """When the next ended task expires, in microseconds, or the last one; None: there is none."""

    last: bool = False


class TakeFreed(msgspec.Struct, frozen=True):
    """In a store of one's own: what commits have subtracted from `TaskUsage.kept` since the last such query, because
    ended tasks were deleted or opened again: a tuple of account and bytes. Each is answered once in a process."""


class CountTaskClients(msgspec.Struct, frozen=True):
    """The number of client ids by owner: a dict. It scans all of them, so it is a query to read aside."""


class ReadUnusedClients(msgspec.Struct, frozen=True):
    """At most `limit` client ids that were not heard after `heard_us`, and have neither an open nor an ended task.

    It scans all client ids and tasks, so it is a query to read aside."""

    heard_us: int
    limit: int


class CountTasks(msgspec.Struct, frozen=True):
    """The number of open tasks by status code: a dict."""


class ListTasks(msgspec.Struct, frozen=True):
    """A page of tasks, newest first: a `TaskPage`.

    Filters: a status code, a method, a client; None: any. `before_seq` None: from the newest.
    """

    limit: int
    before_seq: int | None = None
    status: int | None = None
    method: str | None = None
    client: str | None = None


class TaskPage(msgspec.Struct, frozen=True):
    """The answer to ListTasks."""

    tasks: tuple[OpenTask | EndedTask, ...]
    """Without params, result and options: these are empty."""
    next_seq: int | None
    """The `before_seq` of the next page; None: this is the last page."""


class PeekBacklog(msgspec.Struct, frozen=True):
    """In a shared store: the (method, priority) pairs of its backlog for these methods: a tuple, in no order."""

    methods: tuple[str, ...]


class PeekQueues(msgspec.Struct, frozen=True):
    """In a shared store: the first tasks in the backlog of each of these methods, at most `limit` of each: a tuple of
    (method, id, owner), of each method in the order of the hand-out."""

    methods: tuple[str, ...]
    limit: int


class TakeDue(msgspec.Struct, frozen=True):
    """In a shared store: take OpenTasks that are SCHEDULED with waits 0, unheld, and runnable by `now_us`.

    By (runnable_us, seq), at most `limit`.
    """

    now_us: int
    limit: int


class ClaimTasks(msgspec.Struct, frozen=True):
    """Find tasks by id, and take those that are open and unheld: a tuple of `ClaimedTask`, as long as `ids`.

    With a node, also take the orphans of that node; these follow, by seq, without params that are
    larger than KEPT_PARAMS_BYTES: these are empty.
    """

    ids: tuple[str, ...]
    node: str | None = None


class ClaimedTask(msgspec.Struct, frozen=True):
    task: OpenTask | EndedTask | None
    holder: str = ""
    """The other broker that holds it; empty: this broker does, or it is not open."""


class FindEnded(msgspec.Struct, frozen=True):
    """In a shared store: the EndedTasks among these ids: a tuple, in no order, without params and results."""

    ids: tuple[str, ...]


class TakeOrphans(msgspec.Struct, frozen=True):
    """In a shared store: take OpenTasks that have been orphans for `patience_us`, by the database's clock.

    They are without params that are larger than KEPT_PARAMS_BYTES: these are empty.
    """

    patience_us: int
    limit: int


class TakeTaskCommands(msgspec.Struct, frozen=True):
    """In a shared store: remove and return the commands of other brokers to this one: a tuple of `PutTaskCommand`."""

    limit: int


class StoreHeartbeat(msgspec.Struct, frozen=True):
    """In a shared store: this broker is alive, and sends the next heartbeat within `lease_us`.

    A broker whose lease has expired is declared dead: its epoch ends, so that it cannot commit any more, and nobody
    holds what it held. A broker whose own lease has expired declares nobody dead, because all may have been delayed.
    """

    lease_us: int
    declares_dead: bool = True
    """False: declare nobody dead, because others may need longer to reach the store again."""


class StoreHeartbeatResult(msgspec.Struct, frozen=True):
    usage: tuple[TaskUsage, ...]
    """In the whole store, of the accounts with the most tasks: at most MAX_USAGE."""
    total: TaskUsage
    """Of all accounts; its account is empty."""
    died: tuple[str, ...] = ()
    """The brokers that this heartbeat declared dead."""
    alive: tuple[str, ...] = ()
    """The other brokers that are alive."""
    now_us: int = 0
    """The database's clock."""


TaskQuery = (
    FindTasks
    | ReadResults
    | LookUpSubmission
    | ReadQueue
    | ReadOwners
    | ReadPriorities
    | ReadSchedule
    | ReadDependents
    | ReadEndedDependencies
    | ReadExpiry
    | TakeFreed
    | CountTaskClients
    | ReadUnusedClients
    | CountTasks
    | ListTasks
    | PeekBacklog
    | PeekQueues
    | TakeDue
    | ClaimTasks
    | FindEnded
    | TakeOrphans
    | TakeTaskCommands
    | StoreHeartbeat
)

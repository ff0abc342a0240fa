"""What can be asked of the tasks that a store keeps, and what comes back.

Lives here: frozen data. Never here: how it is answered, or what a commit can say of tasks (`tasks`). Invariant: every
answer is of one moment, and as long as its ask says at the most.

Of a store that brokers share, `sharing` says what else can be asked.
"""

from __future__ import annotations

import msgspec

from scale0.storage.task_rows import EndedTask, OpenTask, TaskClient


class FindTasks(msgspec.Struct, frozen=True):
    """Tasks by id: a tuple as long as `ids`, of OpenTask, EndedTask or None."""

    ids: tuple[str, ...]


class LookUpSubmission(msgspec.Struct, frozen=True):
    """All that must be known before a task can be taken: the answer is a `SubmissionLookup`."""

    client: str
    ids: tuple[str, ...]
    """Its own id and those that it waits for."""
    key: str | None
    series: str | None
    """The part of an id before its counter."""
    reserve: str | None = None
    """In a shared store, for a submission: this id (empty: none), and the key if there is one, are this broker's to use
    from now on, if they are free. It puts the task, or says FreeId. None: it only wants to know."""


class SubmissionLookup(msgspec.Struct, frozen=True):
    """The answer to FindNew."""

    client: TaskClient | None
    tasks: tuple[OpenTask | EndedTask | None, ...]
    """In the order of `ids`."""
    keyed: OpenTask | EndedTask | None
    last: str
    """The largest id that starts with `series` and "."; empty: none, or not asked."""
    busy: bool = False
    """Another broker has reserved the id or the key and not put its task yet: ask again soon. Nothing is reserved."""


class ReadQueue(msgspec.Struct, frozen=True):
    """The shelf of one method and priority, in order: OpenTasks that are QUEUED and shelved, with a larger seq.

    At most `limit` of them, and no more once their params reach `max_bytes`; at least one if there is any. A shared
    store gives what nobody holds, and they are taken: this broker holds them, and they are off the shelf.
    """

    method: str
    priority: int
    after_seq: int
    limit: int
    max_bytes: int


class ReadPriorities(msgspec.Struct, frozen=True):
    """What waits on the shelf for a method: a tuple of (priority, largest seq), highest priority first."""

    method: str


class ReadSchedule(msgspec.Struct, frozen=True):
    """OpenTasks that are SCHEDULED with waits 0, by (runnable_us, seq), after that place; at most `limit`."""

    after_us: int
    after_seq: int
    limit: int


class ReadDependents(msgspec.Struct, frozen=True):
    """The OpenTasks that wait for `after_seq`, by seq, after `seq`; at most `limit`.

    A shared store gives those that no other broker holds, and those that are SCHEDULED are taken.
    """

    after_seq: int
    seq: int
    limit: int


class ReadEndedDependencies(msgspec.Struct, frozen=True):
    """EndedTasks that somebody still waits for: a broker died in between. By seq, at most `limit`."""

    limit: int


class ReadExpiry(msgspec.Struct, frozen=True):
    """When the next ended task's time is over, in microseconds; None: there is none."""


class CountTasks(msgspec.Struct, frozen=True):
    """How many tasks there are, by status code: a dict. Ended ones are not counted one by one: only open."""


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
    """Without params, result and options (empty): a list shows none of them."""
    next_seq: int | None
    """Where the next page begins (`before_seq`); None: this was the last."""


class PeekBacklog(msgspec.Struct, frozen=True):
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
    """Tasks by id, and those that are open and nobody's are taken: a tuple of `ClaimedTask`, as long as `ids`.

    With a node, the orphans whose node it is are taken too, and stand behind, by seq.
    """

    ids: tuple[str, ...]
    node: str | None = None


class ClaimedTask(msgspec.Struct, frozen=True):
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


class TakeTaskCommands(msgspec.Struct, frozen=True):
    """Of a shared store: what others want of this broker, which is forgotten there: a tuple of `PutErrand`."""

    limit: int


class StoreHeartbeat(msgspec.Struct, frozen=True):
    """Of a shared store: this broker is alive, and means to say so again within `lease_us`: a `StoreHeartbeatResult`.

    Brokers that have not said so in time are dead: their epoch ends, so that no commit of theirs can follow, and nobody
    holds what they held. A broker whose own time was over when it says this judges nobody: perhaps all were kept
    waiting.
    """

    lease_us: int
    judges: bool = True
    """False: it judges nobody, because others may need a moment more than it did to find the store again."""


class StoreHeartbeatResult(msgspec.Struct, frozen=True):
    """The answer to Beat."""

    open_tasks: int
    """In the whole store, nearly."""
    died: tuple[str, ...] = ()
    """Who was found dead by this beat."""
    alive: tuple[str, ...] = ()
    """The other brokers that are alive."""


TaskQuery = (
    FindTasks
    | LookUpSubmission
    | ReadQueue
    | ReadPriorities
    | ReadSchedule
    | ReadDependents
    | ReadEndedDependencies
    | ReadExpiry
    | CountTasks
    | ListTasks
    | PeekBacklog
    | PeekQueue
    | TakeDue
    | ClaimTasks
    | FindEnded
    | TakeOrphans
    | TakeTaskCommands
    | StoreHeartbeat
)

"""Tasks that brokers share, in memory: who holds which, what is reserved, and what one wants of another.

Lives here: `SharedTasks`, over the tasks of one broker's memory. Never here: who is alive; the caller knows.
Invariants: a task on the shelf is nobody's; a lease that is nobody's has the time since when; of writes that fail
nothing stays.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from scale0.storage.interface import StoreFailed
from scale0.storage.memory.tasks import MemoryTasks, TasksSnapshot
from scale0.storage.rows import MAX_READ_ROWS, TaskAnswer, bounded
from scale0.storage.task_queries import (
    ClaimedTask,
    ClaimTasks,
    FindEnded,
    FindTasks,
    LookUpSubmission,
    PeekBacklog,
    PeekQueue,
    ReadDependents,
    ReadPriorities,
    ReadQueue,
    ReadSchedule,
    SubmissionLookup,
    TakeDue,
    TakeOrphans,
    TakeTaskCommands,
    TaskQuery,
)
from scale0.storage.task_rows import (
    ASSIGNED,
    OWN_IDS,
    QUEUED,
    RUNNING,
    SCHEDULED,
    ChangeTask,
    DropDependency,
    EndedTask,
    EndTask,
    FreeReservation,
    LeaseTask,
    OpenTask,
    PutDependency,
    PutTask,
    PutTaskCommand,
    ReleaseTask,
    ReopenTask,
    TaskWrite,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

DUE_PAGE: Final = 64
"""How many of the schedule are looked at at once."""

LEASES: Final = (ASSIGNED, RUNNING)

Life = tuple[str, int]
"""A broker's identity and epoch."""
Name = str | tuple[str, str]
"""An id, or a client and a key."""


def is_held(status: int, shelved: bool) -> bool:
    """Whether a task that was written so belongs to its writer."""
    return status in LEASES or (status == QUEUED and not shelved)


class SharedTasks:
    """The tasks of one SharedMemory."""

    __slots__ = ("_after", "_clock_us", "_errands", "_holders", "_orphans", "_reserved", "_tasks")

    def __init__(self, clock_us: Callable[[], int]) -> None:
        self._clock_us = clock_us
        self._tasks = MemoryTasks(TasksSnapshot())
        self._holders: dict[int, str] = {}
        self._orphans: dict[int, int] = {}
        """By seq, since when."""
        self._reserved: dict[Name, Life] = {}
        self._errands: dict[tuple[str, str, str], PutTaskCommand] = {}
        self._after: dict[int, set[int]] = {}
        """What a follower waits for, or has waited for."""

    def __len__(self) -> int:
        """How many have not ended."""
        return len(self._tasks)

    def snapshot(self) -> TasksSnapshot:
        """All tasks as they are now."""
        return self._tasks.snapshot()

    def holder(self, seq: int) -> str:
        """Who holds an open task; empty: nobody."""
        return self._holders.get(seq, "")

    def let_go(self, identity: str) -> None:
        """A broker is gone: what it held is nobody's, and what was queued is on the shelf."""
        for seq in [seq for seq, holder in self._holders.items() if holder == identity]:
            task = self._tasks.open(seq)
            if task is not None and task.status == QUEUED:
                self._tasks.shelve(seq, True)
            self._hold(seq, "")

    def _hold(self, seq: int, holder: str) -> None:
        self._orphans.pop(seq, None)
        if holder:
            self._holders[seq] = holder
            return
        self._holders.pop(seq, None)
        task = self._tasks.open(seq)
        if task is not None and task.status in LEASES:
            self._orphans[seq] = self._clock_us()

    # ---- writes

    def apply(self, life: Life, writes: Iterable[TaskWrite]) -> None:
        """All of them in their order, or none and StoreFailed."""
        commit = _Commit(life, self._tasks, self._holders, self._reserved, self._after)
        try:
            self._tasks.apply(commit.checked(writes))
        except BaseException:
            # What it leaves is only good for a snapshot.
            self._tasks = MemoryTasks(self._tasks.snapshot())
            self._after = {}
            for after_seq, seq in self._tasks.snapshot().follows:
                self._after.setdefault(seq, set()).add(after_seq)
            raise
        for seq, held in commit.held.items():
            self._hold(seq, life[0] if held else "")
        for name in commit.freed:
            if self._reserved.get(name, ("", 0))[0] == life[0]:
                del self._reserved[name]
        for errand in commit.errands:
            self._errands.setdefault((errand.to, errand.kind, errand.id), errand)

    # ---- asks

    def answer(self, life: Life, ask: TaskQuery, is_alive: Callable[[Life], bool]) -> TaskAnswer:
        """As PostgreSQL says it; what it takes, it takes for this broker."""
        match ask:
            case LookUpSubmission():
                return self._find_new(life, ask, is_alive)
            case ReadQueue():
                rows: Any = self._tasks.answer(ask)
                return self._take(life, rows)
            case ReadDependents(after_seq, seq, limit):
                rows = self._tasks.answer(ReadDependents(after_seq, seq, MAX_READ_ROWS))
                ours = [row for row in rows if not self._other(life, row)][: bounded(limit)]
                self._take(life, [row for row in ours if row.status == SCHEDULED])
                return tuple(ours)
            case FindEnded(ids):
                found: Any = self._tasks.answer(FindTasks(ids))
                return tuple(row for row in found if isinstance(row, EndedTask))
            case TakeDue(now_us, limit):
                return self._take(life, list(islice(self._due(now_us), bounded(limit))))
            case TakeOrphans(patience_us, limit):
                last = self._clock_us() - patience_us
                places = sorted((since, seq) for seq, since in self._orphans.items() if since <= last)
                return self._take(life, [self._known(seq) for _, seq in places[: bounded(limit)]])
            case ClaimTasks(ids, node):
                return self._claim(life, ids, node)
            case TakeTaskCommands(limit):
                keys = [key for key in self._errands if key[0] == life[0]][: bounded(limit)]
                return tuple(self._errands.pop(key) for key in keys)
            case PeekBacklog(methods):
                return tuple((method, priority) for method in set(methods) for priority in self._priorities(method))
            case PeekQueue(method, limit):
                return tuple(row.id for row in self._first(method, bounded(limit)))
            case _:
                return self._tasks.answer(ask)

    def _known(self, seq: int) -> OpenTask:
        task = self._tasks.open(seq)
        if task is None:
            raise AssertionError(f"task {seq} is an orphan and not open")
        return task

    def _take(self, life: Life, rows: Iterable[OpenTask]) -> tuple[OpenTask, ...]:
        seqs = [row.seq for row in rows]
        for seq in seqs:
            if self._known(seq).shelved:
                self._tasks.shelve(seq, False)
            self._hold(seq, life[0])
        return tuple(map(self._known, seqs))

    def _claim(self, life: Life, ids: tuple[str, ...], node: str | None) -> tuple[ClaimedTask, ...]:
        found: Any = self._tasks.answer(FindTasks(ids))
        free = [row for row in found if isinstance(row, OpenTask) and row.seq not in self._holders]
        self._take(life, free)
        named: Any = self._tasks.answer(FindTasks(ids))
        claimed = [ClaimedTask(row, self._other(life, row)) for row in named]
        if node is not None:
            orphans = [self._known(seq) for seq in sorted(self._orphans) if self._known(seq).node == node]
            claimed += [ClaimedTask(row) for row in self._take(life, orphans)]
        return tuple(claimed)

    def _other(self, life: Life, row: OpenTask | EndedTask | None) -> str:
        holder = self._holders.get(row.seq, "") if isinstance(row, OpenTask) else ""
        return "" if holder == life[0] else holder

    def _due(self, now_us: int) -> Iterator[OpenTask]:
        page = ReadSchedule(-1, 0, DUE_PAGE)
        while rows := self._tasks.answer(page):
            for row in cast(tuple[OpenTask, ...], rows):
                if row.runnable_us > now_us:
                    return
                if row.seq not in self._holders:
                    yield row
                page = ReadSchedule(row.runnable_us, row.seq, DUE_PAGE)

    def _priorities(self, method: str) -> Iterator[int]:
        places: Any = self._tasks.answer(ReadPriorities(method))
        return (priority for priority, _ in places)

    def _first(self, method: str, limit: int) -> list[OpenTask]:
        rows: list[OpenTask] = []
        for priority in self._priorities(method):
            if len(rows) < limit:
                more: Any = self._tasks.answer(ReadQueue(method, priority, -1, limit - len(rows), 1 << 62))
                rows += more
        return rows

    def _find_new(self, life: Life, ask: LookUpSubmission, is_alive: Callable[[Life], bool]) -> SubmissionLookup:
        found: Any = self._tasks.answer(ask)
        if ask.reserve is None:
            return found  # type: ignore[no-any-return]
        names: list[Name] = [ask.reserve] if ask.reserve else []
        if ask.key is not None:
            names.append((ask.client, ask.key))
        if found.keyed is not None or (ask.reserve and self._tasks.by_id(ask.reserve) is not None):
            return found  # type: ignore[no-any-return]
        for name in names:
            owner = self._reserved.get(name, life)
            if owner[0] != life[0] and is_alive(owner):
                return msgspec.structs.replace(found, busy=True)  # type: ignore[no-any-return]
        self._reserved.update(dict.fromkeys(names, life))
        return found  # type: ignore[no-any-return]


class _Commit:
    """One commit on its way: each write is checked when those before it are done, and what it means is noted."""

    __slots__ = ("_after", "_holders", "_life", "_reserved", "_tasks", "errands", "freed", "held")

    def __init__(
        self,
        life: Life,
        tasks: MemoryTasks,
        holders: dict[int, str],
        reserved: dict[Name, Life],
        after: dict[int, set[int]],
    ) -> None:
        self._life = life
        self._tasks = tasks
        self._holders = holders
        self._reserved = reserved
        self._after = after
        self.held: dict[int, bool] = {}
        """What this commit wrote: it is this broker's until the commit ends, and then perhaps nobody's."""
        self.freed: list[Name] = []
        self.errands: list[PutTaskCommand] = []

    def checked(self, writes: Iterable[TaskWrite]) -> Iterator[TaskWrite]:
        """What the tasks themselves must be told."""
        for write in writes:
            match write:
                case PutTask():
                    self._use(write)
                    self.held[write.seq] = is_held(write.status, write.shelved)
                case LeaseTask(status=status, seq=seq):
                    self._must_hold(seq)
                    self.held[seq] = is_held(status, False)
                case ChangeTask(status=status, shelved=shelved, seq=seq):
                    self._must_hold(seq)
                    self.held[seq] = is_held(status, shelved)
                case EndTask(seq=seq):
                    self._must_hold(seq)
                    self.held[seq] = False
                    yield write
                    for after_seq in self._after.pop(seq, ()):
                        yield DropDependency(after_seq, (seq,))
                    continue
                case ReopenTask(seq=seq):
                    if not self._tasks.can_reopen(seq):
                        continue  # another broker was first, or it was swept
                    self.held[seq] = False
                case ReleaseTask(seq):
                    self._release(seq)
                    continue
                case PutDependency(after_seq, seq):
                    self._after.setdefault(seq, set()).add(after_seq)
                case FreeReservation(id_, client, key):
                    self.freed += [] if id_ is None else [id_]
                    self.freed += [] if key is None else [(client, key)]
                    continue
                case PutTaskCommand():
                    self.errands.append(write)
                    continue
                case _:
                    pass
            yield write

    def _use(self, write: PutTask) -> None:
        """The reservation of a new task's id and key: it must be there, and it is used up."""
        if not write.id.startswith(OWN_IDS) or write.id in self._reserved:
            self._use_name(write.id)
        if write.key is not None:
            self._use_name((write.client, write.key))

    def _use_name(self, name: Name) -> None:
        if self._reserved.get(name) != self._life:
            raise StoreFailed(f"{name!r} is not reserved for this broker: please report this")
        self.freed.append(name)

    def _must_hold(self, seq: int) -> None:
        if seq not in self.held and self._holders.get(seq) != self._life[0]:
            raise StoreFailed(f"task {seq} is not held by this broker: please report this")

    def _release(self, seq: int) -> None:
        self._must_hold(seq)
        task = self._tasks.open(seq)
        if task is None or task.status not in LEASES:
            raise StoreFailed(f"task {seq} is not leased: please report this")
        self.held[seq] = False

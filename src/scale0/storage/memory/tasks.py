"""Tasks in memory: for tests and the simulated world.

Lives here: `MemoryTasks`. Never here: a file. Invariants: it answers as the SQLite twin does; of writes that fail
nothing is in a snapshot.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from scale0.storage.interface import FIRST_TASK_SEQ, StoreFailed
from scale0.storage.memory.task_pages import list_tasks
from scale0.storage.rows import MAX_INTEGER, TaskAnswer, bounded
from scale0.storage.task_queries import (
    ClaimedTask,
    ClaimTasks,
    CountTasks,
    FindTasks,
    ListTasks,
    LookUpSubmission,
    ReadDependents,
    ReadEndedDependencies,
    ReadExpiry,
    ReadPriorities,
    ReadQueue,
    ReadSchedule,
    SubmissionLookup,
    TaskQuery,
)
from scale0.storage.task_rows import (
    ASSIGNED,
    FINISHED,
    QUEUED,
    RUNNING,
    SCHEDULED,
    ChangeTask,
    DropDependency,
    DropTaskClient,
    EndedTask,
    EndTask,
    LeaseTask,
    OpenTask,
    PutDependency,
    PutTask,
    PutTaskClient,
    ReopenTask,
    SweepTasks,
    TaskClient,
    TaskWrite,
    reopened,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

SPARE_ITEMS: Final = 64
"""How many forgotten items an Ordered keeps before it makes room, beside as many as it has."""


class TasksSnapshot(msgspec.Struct, frozen=True):
    """All tasks, at one moment."""

    open: dict[int, OpenTask] = {}
    ended: dict[int, EndedTask] = {}
    follows: dict[tuple[int, int], bool] = {}
    """(after_seq, seq), always true: a set that can be written as the others are."""
    clients: dict[str, TaskClient] = {}
    next_seq: int = FIRST_TASK_SEQ


class SortedSet:
    """A sorted set. What is dropped stays in the list until half of it is such, so that a queue's head is cheap."""

    __slots__ = ("_items", "_live")

    def __init__(self) -> None:
        self._items: list[Any] = []
        self._live: set[Any] = set()

    def add(self, item: Any) -> None:
        """Put it at its place; twice is once."""
        if item in self._live:
            return
        self._live.add(item)
        if not self._items or item > self._items[-1]:
            self._items.append(item)
            return
        place = bisect_left(self._items, item)
        if self._items[place] != item:
            self._items.insert(place, item)

    def drop(self, item: Any) -> None:
        """Forget it; one that is not there is no error."""
        self._live.discard(item)
        if len(self._items) > 2 * len(self._live) + SPARE_ITEMS:
            self._items = [each for each in self._items if each in self._live]

    def after(self, item: Any) -> Iterator[Any]:
        """Those that are larger, in order."""
        start = bisect_right(self._items, item)
        return (each for each in islice(self._items, start, None) if each in self._live)

    def last(self) -> Any:
        """The largest; None: it is empty."""
        return next((each for each in reversed(self._items) if each in self._live), None)


class MemoryTasks:
    """The tasks of one MemoryStore."""

    __slots__ = (
        *("_clients", "_ended", "_expiry", "_followers", "_follows", "_ids", "_keys", "_open", "_schedule", "_shelf"),
        *("_undo", "next_seq"),
    )

    def __init__(self, start: TasksSnapshot) -> None:
        self._open = dict(start.open)
        self._ended = dict(start.ended)
        self._follows = dict(start.follows)
        self._clients = dict(start.clients)
        self.next_seq = start.next_seq
        tasks: Iterable[OpenTask | EndedTask] = (*self._open.values(), *self._ended.values())
        self._ids = {task.id: task.seq for task in tasks}
        self._keys = {(task.client, task.key): task.seq for task in tasks if task.key is not None}
        self._undo: list[tuple[dict[Any, Any], Any, Any]] = []
        self._index()

    def _index(self) -> None:
        self._shelf: dict[tuple[str, int], SortedSet] = {}
        self._schedule = SortedSet()
        self._expiry = SortedSet()
        self._followers: dict[int, SortedSet] = {}
        for task in self._open.values():
            self._enter(task)
        for ended in self._ended.values():
            self._expiry.add((ended.expires_us, ended.seq))
        for after_seq, seq in self._follows:
            self._followers.setdefault(after_seq, SortedSet()).add(seq)

    def snapshot(self) -> TasksSnapshot:
        """All of it; later writes do not change it."""
        return TasksSnapshot(
            dict(self._open), dict(self._ended), dict(self._follows), dict(self._clients), self.next_seq
        )

    def __len__(self) -> int:
        """How many have not ended."""
        return len(self._open)

    def __iter__(self) -> Iterator[OpenTask]:
        """Those that have not ended, in no order."""
        return iter(self._open.values())

    def open(self, seq: int) -> OpenTask | None:
        """One that has not ended."""
        return self._open.get(seq)

    def can_reopen(self, seq: int) -> bool:
        """It has ended, and was not finished."""
        return seq in self._ended and self._ended[seq].status != FINISHED

    def shelve(self, seq: int, shelved: bool) -> None:
        """Put an open one on the shelf, or take it off, between two commits."""
        self._set_open(seq, msgspec.structs.replace(self._open[seq], shelved=shelved))
        self._undo.clear()

    def begin(self) -> tuple[OpenTask, ...]:
        """A process begins, and holds nothing: all that is queued goes on the shelf. What is handed out."""
        for task in list(self._open.values()):
            if task.status == QUEUED and not task.shelved:
                self._set_open(task.seq, msgspec.structs.replace(task, shelved=True))
        self._undo.clear()
        leased = (task for task in self._open.values() if task.status in (ASSIGNED, RUNNING))
        return tuple(sorted(leased, key=lambda task: task.seq))

    # ---- writes

    def apply(self, writes: Iterable[TaskWrite]) -> None:
        """All of them in their order, or none and StoreFailed: then only a snapshot may be taken."""
        next_seq = self.next_seq
        try:
            for write in writes:
                self._apply(write)
        except BaseException:
            while self._undo:
                table, key, old = self._undo.pop()
                _put(table, key, old)
            self.next_seq = next_seq
            raise
        self._undo.clear()

    def _apply(self, write: TaskWrite) -> None:
        _check_integers(write)
        match write:
            case PutTask():
                self._put_task(write)
            case LeaseTask():
                self._change(shelved=False, **msgspec.structs.asdict(write))
            case ChangeTask():
                self._change(**msgspec.structs.asdict(write))
            case EndTask():
                self._end(write)
            case ReopenTask(seq, runnable_us):
                self._reopen(seq, runnable_us)
            case SweepTasks(before_us, limit):
                places = self._expiry.after((-MAX_INTEGER, 0))
                for expires_us, seq in list(islice(places, bounded(limit))):
                    if expires_us <= before_us:
                        self._forget(seq)
            case PutDependency(after_seq, seq):
                self._set(self._follows, (after_seq, seq), True)
                self._followers.setdefault(after_seq, SortedSet()).add(seq)
            case DropDependency(after_seq, seqs):
                followers = self._followers.get(after_seq, SortedSet())
                for seq in list(followers.after(-1)):
                    if seqs is None or seq in seqs:
                        self._set(self._follows, (after_seq, seq), None)
                        followers.drop(seq)
                if followers.last() is None:
                    self._followers.pop(after_seq, None)
            case PutTaskClient(name, owner, heard_us):
                known = self._clients.get(name)
                self._set(self._clients, name, TaskClient(name, known.owner if known else owner, heard_us))
            case DropTaskClient(name):
                self._set(self._clients, name, None)

    def _put_task(self, write: PutTask) -> None:
        if write.seq in self._open or write.seq in self._ended:
            raise StoreFailed(f"task {write.seq} is there already: please report this")
        if write.id in self._ids:
            raise StoreFailed(f"a task with the id {write.id!r} is there already: please report this")
        self._set(self._ids, write.id, write.seq)
        if write.key is not None:
            if (write.client, write.key) in self._keys:
                raise StoreFailed(f"a task with the key {write.key!r} is there already: please report this")
            self._set(self._keys, (write.client, write.key), write.seq)
        self._set_open(write.seq, OpenTask(*msgspec.structs.astuple(write)))
        self.next_seq = max(self.next_seq, write.seq + 1)

    def _change(self, seq: int, **changes: Any) -> None:
        self._set_open(seq, msgspec.structs.replace(self._must(self._open, seq), **changes))

    def _end(self, write: EndTask) -> None:
        task = self._must(self._open, write.seq)
        self._set_open(write.seq, None)
        ended = EndedTask(
            seq=task.seq,
            id=task.id,
            client=task.client,
            method=task.method,
            params=b"" if write.status == FINISHED else task.params,
            priority=task.priority,
            status=write.status,
            attempt=write.attempt,
            starts=write.starts,
            node=write.node,
            submitted_us=task.submitted_us,
            started_us=write.started_us,
            ended_us=write.ended_us,
            expires_us=write.expires_us,
            key=task.key,
            options=task.options,
            result=write.result,
            info=write.info,
            history=write.history,
        )
        self._set(self._ended, ended.seq, ended)
        self._expiry.add((ended.expires_us, ended.seq))

    def _reopen(self, seq: int, runnable_us: int) -> None:
        task = self._must(self._ended, seq)
        if task.status == FINISHED:
            raise StoreFailed(f"task {seq} is finished and has no params any more: please report this")
        self._set(self._ended, seq, None)
        self._expiry.drop((task.expires_us, seq))
        self._set_open(seq, reopened(task, runnable_us, seq in self._followers))

    def _forget(self, seq: int) -> None:
        task = self._ended[seq]
        self._set(self._ended, seq, None)
        self._set(self._ids, task.id, None)
        if task.key is not None:
            self._set(self._keys, (task.client, task.key), None)
        self._expiry.drop((task.expires_us, seq))

    def _must(self, table: dict[int, Any], seq: int) -> Any:
        if seq not in table:
            raise StoreFailed(f"task {seq} is not there to be changed: please report this")
        return table[seq]

    def _set_open(self, seq: int, task: OpenTask | None) -> None:
        old = self._open.get(seq)
        if old is not None:
            self._leave(old)
        if task is not None:
            self._enter(task)
        self._set(self._open, seq, task)

    def _enter(self, task: OpenTask) -> None:
        if task.status == QUEUED and task.shelved:
            self._shelf.setdefault((task.method, task.priority), SortedSet()).add(task.seq)
        elif task.status == SCHEDULED and task.waits == 0:
            self._schedule.add((task.runnable_us, task.seq))

    def _leave(self, task: OpenTask) -> None:
        if task.status == QUEUED and task.shelved:
            self._shelf[task.method, task.priority].drop(task.seq)
        elif task.status == SCHEDULED and task.waits == 0:
            self._schedule.drop((task.runnable_us, task.seq))

    def _set(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        self._undo.append((table, key, table.get(key)))
        _put(table, key, value)

    # ---- asks

    def answer(self, ask: TaskQuery) -> TaskAnswer:
        """As the SQLite twin says it."""
        match ask:
            case FindTasks(ids):
                return tuple(map(self.by_id, ids))
            case ClaimTasks(ids):
                return tuple(ClaimedTask(self.by_id(name)) for name in ids)
            case LookUpSubmission(client, ids, key, series):
                keyed = None if key is None else self._by_seq(self._keys.get((client, key)))
                last = "" if series is None else max(filter(_starts(f"{series}."), self._ids), default="")
                return SubmissionLookup(self._clients.get(client), tuple(map(self.by_id, ids)), keyed, last)
            case ReadQueue():
                return tuple(self._queue(ask))
            case ReadPriorities(method):
                found = [(key[1], shelf.last()) for key, shelf in self._shelf.items() if key[0] == method]
                return tuple(sorted(((priority, seq) for priority, seq in found if seq is not None), reverse=True))
            case ReadSchedule(after_us, after_seq, limit):
                places = islice(self._schedule.after((after_us, after_seq)), bounded(limit))
                return tuple(self._open[seq] for _, seq in places)
            case ReadDependents(after_seq, seq, limit):
                seqs = self._followers.get(after_seq, SortedSet()).after(seq)
                return tuple(islice((self._open[each] for each in seqs if each in self._open), bounded(limit)))
            case ReadEndedDependencies(limit):
                seqs = (seq for seq in sorted(self._followers) if seq in self._ended)
                return tuple(self._ended[seq] for seq in islice(seqs, bounded(limit)))
            case ReadExpiry():
                place = next(self._expiry.after((-MAX_INTEGER, 0)), None)
                return None if place is None else int(place[0])
            case CountTasks():
                return dict(Counter(task.status for task in self._open.values()))
            case ListTasks():
                return list_tasks(self._open, self._ended, ask)
            case _:
                raise TypeError(f"{type(ask).__name__}: this store is not shared")

    def by_id(self, name: str) -> OpenTask | EndedTask | None:
        """Open or ended."""
        return self._by_seq(self._ids.get(name))

    def _by_seq(self, seq: int | None) -> OpenTask | EndedTask | None:
        if seq is None:
            return None
        return self._open.get(seq) or self._ended[seq]

    def _queue(self, ask: ReadQueue) -> Iterator[OpenTask]:
        size = 0
        shelf = self._shelf.get((ask.method, ask.priority), SortedSet())
        for seq in islice(shelf.after(ask.after_seq), bounded(ask.limit)):
            yield self._open[seq]
            size += len(self._open[seq].params)
            if size >= ask.max_bytes:
                return


def _starts(prefix: str) -> Callable[[str], bool]:
    return lambda name: name.startswith(prefix)


def _put(table: dict[Any, Any], key: Any, value: Any) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def _check_integers(write: TaskWrite) -> None:
    for value in msgspec.structs.astuple(write):
        if type(value) is int and not -MAX_INTEGER <= value <= MAX_INTEGER:
            raise StoreFailed(f"{value} does not fit a store's integer")

"""Tasks in memory, for tests and the simulator; answers equal those of SQLite, and failed writes leave no trace."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

import msgspec

from scale0.storage import rows as limits
from scale0.storage import task_queries as queries
from scale0.storage import task_rows
from scale0.storage.interface import FIRST_TASK_SEQ, Handlers, StoreFailed, dispatch
from scale0.storage.rows import MAX_INTEGER, TaskAnswer, bounded
from scale0.storage.task_rows import EndedTask, OpenTask

SPARE_ITEMS: Final = 64
"""How many dropped items a SortedSet keeps before it compacts, beside as many as it has."""


class TasksSnapshot(msgspec.Struct, frozen=True):
    """All tasks, at one moment."""

    open: dict[int, OpenTask] = {}
    ended: dict[int, EndedTask] = {}
    dependencies: dict[tuple[int, int], bool] = {}
    """(after_seq, seq), always true: a set that can be undone like the other tables."""
    clients: dict[str, task_rows.TaskClient] = {}
    next_seq: int = FIRST_TASK_SEQ
    usage: dict[str, task_rows.TaskUsage] = {}


class SortedSet:
    """A sorted set. A dropped item stays in the list until half of it is such, so that dropping the first is cheap."""

    __slots__ = ("_items", "_live")

    def __init__(self) -> None:
        self._items: list[Any] = []
        self._live: set[Any] = set()

    def add(self, item: Any) -> None:
        if item in self._live:
            return
        self._live.add(item)
        if not self._items or item > self._items[-1]:
            self._items.append(item)
            return
        index = bisect_left(self._items, item)
        if self._items[index] != item:
            self._items.insert(index, item)

    def drop(self, item: Any) -> None:
        self._live.discard(item)
        if len(self._items) > 2 * len(self._live) + SPARE_ITEMS:
            self._items = [each for each in self._items if each in self._live]

    def after(self, item: Any) -> Iterator[Any]:
        """The larger items, in order."""
        start = bisect_right(self._items, item)
        return (each for each in islice(self._items, start, None) if each in self._live)

    def last(self) -> Any:
        """The largest; None: it is empty."""
        return next((each for each in reversed(self._items) if each in self._live), None)


class MemoryTasks:
    """The tasks of one MemoryStore."""

    def __init__(self, start: TasksSnapshot) -> None:
        self._open = dict(start.open)
        self._ended = dict(start.ended)
        self._dependencies = dict(start.dependencies)
        self._clients = dict(start.clients)
        self._usage = dict(start.usage)
        self.next_seq = start.next_seq
        tasks: Iterable[OpenTask | EndedTask] = (*self._open.values(), *self._ended.values())
        self._ids = {task.id: task.seq for task in tasks}
        self._keys = {(task.client, task.key, task.owner): task.seq for task in tasks if task.key is not None}
        self._undo: list[tuple[dict[Any, Any], Any, Any]] = []
        self._freeing: list[tuple[str, int]] = []
        """Of the commit that is being applied."""
        self._freed: list[tuple[str, int]] = []
        self._index()

    def _index(self) -> None:
        self._backlog: dict[tuple[str, int], SortedSet] = {}
        self._backlog_of: dict[tuple[str, int, str], SortedSet] = {}
        """By method, priority and submitter."""
        self._schedule = SortedSet()
        self._expiry = SortedSet()
        self._dependents: dict[int, SortedSet] = {}
        for task in self._open.values():
            self._add_to_index(task)
        for each in self._ended.values():
            self._expiry.add((each.expires_us, each.seq))
        for after_seq, seq in self._dependencies:
            self._dependents.setdefault(after_seq, SortedSet()).add(seq)

    def snapshot(self) -> TasksSnapshot:
        """A copy; later writes do not change it."""
        return TasksSnapshot(
            dict(self._open),
            dict(self._ended),
            dict(self._dependencies),
            dict(self._clients),
            self.next_seq,
            dict(self._usage),
        )

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[OpenTask]:
        """The open tasks, in no order."""
        return iter(self._open.values())

    def open(self, seq: int) -> OpenTask | None:
        return self._open.get(seq)

    def can_reopen(self, seq: int) -> bool:
        return seq in self._ended and self._ended[seq].status != task_rows.FINISHED

    def set_shelved(self, seq: int, shelved: bool) -> None:
        """Move an open task to the stored backlog, or out of it, between two commits."""
        self._set_open(seq, msgspec.structs.replace(self._open[seq], shelved=shelved))
        self._undo.clear()

    def start(self) -> tuple[OpenTask, ...]:
        """A process starts and holds nothing: all queued tasks go to the stored backlog. The leased tasks, without
        large params."""
        for task in list(self._open.values()):
            if task.status == task_rows.QUEUED and not task.shelved:
                self._set_open(task.seq, msgspec.structs.replace(task, shelved=True))
        self._undo.clear()
        leased = (task for task in self._open.values() if task.status in (task_rows.ASSIGNED, task_rows.RUNNING))
        return without_large_params(sorted(leased, key=lambda task: task.seq))

    def usage(self) -> tuple[task_rows.TaskUsage, ...]:
        return tuple(self._usage[account] for account in sorted(self._usage))

    # ---- writes

    def apply(self, writes: Iterable[task_rows.TaskWrite]) -> None:
        """Apply all writes in their order, or none and raise: then only a snapshot may be taken."""
        next_seq = self.next_seq
        try:
            for write in writes:
                _check_integers(write)
                dispatch(_WRITES, self, write)
        except BaseException:
            while self._undo:
                table, key, old = self._undo.pop()
                _put(table, key, old)
            self.next_seq = next_seq
            raise
        self._undo.clear()
        freed, self._freeing = self._freeing, []
        self._freed += freed

    def _put_task(self, write: task_rows.PutTask) -> None:
        if write.seq in self._open or write.seq in self._ended:
            raise StoreFailed(f"task {write.seq} exists already. Please report this.")
        if write.id in self._ids:
            raise StoreFailed(f"a task with the id {write.id!r} exists already. Please report this.")
        self._set(self._ids, write.id, write.seq)
        if write.key is not None:
            if (write.client, write.key, write.owner) in self._keys:
                raise StoreFailed(f"a task with the key {write.key!r} exists already. Please report this.")
            self._set(self._keys, (write.client, write.key, write.owner), write.seq)
        self._set_open(write.seq, task_rows.opened(write))
        self.next_seq = max(self.next_seq, write.seq + 1)

    def _lease(self, write: task_rows.LeaseTask) -> None:
        self._change(write, shelved=False)

    def _change(self, write: task_rows.LeaseTask | task_rows.ChangeTask, **changes: Any) -> None:
        task = self._expect(self._open, write.seq)
        self._set_open(write.seq, msgspec.structs.replace(task, **msgspec.structs.asdict(write), **changes))

    def _end(self, write: task_rows.EndTask) -> None:
        task = task_rows.ended(self._expect(self._open, write.seq), write)
        self._set_open(write.seq, None)
        self._set(self._ended, task.seq, task)
        self._expiry.add((task.expires_us, task.seq))

    def _reopen(self, write: task_rows.ReopenTask) -> None:
        seq = write.seq
        task = self._expect(self._ended, seq)
        if task.status == task_rows.FINISHED:
            raise StoreFailed(f"task {seq} cannot be reopened: it is finished and has no params. Please report this.")
        self._set(self._ended, seq, None)
        self._expiry.drop((task.expires_us, seq))
        self._free(task)
        self._set_open(seq, task_rows.reopened(task, write.runnable_us, seq in self._dependents))

    def _sweep(self, write: task_rows.SweepTasks) -> None:
        expiries = list(islice(self._expiry.after((-MAX_INTEGER, 0)), bounded(write.limit)))
        for seq in (seq for expires_us, seq in expiries if expires_us <= write.before_us):
            task = self._ended[seq]
            self._set(self._ended, seq, None)
            self._set(self._ids, task.id, None)
            if task.key is not None:
                self._set(self._keys, (task.client, task.key, task.owner), None)
            self._expiry.drop((task.expires_us, seq))
            self._free(task)

    def _free(self, task: EndedTask) -> None:
        """An ended task is deleted or opened again."""
        account, size = task_rows.account_name(task.owner, task.client), task_rows.kept_bytes(task)
        self._add_usage(task_rows.AddTaskUsage(account, 0, 0, 0, -size))
        self._freeing.append((account, size))

    def _put_dependency(self, write: task_rows.PutDependency) -> None:
        self._set(self._dependencies, (write.after_seq, write.seq), True)
        self._dependents.setdefault(write.after_seq, SortedSet()).add(write.seq)

    def _drop_dependency(self, write: task_rows.DropDependency) -> None:
        dependents = self._dependents.get(write.after_seq, SortedSet())
        for seq in list(dependents.after(-1)):
            if write.seqs is None or seq in write.seqs:
                self._set(self._dependencies, (write.after_seq, seq), None)
                dependents.drop(seq)
        if dependents.last() is None:
            self._dependents.pop(write.after_seq, None)

    def _put_client(self, write: task_rows.PutTaskClient) -> None:
        known = self._clients.get(write.id)
        owner = write.owner if known is None else known.owner
        self._set(self._clients, write.id, task_rows.TaskClient(write.id, owner, write.heard_us))

    def _drop_client(self, write: task_rows.DropTaskClient) -> None:
        known = self._clients.get(write.id)
        if known is not None and known.heard_us <= write.heard_us:
            self._set(self._clients, write.id, None)

    def _add_usage(self, write: task_rows.AddTaskUsage) -> None:
        old = self._usage.get(write.account) or task_rows.TaskUsage(write.account, 0, 0, 0)
        new = task_rows.TaskUsage(
            *(write.account, old.tasks + write.tasks, old.bytes + write.bytes, old.delayed + write.delayed),
            kept=old.kept + write.kept,
        )
        self._set(self._usage, write.account, new if new.tasks or new.kept else None)

    def _expect(self, table: dict[int, Any], seq: int) -> Any:
        if seq not in table:
            raise StoreFailed(f"task {seq} does not exist and cannot be changed. Please report this.")
        return table[seq]

    def _set_open(self, seq: int, task: OpenTask | None) -> None:
        old = self._open.get(seq)
        if old is not None:
            self._remove_from_index(old)
        if task is not None:
            self._add_to_index(task)
        self._set(self._open, seq, task)

    def _add_to_index(self, task: OpenTask) -> None:
        if task.status == task_rows.QUEUED and task.shelved:
            for backlog, key in self._backlogs(task):
                backlog.setdefault(key, SortedSet()).add(task.seq)
        elif task.status == task_rows.SCHEDULED and task.waits == 0:
            self._schedule.add((task.runnable_us, task.seq))

    def _remove_from_index(self, task: OpenTask) -> None:
        if task.status == task_rows.QUEUED and task.shelved:
            for backlog, key in self._backlogs(task):
                backlog[key].drop(task.seq)
        elif task.status == task_rows.SCHEDULED and task.waits == 0:
            self._schedule.drop((task.runnable_us, task.seq))

    def _backlogs(self, task: OpenTask) -> tuple[tuple[dict[Any, SortedSet], Any], ...]:
        """The indexes of the stored backlog, and the key of this task in each."""
        place = (task.method, task.priority)
        return (self._backlog, place), (self._backlog_of, (*place, task_rows.account_name(task.owner, task.client)))

    def _set(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        self._undo.append((table, key, table.get(key)))
        _put(table, key, value)

    # ---- queries

    def answer(self, query: queries.TaskQuery) -> TaskAnswer:
        answer: TaskAnswer = dispatch(TASK_ANSWERS, self, query)
        return answer

    def by_id(self, name: str) -> OpenTask | EndedTask | None:
        return self._by_seq(self._ids.get(name))

    def _by_seq(self, seq: int | None) -> OpenTask | EndedTask | None:
        if seq is None:
            return None
        return self._open.get(seq) or self._ended[seq]

    def _find(self, query: queries.FindTasks) -> tuple[OpenTask | EndedTask | None, ...]:
        return tuple(map(self._brief if query.brief else self.by_id, query.ids))

    def _brief(self, name: str) -> OpenTask | EndedTask | None:
        return _without_large(self.by_id(name))

    def _read_results(self, query: queries.ReadResults) -> tuple[tuple[int, bytes, int] | None, ...]:
        results: list[tuple[int, bytes, int] | None] = []
        size = 0
        for seq in query.seqs:
            task = self._ended.get(seq)
            size += 0 if task is None else len(task.result)
            if results and size > query.max_bytes:
                break
            results.append(None if task is None else (task.status, task.result, task.result_sum))
        return tuple(results)

    def _claim(self, query: queries.ClaimTasks) -> tuple[queries.ClaimedTask, ...]:
        return tuple(queries.ClaimedTask(self.by_id(name)) for name in query.ids)

    def _look_up(self, query: queries.LookUpSubmission) -> queries.SubmissionLookup:
        keyed = None
        if query.key is not None:
            without_owner = self._keys.get((query.client, query.key, ""))
            seq = self._keys.get((query.client, query.key, query.owner), without_owner)
            keyed = _without_large(self._by_seq(seq))
        series = "" if query.series is None else f"{query.series}."
        last = max((name for name in self._ids if name.startswith(series)), default="") if series else ""
        return queries.SubmissionLookup(
            self._clients.get(query.client), tuple(map(self._brief, query.ids)), keyed, last
        )

    def _read_queue(self, query: queries.ReadQueue) -> tuple[OpenTask, ...]:
        tasks: list[OpenTask] = []
        size = 0
        place = (query.method, query.priority)
        if query.owner is None:
            backlog = self._backlog.get(place, SortedSet())
        else:
            backlog = self._backlog_of.get((*place, query.owner), SortedSet())
        for seq in islice(backlog.after(query.after_seq), bounded(query.limit)):
            tasks.append(self._open[seq])
            size += len(self._open[seq].params)
            if size >= query.max_bytes:
                break
        return tuple(tasks)

    def _read_owners(self, query: queries.ReadOwners) -> tuple[tuple[int, str, int], ...]:
        lasts = [(*key[1:], backlog.last()) for key, backlog in self._backlog_of.items() if key[0] == query.method]
        found = [row for row in lasts if row[2] is not None]
        return tuple(sorted(found, key=lambda row: (-row[0], row[1])))

    def _read_priorities(self, query: queries.ReadPriorities) -> tuple[tuple[int, int], ...]:
        lasts = [(key[1], backlog.last()) for key, backlog in self._backlog.items() if key[0] == query.method]
        return tuple(sorted(((priority, seq) for priority, seq in lasts if seq is not None), reverse=True))

    def _read_schedule(self, query: queries.ReadSchedule) -> tuple[Any, ...]:
        due = islice(self._schedule.after((query.after_us, query.after_seq)), bounded(query.limit))
        return tuple(_without_large(self._open[seq]) for _, seq in due)

    def _read_dependents(self, query: queries.ReadDependents) -> tuple[OpenTask, ...]:
        seqs = self._dependents.get(query.after_seq, SortedSet()).after(query.seq)
        return tuple(islice((self._open[seq] for seq in seqs if seq in self._open), bounded(query.limit)))

    def _read_ended_dependencies(self, query: queries.ReadEndedDependencies) -> tuple[Any, ...]:
        seqs = (seq for seq in sorted(self._dependents) if seq in self._ended)
        return tuple(_without_large(self._ended[seq]) for seq in islice(seqs, bounded(query.limit)))

    def _read_expiry(self, query: queries.ReadExpiry) -> int | None:
        if query.last:
            return max((task.expires_us for task in self._ended.values()), default=None)
        first = next(self._expiry.after((-MAX_INTEGER, 0)), None)
        return None if first is None else int(first[0])

    def _take_freed(self, _: queries.TakeFreed) -> tuple[tuple[str, int], ...]:
        freed, self._freed = self._freed, []
        return tuple(freed)

    def _count_clients(self, _: queries.CountTaskClients) -> dict[str, int]:
        return dict(Counter(client.owner for client in self._clients.values()))

    def _read_unused_clients(self, query: queries.ReadUnusedClients) -> tuple[str, ...]:
        used = {task.client for tasks in (self._open, self._ended) for task in tasks.values()}
        unheard = {each.id for each in self._clients.values() if each.heard_us <= query.heard_us}
        return tuple(sorted(unheard - used)[: bounded(query.limit)])

    def _count(self, _: queries.CountTasks) -> dict[int, int]:
        return dict(Counter(task.status for task in self._open.values()))

    def _list(self, query: queries.ListTasks) -> queries.TaskPage:
        """A page of both tables, newest first; it begins and ends where a page of SQLite does."""
        limit = max(1, bounded(query.limit))
        scans: list[tuple[list[Any], int | None]] = []
        if query.status is None or query.status in task_rows.OPEN_STATUSES:
            scans.append(_scan(self._open, query, limit, by=()))
        if query.status is None or query.status in task_rows.ENDED_STATUSES:
            rare = query.status is not None and query.status != task_rows.FINISHED
            scans.append(_scan(self._ended, query, limit, by=("status",) if rare else ("method",)))
        lowest = max((stopped for _, stopped in scans if stopped is not None), default=None)
        selected = sorted(
            (task for tasks, _ in scans for task in tasks if lowest is None or task.seq >= lowest),
            key=lambda task: -task.seq,
        )
        page = tuple(map(_without_large_fields, selected[:limit]))
        return queries.TaskPage(page, page[-1].seq if len(selected) > limit else lowest)


def _scan(
    table: dict[int, Any], query: queries.ListTasks, limit: int, by: tuple[str, ...]
) -> tuple[list[Any], int | None]:
    """The selected tasks of a table, one more than a page at most; and where the scan stopped, None at its end.

    SQLite has an index for `by`: it does not pass other rows. For the other filters it scans a limited number of rows.
    """
    wanted = {name: value for name in ("status", "method", "client") if (value := getattr(query, name)) is not None}
    indexed = {name: value for name, value in wanted.items() if name in by}
    seqs = sorted((seq for seq in table if query.before_seq is None or seq < query.before_seq), reverse=True)
    tasks = [table[seq] for seq in seqs if _matches(table[seq], indexed)]
    stopped = None
    if len(wanted) > len(indexed) and len(tasks) >= limits.LIST_SCAN_ROWS:
        tasks = tasks[: limits.LIST_SCAN_ROWS]
        stopped = tasks[-1].seq
    tasks = [task for task in tasks if _matches(task, wanted)]
    if len(tasks) > limit:
        return tasks[: limit + 1], tasks[limit].seq
    return tasks, stopped


def _matches(task: OpenTask | EndedTask, wanted: dict[str, Any]) -> bool:
    return all(getattr(task, name) == value for name, value in wanted.items())


def without_large_params(tasks: Iterable[OpenTask]) -> tuple[OpenTask, ...]:
    """Leased tasks as a broker reads them."""
    return tuple(
        task if task.size <= task_rows.KEPT_PARAMS_BYTES else msgspec.structs.replace(task, params=b"")
        for task in tasks
    )


def _without_large(task: OpenTask | EndedTask | None) -> OpenTask | EndedTask | None:
    if task is None:
        return None
    if isinstance(task, OpenTask):
        return msgspec.structs.replace(task, params=b"")
    return msgspec.structs.replace(task, params=b"", result=b"")


def _without_large_fields(task: OpenTask | EndedTask) -> OpenTask | EndedTask:
    if isinstance(task, OpenTask):
        return msgspec.structs.replace(task, params=b"", options=b"")
    return msgspec.structs.replace(task, params=b"", options=b"", result=b"")


def _put(table: dict[Any, Any], key: Any, value: Any) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def _check_integers(write: task_rows.TaskWrite) -> None:
    for value in msgspec.structs.astuple(write):
        if type(value) is int and not -MAX_INTEGER <= value <= MAX_INTEGER:
            raise StoreFailed(f"{value} does not fit a store's integer")


_WRITES: Final[Handlers] = {
    task_rows.PutTask: MemoryTasks._put_task,
    task_rows.LeaseTask: MemoryTasks._lease,
    task_rows.ChangeTask: MemoryTasks._change,
    task_rows.EndTask: MemoryTasks._end,
    task_rows.ReopenTask: MemoryTasks._reopen,
    task_rows.SweepTasks: MemoryTasks._sweep,
    task_rows.PutDependency: MemoryTasks._put_dependency,
    task_rows.DropDependency: MemoryTasks._drop_dependency,
    task_rows.PutTaskClient: MemoryTasks._put_client,
    task_rows.DropTaskClient: MemoryTasks._drop_client,
    task_rows.AddTaskUsage: MemoryTasks._add_usage,
}

TASK_ANSWERS: Final[Handlers] = {
    queries.FindTasks: MemoryTasks._find,
    queries.ReadResults: MemoryTasks._read_results,
    queries.ClaimTasks: MemoryTasks._claim,
    queries.LookUpSubmission: MemoryTasks._look_up,
    queries.ReadQueue: MemoryTasks._read_queue,
    queries.ReadOwners: MemoryTasks._read_owners,
    queries.ReadPriorities: MemoryTasks._read_priorities,
    queries.ReadSchedule: MemoryTasks._read_schedule,
    queries.ReadDependents: MemoryTasks._read_dependents,
    queries.ReadEndedDependencies: MemoryTasks._read_ended_dependencies,
    queries.ReadExpiry: MemoryTasks._read_expiry,
    queries.TakeFreed: MemoryTasks._take_freed,
    queries.CountTaskClients: MemoryTasks._count_clients,
    queries.ReadUnusedClients: MemoryTasks._read_unused_clients,
    queries.CountTasks: MemoryTasks._count,
    queries.ListTasks: MemoryTasks._list,
}

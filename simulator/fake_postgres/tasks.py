"""The tasks of a shared store in memory: holders, reservations, and commands between brokers.

A task in the stored backlog has no holder, a lease without a holder has the time since when, and failed writes leave no
trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from scale0.storage import task_queries as queries
from scale0.storage import task_rows
from scale0.storage.interface import Handlers, StoreFailed, dispatch
from scale0.storage.memory.tasks import MemoryTasks, TasksSnapshot, without_large_params
from scale0.storage.rows import MAX_READ_ROWS, TaskAnswer, bounded

DUE_PAGE: Final = 64
"""How many rows of the schedule are read at once."""

LEASES: Final = (task_rows.ASSIGNED, task_rows.RUNNING)

Name = str | tuple[str, str, str]
"""An id, or a client, a key and their owner."""


class Epoch(NamedTuple):
    """A broker in one of its epochs."""

    identity: str
    number: int


def is_held(status: int, shelved: bool) -> bool:
    """Whether the writer holds a task with this status."""
    return status in LEASES or (status == task_rows.QUEUED and not shelved)


class SharedTasks:
    """The tasks of one FakeDatabase."""

    def __init__(self, clock_us: Callable[[], int]) -> None:
        self._clock_us = clock_us
        self._tasks = MemoryTasks(TasksSnapshot())
        self._holders: dict[int, str] = {}
        self._orphans: dict[int, int] = {}
        """By seq: since when."""
        self._reserved: dict[Name, Epoch] = {}
        self._commands: dict[tuple[str, str, str], task_rows.PutTaskCommand] = {}
        self._after: dict[int, set[int]] = {}
        """By seq: the tasks that it depends on, or depended on."""

    def usage(self) -> tuple[task_rows.TaskUsage, ...]:
        return self._tasks.usage()

    def snapshot(self) -> TasksSnapshot:
        return self._tasks.snapshot()

    def holder(self, seq: int) -> str:
        """The broker that holds an open task; empty: none."""
        return self._holders.get(seq, "")

    def release_all(self, identity: str) -> None:
        """A broker is gone: nobody holds its tasks, and its queued tasks return to the stored backlog."""
        for seq in [seq for seq, holder in self._holders.items() if holder == identity]:
            task = self._tasks.open(seq)
            if task is not None and task.status == task_rows.QUEUED:
                self._tasks.set_shelved(seq, True)
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

    def apply(self, epoch: Epoch, writes: Iterable[task_rows.TaskWrite]) -> None:
        """Apply all writes in their order, or none and raise StoreFailed."""
        commit = _Commit(epoch, self._tasks, self._holders, self._reserved, self._after)
        try:
            self._tasks.apply(commit.checked(writes))
        except BaseException:
            # After a failure only a snapshot may be taken.
            self._tasks = MemoryTasks(self._tasks.snapshot())
            self._after = {}
            for after_seq, seq in self._tasks.snapshot().dependencies:
                self._after.setdefault(seq, set()).add(after_seq)
            raise
        for seq, held in commit.held.items():
            self._hold(seq, epoch.identity if held else "")
        for name in commit.freed:
            if name in self._reserved and self._reserved[name].identity == epoch.identity:
                del self._reserved[name]
        for command in commit.commands:
            self._commands.setdefault((command.to, command.kind, command.id), command)

    # ---- queries

    def answer(self, epoch: Epoch, query: queries.TaskQuery, is_alive: Callable[[Epoch], bool]) -> TaskAnswer:
        """As PostgreSQL does; the broker of the epoch holds what the query takes."""
        if isinstance(query, queries.LookUpSubmission):
            return self._look_up(epoch, query, is_alive)
        if type(query) not in _ANSWERS:
            return self._tasks.answer(query)
        answer: TaskAnswer = dispatch(_ANSWERS, _Claims(self, epoch.identity), query)
        return answer

    def read(self, query: queries.TaskQuery) -> Any:
        """The answer of a store that is not shared."""
        return self._tasks.answer(query)

    def known(self, seq: int) -> task_rows.OpenTask:
        task = self._tasks.open(seq)
        if task is None:
            raise AssertionError(f"task {seq} is an orphan and not open")
        return task

    def take(self, identity: str, rows: Iterable[task_rows.OpenTask]) -> tuple[task_rows.OpenTask, ...]:
        seqs = [row.seq for row in rows]
        for seq in seqs:
            if self.known(seq).shelved:
                self._tasks.set_shelved(seq, False)
            self._hold(seq, identity)
        return tuple(map(self.known, seqs))

    def orphans(self, patience_us: int = 0) -> list[task_rows.OpenTask]:
        """The leases that have had no holder for so long, the oldest first."""
        last = self._clock_us() - patience_us
        return [self.known(seq) for since, seq in sorted((b, a) for a, b in self._orphans.items()) if since <= last]

    def take_commands(self, identity: str, limit: int) -> tuple[task_rows.PutTaskCommand, ...]:
        keys = [key for key in self._commands if key[0] == identity][:limit]
        return tuple(self._commands.pop(key) for key in keys)

    def _look_up(
        self, epoch: Epoch, query: queries.LookUpSubmission, is_alive: Callable[[Epoch], bool]
    ) -> queries.SubmissionLookup:
        answer: queries.SubmissionLookup = self.read(query)
        if query.reserve is None:
            return answer
        names: list[Name] = [query.reserve] if query.reserve else []
        if query.key is not None:
            names.append((query.client, query.key, query.owner))
        if answer.keyed is not None or (query.reserve and self._tasks.by_id(query.reserve) is not None):
            return answer
        for name in names:
            owner = self._reserved.get(name, epoch)
            if owner.identity != epoch.identity and is_alive(owner):
                return msgspec.structs.replace(answer, busy=True)
        self._reserved.update(dict.fromkeys(names, epoch))
        return answer


class _Claims(NamedTuple):
    """The queries that differ in a shared store, for one broker."""

    tasks: SharedTasks
    identity: str

    def other_holder(self, row: task_rows.OpenTask | task_rows.EndedTask | None) -> str:
        holder = self.tasks.holder(row.seq) if isinstance(row, task_rows.OpenTask) else ""
        return "" if holder == self.identity else holder

    def read_queue(self, query: queries.ReadQueue) -> tuple[task_rows.OpenTask, ...]:
        """First an equal part for each account, then the oldest tasks."""
        limit = bounded(query.limit)
        ask = msgspec.structs.replace(query, limit=MAX_READ_ROWS, max_bytes=1 << 62, owner=None)
        rows: tuple[task_rows.OpenTask, ...] = self.tasks.read(ask)
        by_account: dict[str, list[task_rows.OpenTask]] = {}
        for row in rows:
            by_account.setdefault(task_rows.account_name(row.owner, row.client), []).append(row)
        first = query.owner or ""
        accounts = sorted(by_account, key=lambda one: (one <= first, one))[: queries.claim_accounts(limit)]
        part = limit // len(accounts) if accounts else 0
        turns = sorted((turn, row.seq) for one in accounts for turn, row in enumerate(by_account[one][:part]))
        in_parts = {seq for _, seq in turns}
        order = [seq for _, seq in turns] + [row.seq for row in rows if row.seq not in in_parts]
        taken: list[task_rows.OpenTask] = []
        size = 0
        for seq in order[:limit]:
            taken.append(self.tasks.known(seq))
            size += len(taken[-1].params)
            if size >= query.max_bytes:
                break
        return self.tasks.take(self.identity, sorted(taken, key=lambda row: row.seq))

    def read_dependents(self, query: queries.ReadDependents) -> tuple[task_rows.OpenTask, ...]:
        rows = self.tasks.read(queries.ReadDependents(query.after_seq, query.seq, MAX_READ_ROWS))
        ours = [row for row in rows if not self.other_holder(row)][: bounded(query.limit)]
        self.tasks.take(self.identity, [row for row in ours if row.status == task_rows.SCHEDULED])
        return tuple(ours)

    def find_ended(self, query: queries.FindEnded) -> tuple[task_rows.EndedTask, ...]:
        rows = self.tasks.read(queries.FindTasks(query.ids, brief=True))
        return tuple(row for row in rows if isinstance(row, task_rows.EndedTask))

    def take_due(self, query: queries.TakeDue) -> tuple[task_rows.OpenTask, ...]:
        return self.tasks.take(self.identity, list(islice(self.due(query.now_us), bounded(query.limit))))

    def due(self, now_us: int) -> Iterator[task_rows.OpenTask]:
        page = queries.ReadSchedule(-1, 0, DUE_PAGE)
        while rows := self.tasks.read(page):
            for row in rows:
                if row.runnable_us > now_us:
                    return
                if not self.tasks.holder(row.seq):
                    yield self.tasks.known(row.seq)
                page = queries.ReadSchedule(row.runnable_us, row.seq, DUE_PAGE)

    def take_orphans(self, query: queries.TakeOrphans) -> tuple[task_rows.OpenTask, ...]:
        orphans = self.tasks.orphans(query.patience_us)[: bounded(query.limit)]
        return without_large_params(self.tasks.take(self.identity, orphans))

    def claim(self, query: queries.ClaimTasks) -> tuple[queries.ClaimedTask, ...]:
        rows = [row for row in self.tasks.read(queries.FindTasks(query.ids)) if isinstance(row, task_rows.OpenTask)]
        self.tasks.take(self.identity, [row for row in rows if not self.tasks.holder(row.seq)])
        found = self.tasks.read(queries.FindTasks(query.ids))
        claimed = [queries.ClaimedTask(row, self.other_holder(row)) for row in found]
        if query.node is not None:
            orphans = sorted((row for row in self.tasks.orphans() if row.node == query.node), key=lambda row: row.seq)
            claimed += map(queries.ClaimedTask, without_large_params(self.tasks.take(self.identity, orphans)))
        return tuple(claimed)

    def take_commands(self, query: queries.TakeTaskCommands) -> tuple[task_rows.PutTaskCommand, ...]:
        return self.tasks.take_commands(self.identity, bounded(query.limit))

    def priorities(self, method: str) -> list[int]:
        return [priority for priority, _ in self.tasks.read(queries.ReadPriorities(method))]

    def peek_backlog(self, query: queries.PeekBacklog) -> tuple[tuple[str, int], ...]:
        return tuple((method, priority) for method in set(query.methods) for priority in self.priorities(method))

    def peek_queues(self, query: queries.PeekQueues) -> tuple[tuple[str, str, str], ...]:
        return tuple(
            (method, id_, owner)
            for method in sorted(set(query.methods))
            for id_, owner in self.first_of(method, bounded(query.limit))
        )

    def first_of(self, method: str, limit: int) -> list[tuple[str, str]]:
        first: list[tuple[str, str]] = []
        for priority in self.priorities(method):
            left = limit - len(first)
            if left > 0:
                rows = self.tasks.read(queries.ReadQueue(method, priority, -1, left, 1 << 62))
                first += [(row.id, row.owner) for row in rows]
        return first


_ANSWERS: Final[Handlers] = {
    queries.ReadQueue: _Claims.read_queue,
    queries.ReadDependents: _Claims.read_dependents,
    queries.FindEnded: _Claims.find_ended,
    queries.TakeDue: _Claims.take_due,
    queries.TakeOrphans: _Claims.take_orphans,
    queries.ClaimTasks: _Claims.claim,
    queries.TakeTaskCommands: _Claims.take_commands,
    queries.PeekBacklog: _Claims.peek_backlog,
    queries.PeekQueues: _Claims.peek_queues,
}


class _Commit:
    """One commit in progress: each write is checked after those before it are applied."""

    def __init__(
        self,
        epoch: Epoch,
        tasks: MemoryTasks,
        holders: dict[int, str],
        reserved: dict[Name, Epoch],
        after: dict[int, set[int]],
    ) -> None:
        self._epoch = epoch
        self._tasks = tasks
        self._holders = holders
        self._reserved = reserved
        self._after = after
        self.held: dict[int, bool] = {}
        """What this commit wrote: this broker holds it until the commit ends, and afterwards if True."""
        self.freed: list[Name] = []
        self.commands: list[task_rows.PutTaskCommand] = []

    def checked(self, writes: Iterable[task_rows.TaskWrite]) -> Iterator[task_rows.TaskWrite]:
        """The writes that apply to the tasks themselves."""
        for write in writes:
            match write:
                case task_rows.PutTask():
                    self._use(write)
                    self.held[write.seq] = is_held(write.status, write.shelved)
                case task_rows.LeaseTask(status=status, seq=seq):
                    self._check_holder(seq)
                    self.held[seq] = is_held(status, False)
                case task_rows.ChangeTask(status=status, shelved=shelved, seq=seq):
                    self._check_holder(seq)
                    self.held[seq] = is_held(status, shelved)
                case task_rows.EndTask(seq=seq):
                    self._check_holder(seq)
                    self.held[seq] = False
                    yield write
                    for after_seq in self._after.pop(seq, ()):
                        yield task_rows.DropDependency(after_seq, (seq,))
                    continue
                case task_rows.ReopenTask(seq=seq):
                    if not self._tasks.can_reopen(seq):
                        continue  # another broker reopened it first, or it was swept
                    self.held[seq] = False
                case task_rows.ReleaseTask(seq):
                    self._release(seq)
                    continue
                case task_rows.PutDependency(after_seq, seq):
                    self._after.setdefault(seq, set()).add(after_seq)
                case task_rows.FreeReservation(id_, client, key, owner):
                    self.freed += [] if id_ is None else [id_]
                    self.freed += [] if key is None else [(client, key, owner)]
                    continue
                case task_rows.PutTaskCommand():
                    self.commands.append(write)
                    continue
                case _:
                    pass
            yield write

    def _use(self, write: task_rows.PutTask) -> None:
        """Use up the reservation of a new task's id and key, which must exist."""
        if not write.id.startswith(task_rows.OWN_IDS) or write.id in self._reserved:
            self._use_name(write.id)
        if write.key is not None:
            self._use_name((write.client, write.key, write.owner))

    def _use_name(self, name: Name) -> None:
        if self._reserved.get(name) != self._epoch:
            raise StoreFailed(f"{name!r} is not reserved for this broker. Please report this.")
        self.freed.append(name)

    def _check_holder(self, seq: int) -> None:
        if seq not in self.held and self._holders.get(seq) != self._epoch.identity:
            raise StoreFailed(f"task {seq} is not held by this broker. Please report this.")

    def _release(self, seq: int) -> None:
        self._check_holder(seq)
        task = self._tasks.open(seq)
        if task is None or task.status not in LEASES:
            raise StoreFailed(f"task {seq} is not leased. Please report this.")
        self.held[seq] = False

"""The waiting tasks of one method and priority, in turn by submitter. Invariants: submitters with tasks in memory take
turns; the tasks of one submitter leave in the order of acceptance; no submitter uses more of the window than is left
for others, so that a task of one who has none waiting finds room beside any backlog."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterator
from typing import Final

from scale0.storage.task_rows import account_name
from scale0.tasks.core.task import QueuedTask

WINDOWS: Final = 2
"""All submitters together may use so many windows; each may use one, and no more than the others leave."""
SHARED_OUT: Final = 2
"""One part in so many of the memory for windows is divided between all priority queues."""
ANYBODY: Final = ""
"""The name in `stored` if it is not known whose tasks are stored."""


class WindowMemory:
    """The params in the windows of all methods together. Each priority queue may use what is left, and always a share
    of its own, so that full windows of other methods delay it only by more reads."""

    __slots__ = ("levels", "used")

    def __init__(self) -> None:
        self.used = 0
        """In memory, or being read."""
        self.levels = 0

    def room(self, used: int, most: int) -> int:
        """How many bytes a priority queue that uses `used` may add."""
        return max(most - self.used, most // (SHARED_OUT * max(1, self.levels)) - used, 0)


class OwnerQueue:
    """The waiting tasks of one submitter."""

    __slots__ = ("back", "bytes", "fresh", "in_turn", "loading", "name", "newest", "position")

    def __init__(self, name: str) -> None:
        self.name = name
        self.fresh: deque[QueuedTask] = deque()
        self.back: list[tuple[int, int, QueuedTask]] = []
        """Tasks that were handed out before or were delayed: they are older than those in `fresh`."""
        self.bytes = 0
        """Size of the params of `fresh`."""
        self.position = 0
        self.newest = 0
        """The largest seq that may be in the stored backlog."""
        self.loading = False
        self.in_turn = False

    @property
    def more(self) -> bool:
        """True if the stored backlog may have tasks after the window."""
        return self.newest > self.position

    def tasks(self) -> Iterator[QueuedTask]:
        """Its tasks in memory, in order."""
        return itertools.chain((entry[2] for entry in sorted(self.back)), self.fresh)


class PriorityQueue:
    """The waiting tasks of one method and priority."""

    __slots__ = (
        *("bytes", "last_account", "loading", "memory", "owners", "pushed", "reserved", "reserved_bytes", "returned"),
        *("returned_bytes", "stored", "turns", "waiting"),
    )

    def __init__(self, memory: WindowMemory | None = None) -> None:
        self.memory = memory or WindowMemory()
        self.memory.levels += 1
        self.owners: dict[str, OwnerQueue] = {}
        self.turns: deque[OwnerQueue] = deque()
        """Submitters with tasks in memory, the next one first."""
        self.stored: dict[str, OwnerQueue] = {}
        """Submitters whose tasks may be in the stored backlog, the one that is read next first."""
        self.waiting = self.returned = self.bytes = 0
        """Tasks in `fresh` and in `back` of all submitters; size of the former."""
        self.returned_bytes = 0
        self.reserved = self.reserved_bytes = 0
        """The limits of the reads that are under way."""
        self.loading = 0
        """Reads of the stored backlog that are under way."""
        self.pushed = 0
        self.last_account = ""
        """Shared store only: the account behind which the next claim begins."""

    def __len__(self) -> int:
        return self.waiting + self.returned

    @property
    def more(self) -> bool:
        """True if the stored backlog may have tasks after the window."""
        return bool(self.stored)

    def set_more(self, on: bool) -> None:
        """Records whether the stored backlog has tasks, whoever submitted them."""
        if on:
            self.stored.setdefault(ANYBODY, OwnerQueue(ANYBODY))
        else:
            self.stored.clear()

    def owner(self, name: str) -> OwnerQueue:
        found = self.owners.get(name)
        if found is None:
            self.owners[name] = found = OwnerQueue(name)
        return found

    def room(self, owner: OwnerQueue, window_tasks: int, window_bytes: int, all_bytes: int) -> tuple[int, int]:
        """How many tasks and bytes this submitter may have in memory, where all methods may have `all_bytes`."""
        used = self.bytes + self.reserved_bytes
        left = self.memory.room(used, all_bytes)
        return (
            min(window_tasks, WINDOWS * window_tasks - self.waiting - self.reserved),
            min(window_bytes, WINDOWS * window_bytes - used, owner.bytes + left),
        )

    def reserve(self, tasks: int, size: int) -> None:
        """A read begins, or with negative values ends: until then its limits count as used."""
        self.reserved += tasks
        self.reserved_bytes += size
        self.memory.used += size

    def _count(self, owner: OwnerQueue, tasks: int, size: int) -> None:
        owner.bytes += size
        self.bytes += size
        self.waiting += tasks
        self.memory.used += size

    def leave(self) -> None:
        """The queue is dropped: it uses no memory any more."""
        self.memory.used -= self.bytes + self.returned_bytes + self.reserved_bytes
        self.memory.levels -= 1

    def note_stored(self, owner: OwnerQueue, newest: int) -> None:
        owner.newest = max(owner.newest, newest)
        self.stored[owner.name] = owner

    def push(self, task: QueuedTask) -> None:
        """Queues a task that is older than those in the window of its submitter."""
        owner = self.owner(account_name(task.owner, task.client))
        self.pushed += 1
        self._count_back(1, len(task.params))
        heapq.heappush(owner.back, (task.seq, self.pushed, task))
        self._enter(owner)

    def append(self, task: QueuedTask) -> None:
        owner = self.owner(account_name(task.owner, task.client))
        owner.fresh.append(task)
        self._count(owner, 1, len(task.params))
        self._enter(owner)

    def insert(self, task: QueuedTask) -> None:
        """Queues a task in the order of acceptance."""
        fresh = self.owner(account_name(task.owner, task.client)).fresh
        if fresh and task.seq < fresh[-1].seq:
            self.push(task)
        else:
            self.append(task)

    def _count_back(self, tasks: int, size: int) -> None:
        self.returned += tasks
        self.returned_bytes += size
        self.memory.used += size

    def _enter(self, owner: OwnerQueue) -> None:
        if not owner.in_turn:
            owner.in_turn = True
            self.turns.append(owner)

    def _pop_fresh(self, owner: OwnerQueue, last: bool = False) -> QueuedTask:
        task = owner.fresh.pop() if last else owner.fresh.popleft()
        self._count(owner, -1, -len(task.params))
        return task

    def _pop_back(self, owner: OwnerQueue) -> QueuedTask:
        task = heapq.heappop(owner.back)[2]
        self._count_back(-1, -len(task.params))
        return task

    def head(self) -> QueuedTask | None:
        """Returns the next task; drops cancelled ones on the way."""
        turns = self.turns
        while turns:
            owner = turns[0]
            while owner.back and owner.back[0][2].ended:
                self._pop_back(owner)
            while owner.fresh and owner.fresh[0].ended:
                self._pop_fresh(owner)
            if owner.back and (not owner.fresh or owner.back[0][0] < owner.fresh[0].seq):
                return owner.back[0][2]
            if owner.fresh:
                return owner.fresh[0]
            turns.popleft()
            owner.in_turn = False
            self.forget_idle(owner)
        return None

    def pop(self) -> QueuedTask | None:
        """Removes and returns the next task; then it is the turn of the next submitter."""
        task = self.head()
        if task is None:
            return None
        owner = self.turns[0]
        if owner.fresh and owner.fresh[0] is task:
            self._pop_fresh(owner)
        else:
            self._pop_back(owner)
        if len(self.turns) > 1:
            self.turns.rotate(-1)
        return task

    def pop_last(self) -> QueuedTask | None:
        """Removes and returns the newest task of the submitter with the most in the window."""
        owner = max(self.turns, key=lambda one: len(one.fresh), default=None)
        return self._pop_fresh(owner, last=True) if owner is not None and owner.fresh else None

    def clear_back(self) -> list[QueuedTask]:
        """Removes and returns the tasks that are older than their windows."""
        tasks: list[QueuedTask] = []
        for owner in self.turns:
            tasks += (entry[2] for entry in owner.back)
            owner.back.clear()
        self._count_back(-self.returned, -self.returned_bytes)
        return tasks

    def withdraw(self, task: QueuedTask) -> None:
        """Removes a task from the middle. This is rare, so a linear scan is acceptable."""
        owner = self.owners.get(account_name(task.owner, task.client))
        if owner is None:
            return
        if task in owner.fresh:
            owner.fresh.remove(task)
            self._count(owner, -1, -len(task.params))
        else:
            before = len(owner.back)
            owner.back = [entry for entry in owner.back if entry[2] is not task]
            if len(owner.back) < before:
                self._count_back(-1, -len(task.params))
            heapq.heapify(owner.back)

    def forget_idle(self, owner: OwnerQueue) -> None:
        """Forgets a submitter that has nothing in memory and nothing in the stored backlog."""
        if not (owner.in_turn or owner.loading or owner.more) and self.owners.get(owner.name) is owner:
            del self.owners[owner.name]
            self.stored.pop(owner.name, None)

    def tasks(self) -> Iterator[QueuedTask]:
        """The tasks in memory; those of each submitter in order."""
        for owner in self.turns:
            yield from owner.tasks()

    def first(self, most: int) -> list[QueuedTask]:
        """The first tasks in memory that have not ended, in turn by submitter."""
        queues = (owner.tasks() for owner in self.turns)
        turns = itertools.chain.from_iterable(itertools.zip_longest(*queues))
        return list(itertools.islice((task for task in turns if task is not None and not task.ended), most))

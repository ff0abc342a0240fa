"""Method queues: the queue of each method, of which only a window is in memory. Invariants: within a method and
priority, submitters take turns, and the tasks of each leave in the order of acceptance; a waiting task is in memory or
in the stored backlog, never both; a method that no backend offers has no queue in memory, so its tasks use no
memory."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, Protocol

from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.tasks.core.fair_queue import PriorityQueue, WindowMemory
from scale0.tasks.core.task import QueuedTask
from scale0.tasks.jsonrpc.messages import quoted

WINDOW_TASKS: Final = 4_000
"""Tasks of one method, priority and submitter that are in memory; all submitters together have twice that."""
WINDOW_BYTES: Final = 8 * 1024 * 1024
"""Size limit of their params."""
ALL_WINDOWS_BYTES: Final = 64 * 1024 * 1024
"""Size limit of the params in the windows of all methods; beyond it, each of them has its share, or one task."""
UNOFFERED_SECONDS: Final = 60.0
"""How long an unused method queue stays in memory."""
MAX_SPARE: Final = 10_000
"""Method queues above twice those that are used, before empty ones are dropped without a delay: a backend may offer new
names with each READY."""

Head = tuple[int, int, str]
"""The next task of a method: its priority (negative), its place, and the method."""


class MethodQueue:
    __slots__ = ("flow", "hungry", "known", "leased", "levels", "memory", "method", "needed", "quoted", "window")

    def __init__(self, method: str, mono: float, memory: WindowMemory) -> None:
        self.method = method
        self.memory = memory
        self.levels: dict[int, PriorityQueue] = {}
        self.known = False
        """True once the store has reported what it holds."""
        self.leased = 0
        """Tasks of this method that are handed out."""
        self.quoted = quoted(method)
        self.hungry: Any = None
        """The backend that had room left when the queue ran empty."""
        self.needed = mono
        """When a backend last offered the method, or a node asked for it."""
        self.window = 0
        self.flow = 0
        """Shared store only: the maximum number of held tasks, and how many were taken in this second."""

    def level(self, priority: int) -> PriorityQueue:
        found = self.levels.get(priority)
        if found is None:
            found = PriorityQueue(self.memory)
            self.levels[priority] = found
            self.levels = dict(sorted(self.levels.items(), reverse=True))
        return found

    @property
    def is_empty(self) -> bool:
        """True if no task of this method is handed out, in memory or in the stored backlog."""
        holds = any(len(level) or level.more or level.loading for level in self.levels.values())
        return self.known and not self.leased and not holds

    @property
    def is_loading(self) -> bool:
        """True while its first tasks are being read."""
        return any(level.loading and level.head() is None for level in self.levels.values())

    def head(self) -> QueuedTask | None:
        for level in self.levels.values():
            task = level.head()
            if task is not None:
                return task
            if self.window and level.more:
                return None  # a read of the next tasks is under way
        return None


class BacklogWindow(Protocol):
    """The part of a method queue that is in memory: of this broker's own backlog, or of one that brokers share."""

    def begin(self, method_queue: MethodQueue, effects: Effects) -> None:
        """Asks the store what it holds for a new method queue."""
        ...

    def place(self, method_queue: MethodQueue, level: PriorityQueue, task: QueuedTask) -> str:
        """Returns where a task waits: `here` (and puts it there), `backlog` or `later`."""
        ...

    def refill(self, method_queue: MethodQueue, priority: int, level: PriorityQueue, effects: Effects) -> None:
        """Reads more tasks if the window is at most half full and the store has more."""
        ...

    def need_tasks(self, services: Collection[str], effects: Effects) -> None:
        """Handles a backend that has room while memory holds no task for its services."""
        ...


class MethodQueues:
    def __init__(self, limit: Callable[[str], int]) -> None:
        self._method_queues: dict[str, MethodQueue] = {}
        self._limit = limit
        """Returns how many tasks of a method may be handed out at once."""
        self.ready: dict[str, MethodQueue] = {}
        """Method queues that may have tasks in memory."""
        self.window: BacklogWindow
        self.memory = WindowMemory()
        self._most = MAX_SPARE

    def quoted(self, method: str) -> bytes:
        method_queue = self.find(method)
        return method_queue.quoted if method_queue is not None else quoted(method)

    def find(self, method: str) -> MethodQueue | None:
        return self._method_queues.get(method)

    def need(self, method: str, now: Now, effects: Effects) -> MethodQueue:
        """Returns the queue of a method that is offered or requested; a new one asks the store for its tasks."""
        method_queue = self._method_queues.get(method)
        if method_queue is None:
            self._method_queues[method] = method_queue = MethodQueue(method, now.mono, self.memory)
            self.window.begin(method_queue, effects)
        method_queue.needed = now.mono
        return method_queue

    def add(self, task: QueuedTask) -> str:
        """Queues a task. Returns `here` (in memory), `backlog`, or `later` if it must be added again."""
        method_queue = self._method_queues.get(task.method)
        if method_queue is None:
            return "store"
        where = self.window.place(
            method_queue, method_queue.levels.get(task.priority) or method_queue.level(task.priority), task
        )
        if where == "here":
            self.ready[task.method] = method_queue
        return where

    def put_back(self, task: QueuedTask, now: Now, effects: Effects) -> None:
        """Returns a task that was handed out to its previous position."""
        method_queue = self.need(task.method, now, effects)
        method_queue.level(task.priority).push(task)
        self.ready[task.method] = method_queue

    def top_up(self, method_queue: MethodQueue, effects: Effects) -> None:
        """Reads the backlog where a window ran empty by other means than a hand-out."""
        for priority, level in list(method_queue.levels.items()):
            if level.more and level.head() is None:
                self.window.refill(method_queue, priority, level, effects)

    def top_up_all(self, effects: Effects) -> None:
        """Does the same for every queue, as a safeguard."""
        for method_queue in self.all():
            self.top_up(method_queue, effects)

    def heads(self, services: Collection[str]) -> list[Head]:
        """Returns a heap with the next task of each of these services, the one that is handed out first on top."""
        ready = self.ready
        if len(ready) <= len(services):
            method_queues = [method_queue for name, method_queue in ready.items() if name in services]
        else:
            method_queues = [ready[name] for name in services if name in ready]
        heads = []
        for method_queue in method_queues:
            task = self.head(method_queue)
            if task is not None:
                heads.append((-task.priority, task.seq, method_queue.method))
        heapq.heapify(heads)
        return heads

    def renew_first(self, heads: list[Head]) -> None:
        """Replaces the top of `heads`, which was handed out, by the next task of its method."""
        method = heads[0][2]
        task = self.head(self._method_queues[method])
        if task is None:
            heapq.heappop(heads)
        else:
            heapq.heapreplace(heads, (-task.priority, task.seq, method))

    def head(self, method_queue: MethodQueue) -> QueuedTask | None:
        """Returns the next task that may be handed out now."""
        if method_queue.leased >= self._limit(method_queue.method):
            return None
        task = method_queue.head()
        if task is None:
            self.ready.pop(method_queue.method, None)
        return task

    def take(self, method_queue: MethodQueue, most: int, effects: Effects) -> list[QueuedTask]:
        """Removes and returns the next tasks that may be handed out now."""
        taken: list[QueuedTask] = []
        most = min(most, self._limit(method_queue.method) - method_queue.leased)
        for priority, level in method_queue.levels.items():
            while len(taken) < most and (task := level.pop()) is not None:
                taken.append(task)
            more = level.more
            if more:
                self.window.refill(method_queue, priority, level, effects)
            if len(taken) >= most or (more and method_queue.window):
                break
        method_queue.flow += len(taken)
        return taken

    def withdraw(self, task: QueuedTask) -> None:
        """Removes a task from the middle of its queue."""
        method_queue = self._method_queues.get(task.method)
        if method_queue is not None:
            method_queue.level(task.priority).withdraw(task)

    def drop_unneeded(self, offered: Callable[[str], bool], now: Now) -> Iterable[QueuedTask]:
        """Drops queues that were not needed for a while; the caller must return their tasks to the stored backlog."""
        dropped: list[QueuedTask] = []
        for method_queue in list(self._method_queues.values()):
            if offered(method_queue.method):
                method_queue.needed = now.mono
            busy = (
                method_queue.leased
                or not method_queue.known
                or any(level.loading for level in method_queue.levels.values())
            )
            if busy or now.mono - method_queue.needed <= UNOFFERED_SECONDS:
                continue
            dropped += self._drop(method_queue)
        return dropped

    @property
    def is_crowded(self) -> bool:
        return len(self._method_queues) > self._most

    def drop_empty(self, is_used: Callable[[str], bool]) -> None:
        """Drops the queues without tasks that are not used."""
        for method_queue in list(self._method_queues.values()):
            if method_queue.is_empty and not is_used(method_queue.method):
                self._drop(method_queue)
        self._most = 2 * len(self._method_queues) + MAX_SPARE

    def _drop(self, method_queue: MethodQueue) -> list[QueuedTask]:
        """Drops a queue; returns its tasks."""
        del self._method_queues[method_queue.method]
        self.ready.pop(method_queue.method, None)
        dropped: list[QueuedTask] = []
        for level in method_queue.levels.values():
            level.leave()
            dropped.extend(task for task in level.tasks() if not task.ended)
        return dropped

    def in_order(self, methods: Iterable[str]) -> list[str]:
        """Returns these methods, the one with the next task first."""
        heads = [
            (method_queue.head(), method)
            for method in methods
            if (method_queue := self._method_queues.get(method)) is not None
        ]
        waiting = [(-task.priority, task.seq, method) for task, method in heads if task is not None]
        return [method for _, _, method in sorted(waiting)]

    def all(self) -> list[MethodQueue]:
        return list(self._method_queues.values())

    def methods(self) -> list[str]:
        return list(self._method_queues)

    def visible(self, method_queue: MethodQueue) -> int:
        """Returns the number of tasks in memory, or a larger number if the stored backlog has more."""
        return sum(len(level) + (WINDOW_TASKS if level.more else 0) for level in method_queue.levels.values())

    def backlog(self) -> dict[str, tuple[int, bool]]:
        """Returns, for each method, the number of tasks in memory and whether the stored backlog has more."""
        return {
            method: (
                sum(map(len, method_queue.levels.values())),
                any(level.more for level in method_queue.levels.values()),
            )
            for method, method_queue in self._method_queues.items()
            if any(len(level) or level.more for level in method_queue.levels.values())
        }

    def work(self, most: int) -> dict[str, dict[str, int]]:
        """Returns queued tasks in memory and leased tasks of the methods that have the most of them."""
        rows = (
            (method, sum(map(len, method_queue.levels.values())), method_queue.leased)
            for method, method_queue in self._method_queues.items()
        )
        busiest = heapq.nlargest(most, (row for row in rows if row[1] or row[2]), key=lambda row: row[1] + row[2])
        return {method: {"queued": queued, "running": running} for method, queued, running in busiest}

    def waiting(self, method: str, most: int) -> list[QueuedTask]:
        method_queue = self._method_queues.get(method)
        found: list[QueuedTask] = []
        for level in method_queue.levels.values() if method_queue is not None else ():
            found += level.first(most - len(found))
            if len(found) >= most:
                break
        return found

"""Method queues: the queue of each method, of which only a window is in memory. Invariants: within a method and
priority, tasks leave in the order of acceptance; a waiting task is in memory or in the stored backlog, never both; a
method that no backend offers has no queue in memory, so its tasks use no memory."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, Protocol

from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.tasks.core.task import QueuedTask
from scale0.tasks.jsonrpc.messages import quoted

WINDOW_TASKS: Final = 4_000
"""Tasks of one method and priority that are in memory."""
WINDOW_BYTES: Final = 8 * 1024 * 1024
"""Size limit of their params."""
UNOFFERED_SECONDS: Final = 60.0
"""How long an unused method queue stays in memory."""

Head = tuple[int, int, str]
"""The next task of a method: its priority (negative), its place, and the method."""


class PriorityQueue:
    """The waiting tasks of one method and priority."""

    __slots__ = ("back", "bytes", "fresh", "loading", "newest", "position", "pushed")

    def __init__(self) -> None:
        self.fresh: deque[QueuedTask] = deque()
        self.back: list[tuple[int, int, QueuedTask]] = []
        """Tasks that were handed out before or were delayed: they are older than those in `fresh`."""
        self.position = 0
        self.newest = 0
        """The largest seq that may be in the stored backlog."""
        self.bytes = 0
        self.loading = False
        self.pushed = 0

    def __len__(self) -> int:
        return len(self.fresh) + len(self.back)

    @property
    def more(self) -> bool:
        """True if the stored backlog may have tasks after the window."""
        return self.newest > self.position

    @property
    def has_room(self) -> bool:
        return len(self.fresh) < WINDOW_TASKS and self.bytes < WINDOW_BYTES

    def push(self, task: QueuedTask) -> None:
        self.pushed += 1
        heapq.heappush(self.back, (task.seq, self.pushed, task))

    def append(self, task: QueuedTask) -> None:
        self.fresh.append(task)
        self.bytes += len(task.params)

    def head(self) -> QueuedTask | None:
        """Returns the next task; drops cancelled ones on the way."""
        while self.back and self.back[0][2].ended:
            heapq.heappop(self.back)
        while self.fresh and self.fresh[0].ended:
            self.bytes -= len(self.fresh.popleft().params)
        if self.back and (not self.fresh or self.back[0][0] < self.fresh[0].seq):
            return self.back[0][2]
        return self.fresh[0] if self.fresh else None

    def pop(self, task: QueuedTask) -> None:
        """Removes the task that `head` returned."""
        if self.fresh and self.fresh[0] is task:
            self.fresh.popleft()
            self.bytes -= len(task.params)
        else:
            heapq.heappop(self.back)


class MethodQueue:
    __slots__ = ("flow", "hungry", "known", "leased", "levels", "method", "needed", "quoted", "window")

    def __init__(self, method: str, mono: float) -> None:
        self.method = method
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
            found = PriorityQueue()
            self.levels[priority] = found
            self.levels = dict(sorted(self.levels.items(), reverse=True))
        return found

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

    def quoted(self, method: str) -> bytes:
        method_queue = self.find(method)
        return method_queue.quoted if method_queue is not None else quoted(method)

    def find(self, method: str) -> MethodQueue | None:
        return self._method_queues.get(method)

    def need(self, method: str, now: Now, effects: Effects) -> MethodQueue:
        """Returns the queue of a method that is offered or requested; a new one asks the store for its tasks."""
        method_queue = self._method_queues.get(method)
        if method_queue is None:
            self._method_queues[method] = method_queue = MethodQueue(method, now.mono)
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
            if level.newest > level.position and level.head() is None:
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
            fresh, back = level.fresh, level.back
            while len(taken) < most and (fresh or back):
                if back:
                    task = level.head()
                    if task is None:
                        break
                    level.pop(task)
                else:
                    task = fresh.popleft()
                    level.bytes -= len(task.params)
                    if task.ended:
                        continue
                taken.append(task)
            more = level.newest > level.position
            if more:
                self.window.refill(method_queue, priority, level, effects)
            if len(taken) >= most or (more and method_queue.window):
                break
        method_queue.flow += len(taken)
        return taken

    def withdraw(self, task: QueuedTask) -> None:
        """Removes a task from the middle of its queue. This is rare, so a linear scan is acceptable."""
        method_queue = self._method_queues.get(task.method)
        if method_queue is None:
            return
        level = method_queue.level(task.priority)
        if task in level.fresh:
            level.fresh.remove(task)
            level.bytes -= len(task.params)
        else:
            level.back = [entry for entry in level.back if entry[2] is not task]
            heapq.heapify(level.back)

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
            del self._method_queues[method_queue.method]
            self.ready.pop(method_queue.method, None)
            for level in method_queue.levels.values():
                waiting = [*level.fresh, *(entry[2] for entry in level.back)]
                dropped.extend(task for task in waiting if not task.ended)
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
            for task in (*(entry[2] for entry in sorted(level.back)[:most]), *itertools.islice(level.fresh, most)):
                if len(found) >= most:
                    return found
                if not task.ended:
                    found.append(task)
        return found

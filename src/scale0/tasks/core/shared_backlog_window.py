"""The in-memory window over a queue that brokers share: claims tasks when a backend here has room for them, and returns
those that none takes. A claimed task is held: no other broker can hand it out. Invariants: accounts have equal parts of
a claim; a broker holds at most about one second of work for a method; tasks that no backend took for a second are
returned; nothing is claimed for a method without a free backend here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

from scale0.kernel.effects import Effects
from scale0.storage.task_queries import PeekBacklog, ReadQueue
from scale0.storage.task_rows import OpenTask, account_name
from scale0.tasks.core import method_queues
from scale0.tasks.core.fair_queue import PriorityQueue
from scale0.tasks.core.method_queues import MethodQueue
from scale0.tasks.core.stored_backlog import StoredBacklog
from scale0.tasks.core.task import QueuedTask

LEAST_WINDOW: Final = 4
"""Tasks of a slow method that are held in advance."""
MAX_PEEK: Final = 1_000
"""Methods in one query."""
MAX_TAKES: Final = 50
"""Priority queues that one check claims from: each is a transaction that delays others."""
FROM_THE_FIRST: Final = -1
"""Unclaimed tasks have no position, so every read starts at the first."""


class SharedBacklogWindow:
    def __init__(
        self,
        backlog: StoredBacklog,
        ready: dict[str, MethodQueue],
        has_room: Callable[[str], bool],
        is_closed: Callable[[str], bool],
    ) -> None:
        self._backlog = backlog
        self._ready = ready
        self._has_room = has_room
        """True if a backend here could start a task of this method now."""
        self._is_closed = is_closed
        """True while no task of this method is handed out here."""
        self.short: dict[str, MethodQueue] = {}
        """Method queues that could hold more once a backend has room."""

    def begin(self, method_queue: MethodQueue, effects: Effects) -> None:
        method_queue.window = LEAST_WINDOW
        self._peek((method_queue,), False, effects)

    def claim(self, wanted: Iterable[MethodQueue], most: int, effects: Effects) -> None:
        """Claims up to `most` tasks of these queues from the store."""
        found = tuple(wanted)
        for method_queue in found:
            method_queue.known = False
            method_queue.window = max(method_queue.window, min(most, method_queues.WINDOW_TASKS))
        self._peek(found, True, effects)

    def peek(self, every: Iterable[MethodQueue], effects: Effects) -> None:
        """Checks whether other brokers stored tasks for which a backend here has room."""
        idle = [
            method_queue
            for method_queue in every
            if method_queue.known and method_queue.head() is None and self._is_wanted(method_queue)
        ]
        idle = [
            method_queue for method_queue in idle if not any(level.loading for level in method_queue.levels.values())
        ]
        if idle:
            self._peek(tuple(idle[:MAX_PEEK]), False, effects)

    def _peek(self, wanted: tuple[MethodQueue, ...], take: bool, effects: Effects) -> None:
        by_method = {method_queue.method: method_queue for method_queue in wanted}

        def found(levels: tuple[tuple[str, int], ...], _mark: int, _now: object, out: Effects) -> None:
            for method_queue in wanted:
                method_queue.known = True
            for method, priority in levels[:MAX_TAKES]:
                self.there_is(by_method[method], priority, take, out)
            for method, priority in levels[MAX_TAKES:]:
                # Claimed when a backend asks for work, or at the next check.
                by_method[method].level(priority).set_more(True)
                self.short[method] = by_method[method]

        self._backlog.ask(PeekBacklog(tuple(by_method)), found, effects)

    def there_is(self, method_queue: MethodQueue, priority: int, take: bool, effects: Effects) -> None:
        """Records that the store has tasks of this method and priority."""
        level = method_queue.level(priority)
        level.set_more(True)
        if take:
            self._take(method_queue, priority, level, effects)
        else:
            self.refill(method_queue, priority, level, effects)

    def place(self, method_queue: MethodQueue, level: PriorityQueue, task: QueuedTask) -> str:
        """Returns `here` only if a backend here takes such tasks and none waits before this one."""
        full = len(level) >= method_queue.window or level.bytes >= method_queues.WINDOW_BYTES
        full = full or (len(level) > 0 and not level.memory.room(level.bytes, method_queues.ALL_WINDOWS_BYTES))
        if level.more or not method_queue.known or full or not self._is_wanted(method_queue):
            level.set_more(True)
            self.short[method_queue.method] = method_queue
            return "store"
        level.insert(task)
        return "here"

    def _is_wanted(self, method_queue: MethodQueue) -> bool:
        wanted = bool(method_queue.flow) or method_queue.hungry is not None or self._has_room(method_queue.method)
        return wanted and not self._is_closed(method_queue.method)

    def refill(self, method_queue: MethodQueue, priority: int, level: PriorityQueue, effects: Effects) -> None:
        """Claims more if the window is at most half full, the store has more, and a backend here has room."""
        if level.loading or not level.more or 2 * len(level) > method_queue.window:
            return
        if self._is_wanted(method_queue):
            self._take(method_queue, priority, level, effects)
        else:
            self.short[method_queue.method] = method_queue

    def need_tasks(self, services: Collection[str], effects: Effects) -> None:
        if len(self.short) <= len(services):
            found = [method_queue for name, method_queue in self.short.items() if name in services]
        else:
            found = [self.short[name] for name in services if name in self.short]
        for method_queue in found:
            del self.short[method_queue.method]
            for priority, level in list(method_queue.levels.items()):
                if level.more and not level.loading and not len(level):
                    self._take(method_queue, priority, level, effects)

    def _take(self, method_queue: MethodQueue, priority: int, level: PriorityQueue, effects: Effects) -> None:
        if level.loading or len(level) >= method_queue.window:
            return
        left = level.memory.room(level.bytes, method_queues.ALL_WINDOWS_BYTES)
        if self._is_closed(method_queue.method) or (not left and len(level)):
            # Other brokers may hand it out; or it is claimed when the tasks in memory are handed out.
            self.short[method_queue.method] = method_queue
            return
        level.loading = 1
        self.short.pop(method_queue.method, None)
        limit = method_queue.window - len(level)
        most_bytes = max(1, min(method_queues.WINDOW_BYTES - level.bytes, left))
        level.reserve(0, most_bytes)
        ask = ReadQueue(method_queue.method, priority, FROM_THE_FIRST, limit, most_bytes, level.last_account)
        self._backlog.ask(
            ask, lambda rows, _mark, _now, _out: self._load(method_queue, level, limit, most_bytes, rows), effects
        )

    def _load(
        self, method_queue: MethodQueue, level: PriorityQueue, limit: int, most_bytes: int, rows: tuple[OpenTask, ...]
    ) -> None:
        level.loading = 0
        level.reserve(0, -most_bytes)
        accounts: set[str] = set()
        for row in rows:
            task = self._backlog.load(row)
            if task is not None:
                level.insert(task)
                accounts.add(account_name(task.owner, task.client))
                self._ready[method_queue.method] = method_queue
        # The next claim begins behind the accounts that had their part in this one.
        level.last_account = max(accounts, key=lambda one: (one <= level.last_account, one), default="")
        cut = len(rows) >= limit or sum(len(row.params) for row in rows) >= most_bytes
        level.set_more(cut)
        if cut:
            # A window that empties quickly doubles.
            method_queue.window = min(2 * method_queue.window, method_queues.WINDOW_TASKS)
            self.short[method_queue.method] = method_queue
        self._backlog.loaded(method_queue.method)

    def spare(self, method_queue: MethodQueue) -> list[QueuedTask]:
        """Called once a second: removes from memory and returns the tasks that are held without use."""
        flow, method_queue.flow = method_queue.flow, 0
        method_queue.window = max(LEAST_WINDOW, min(method_queue.window, 2 * flow))
        spare: list[QueuedTask] = []
        for level in method_queue.levels.values():
            most = method_queue.window if flow else 0
            while level.waiting > most and (task := level.pop_last()) is not None:
                spare.append(task)
            if not flow:
                spare += level.clear_back()
            if spare:
                level.set_more(True)
                self.short[method_queue.method] = method_queue
        return [task for task in spare if not task.ended]

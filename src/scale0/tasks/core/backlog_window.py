"""The in-memory window over a broker's own stored queue: which tasks of each method and priority are loaded, and when
more are read. Invariant: every queued task of a method queue whose seq is at most `position` is in memory; all others
are in the stored backlog only."""

from __future__ import annotations

from collections.abc import Collection

from scale0.kernel.effects import Effects
from scale0.storage.task_queries import ReadPriorities, ReadQueue
from scale0.storage.task_rows import OpenTask
from scale0.tasks.core import method_queues
from scale0.tasks.core.method_queues import MethodQueue, PriorityQueue
from scale0.tasks.core.stored_backlog import StoredBacklog
from scale0.tasks.core.task import QueuedTask


class OwnBacklogWindow:
    def __init__(self, backlog: StoredBacklog, ready: dict[str, MethodQueue]) -> None:
        self._backlog = backlog
        self._ready = ready

    def begin(self, method_queue: MethodQueue, effects: Effects) -> None:
        """Asks the store which priorities of a new method queue have stored tasks."""
        ask = ReadPriorities(method_queue.method)
        self._backlog.ask(ask, lambda found, _mark, _now, out: self._learn(method_queue, found, out), effects)

    def place(self, method_queue: MethodQueue, level: PriorityQueue, task: QueuedTask) -> str:
        if task.seq <= level.position or (level.loading and task.seq <= level.newest):
            # The task is older than the window, or than the page being read: a later read would not return it.
            if len(level.back) >= method_queues.WINDOW_TASKS:
                return "later"
            level.push(task)
        elif not method_queue.known or level.newest > level.position or not level.has_room:
            level.newest = max(level.newest, task.seq)
            return "store"
        else:
            level.newest = level.position = task.seq
            level.append(task)
        return "here"

    def refill(self, method_queue: MethodQueue, priority: int, level: PriorityQueue, effects: Effects) -> None:
        """Reads more tasks if the window is at most half full and the store has more."""
        most_tasks, most_bytes = method_queues.WINDOW_TASKS, method_queues.WINDOW_BYTES
        if level.loading or not level.more or 2 * len(level.fresh) > most_tasks or 2 * level.bytes > most_bytes:
            return
        level.loading = True
        newest = level.newest
        ask = ReadQueue(
            method=method_queue.method,
            priority=priority,
            after_seq=level.position,
            limit=most_tasks - len(level.fresh),
            max_bytes=max(1, most_bytes - level.bytes),
        )
        self._backlog.ask(
            ask,
            lambda rows, mark, _now, out: self._load(method_queue, priority, level, newest, rows, mark, out),
            effects,
        )

    def need_tasks(self, services: Collection[str], effects: Effects) -> None:
        """Does nothing: an own backlog is read before it is needed."""

    def _learn(self, method_queue: MethodQueue, found: tuple[tuple[int, int], ...], effects: Effects) -> None:
        method_queue.known = True
        for priority, newest in found:
            level = method_queue.level(priority)
            level.newest = max(level.newest, newest)
        for priority, level in list(method_queue.levels.items()):
            self.refill(method_queue, priority, level, effects)

    def _load(
        self,
        method_queue: MethodQueue,
        priority: int,
        level: PriorityQueue,
        newest: int,
        rows: tuple[OpenTask, ...],
        mark: int,
        effects: Effects,
    ) -> None:
        level.loading = False
        for row in rows:
            if self._backlog.is_stale(row.seq, mark):
                # The task changed during the read: read it again.
                break
            task = self._backlog.load(row)
            if task is not None:
                level.append(task)
                self._ready[method_queue.method] = method_queue
            level.position = max(level.position, row.seq)
        else:
            if not rows:
                level.position = max(level.position, newest)
        self._backlog.loaded(method_queue.method)
        self.refill(method_queue, priority, level, effects)

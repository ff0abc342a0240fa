"""The in-memory window over a broker's own stored queue: which tasks of each method, priority and submitter are loaded,
and when more are read. Invariant: every queued task of a submitter whose seq is at most the `position` of that
submitter is in memory; all others are in the stored backlog only."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import Final

from scale0.kernel.effects import Effects
from scale0.storage.task_queries import ReadOwners, ReadQueue
from scale0.storage.task_rows import OpenTask, account_name
from scale0.tasks.core import method_queues
from scale0.tasks.core.fair_queue import OwnerQueue, PriorityQueue
from scale0.tasks.core.method_queues import MethodQueue
from scale0.tasks.core.stored_backlog import StoredBacklog
from scale0.tasks.core.task import QueuedTask

MAX_READS: Final = 16
"""Submitters whose backlog is looked at for one refill."""
SMALL_BYTES: Final = 4_096
"""Params that need no account: as many tasks as a window has are small together."""


def _is_full_of_bytes(level: PriorityQueue, task: QueuedTask) -> bool:
    """True if older tasks, which are beside the window, would use more memory than a window, or than is left."""
    if task.size <= SMALL_BYTES or not level.returned:
        return False
    used = level.bytes + level.returned_bytes + level.reserved_bytes
    left = min(
        method_queues.WINDOW_BYTES - level.returned_bytes, level.memory.room(used, method_queues.ALL_WINDOWS_BYTES)
    )
    return task.size > left


def room(level: PriorityQueue, owner: OwnerQueue) -> tuple[int, int]:
    return level.room(owner, method_queues.WINDOW_TASKS, method_queues.WINDOW_BYTES, method_queues.ALL_WINDOWS_BYTES)


class OwnBacklogWindow:
    def __init__(self, backlog: StoredBacklog, ready: dict[str, MethodQueue]) -> None:
        self._backlog = backlog
        self._ready = ready

    def begin(self, method_queue: MethodQueue, effects: Effects) -> None:
        """Asks the store whose tasks it has for a new method queue."""
        ask = ReadOwners(method_queue.method)
        self._backlog.ask(ask, lambda found, _mark, _now, out: self._learn(method_queue, found, out), effects)

    def place(self, method_queue: MethodQueue, level: PriorityQueue, task: QueuedTask) -> str:
        owner = level.owner(account_name(task.owner, task.client))
        if task.seq <= owner.position or (owner.loading and task.seq <= owner.newest):
            # The task is older than the window, or than the page being read: a later read would not return it.
            if level.returned >= method_queues.WINDOW_TASKS or _is_full_of_bytes(level, task):
                return "later"
            level.push(task)
            return "here"
        tasks, size = room(level, owner)
        # If other methods use all of the memory, one task is still in it: it is handed out without a delay.
        full = len(owner.fresh) >= tasks or (owner.bytes >= size and len(level) > 0)
        if not method_queue.known or owner.more or full:
            level.note_stored(owner, task.seq)
            return "store"
        owner.newest = owner.position = task.seq
        level.append(task)
        return "here"

    def refill(self, method_queue: MethodQueue, priority: int, level: PriorityQueue, effects: Effects) -> None:
        """Reads more tasks of submitters whose windows are at most half full, if the store has more; in turn."""
        for name in list(itertools.islice(level.stored, MAX_READS)):
            owner = level.stored.pop(name)
            if not owner.more:
                continue
            level.stored[name] = owner
            tasks, size = room(level, owner)
            half_empty = 2 * len(owner.fresh) <= tasks and 2 * owner.bytes <= size
            if owner.loading or not half_empty or tasks <= len(owner.fresh):
                continue
            if size > owner.bytes:
                self._read(method_queue, priority, level, owner, tasks - len(owner.fresh), size - owner.bytes, effects)
            elif not len(level) and not level.loading:
                self._read(method_queue, priority, level, owner, 1, 1, effects)

    def _read(
        self,
        method_queue: MethodQueue,
        priority: int,
        level: PriorityQueue,
        owner: OwnerQueue,
        limit: int,
        max_bytes: int,
        effects: Effects,
    ) -> None:
        """Reads the next tasks of a submitter. Until they arrive, their limits count as used."""
        owner.loading = True
        level.loading += 1
        level.reserve(limit, max_bytes)
        newest = owner.newest
        ask = ReadQueue(method_queue.method, priority, owner.position, limit, max(1, max_bytes), owner.name)

        def loaded(rows: tuple[OpenTask, ...], mark: int, _now: object, out: Effects) -> None:
            owner.loading = False
            level.loading -= 1
            level.reserve(-limit, -max_bytes)
            self._load(method_queue, level, owner, newest, rows, mark)
            self._backlog.loaded(method_queue.method)
            self.refill(method_queue, priority, level, out)

        self._backlog.ask(ask, loaded, effects)

    def need_tasks(self, services: Collection[str], effects: Effects) -> None:
        """Does nothing: an own backlog is read before it is needed."""

    def _learn(self, method_queue: MethodQueue, found: tuple[tuple[int, str, int], ...], effects: Effects) -> None:
        method_queue.known = True
        for priority, name, newest in found:
            level = method_queue.level(priority)
            level.note_stored(level.owner(name), newest)
        for priority, level in list(method_queue.levels.items()):
            self.refill(method_queue, priority, level, effects)

    def _load(
        self,
        method_queue: MethodQueue,
        level: PriorityQueue,
        owner: OwnerQueue,
        newest: int,
        rows: tuple[OpenTask, ...],
        mark: int,
    ) -> None:
        for row in rows:
            if self._backlog.is_stale(row.seq, mark):
                # The task changed during the read: read it again.
                break
            task = self._backlog.load(row)
            if task is not None:
                level.append(task)
                self._ready[method_queue.method] = method_queue
            owner.position = max(owner.position, row.seq)
        else:
            if not rows:
                owner.position = max(owner.position, newest)
        if not owner.more:
            level.stored.pop(owner.name, None)
            level.forget_idle(owner)

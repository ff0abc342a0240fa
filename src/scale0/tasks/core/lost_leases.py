"""Tasks whose leases ended without a report of their node. A node that held many may lose all of them in one turn.
Invariants: the lease has ended before its task is here, so no result of it is accepted; each task is queued again, or
fails, exactly once, unless it was cancelled first; until then it counts towards the concurrency of its method; a turn
handles a portion of them, and the next turns the others, in order."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from scale0.broker.core.state import BrokerState
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.tasks.core.queue import TaskQueue
from scale0.tasks.core.task import QueuedTask

LOST_TASKS: Final = 500
"""Tasks in one turn: about 5 ms of a broker."""
PAUSE_SECONDS: Final = 0.01
"""Between two portions, so that other messages have their turns."""


class EndedAttempt(NamedTuple):
    task: QueuedTask
    state: str
    counted: bool


class LostLeases:
    def __init__(self, state: BrokerState, queue: TaskQueue) -> None:
        self._state = state
        self._queue = queue
        self.waiting: deque[EndedAttempt] = deque()
        """Attempts that ended, and whose tasks are not queued again yet."""
        self._count = 0
        """Tasks that this turn has handled."""

    def add(self, task: QueuedTask, state: str, counted: bool, now: Now, effects: Effects) -> None:
        """Ends an attempt as `TaskQueue.attempt_over` does, now or in one of the next turns."""
        if self.waiting or self._count >= LOST_TASKS:
            if not self.waiting:
                self._state.timers.add((self._end_more, None), now.mono + PAUSE_SECONDS)
            self.waiting.append(EndedAttempt(task, state, counted))
            # The store has the lease still: the task counts towards the concurrency of its method.
            self._queue.method_queues.need(task.method, now, effects).leased += 1
        else:
            self._end(EndedAttempt(task, state, counted), now, effects)

    def settle(self) -> None:
        """The turn is over."""
        self._count = 0

    def _end_more(self, _: None, now: Now, effects: Effects) -> None:
        waiting = self.waiting
        while waiting and self._count < LOST_TASKS:
            attempt = waiting.popleft()
            self._queue.method_queues.need(attempt.task.method, now, effects).leased -= 1
            self._queue.dirty[attempt.task.method] = None
            self._end(attempt, now, effects)
        if waiting:
            self._state.timers.add((self._end_more, None), now.mono + PAUSE_SECONDS)

    def _end(self, attempt: EndedAttempt, now: Now, effects: Effects) -> None:
        task, state, counted = attempt
        if not task.ended:
            self._count += 1
            self._queue.attempt_over(task, state, None, b"", counted=counted, now=now, effects=effects)

"""The unanswered calls of a task client: what is sent next, and what is sent again.

Invariants: every unanswered call is sent again on the next connection, except our own queries, which are made again; a
try counts only if the message may have left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scale0.kernel.clock import Now
from scale0.kernel.limits import Limits
from scale0.kernel.timers import LazyTimerWheel
from scale0.tasks.client import responses
from scale0.tasks.client.futures import OWN_QUERIES, Call, SubmissionReceipt, TaskFuture, TaskQuery
from scale0.transport.core.session import SessionEffects


class PendingCalls:
    __slots__ = ("_limits", "by_number", "connection", "delayed", "delayed_until", "last", "queue", "timers")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.last = 0
        """The number of the last call."""
        self.by_number: dict[int, Call] = {}
        self.queue: list[Call] = []
        """To be sent with the next flush, in order."""
        self.delayed: list[Call] = []
        """Calls that the broker could not accept for the moment."""
        self.delayed_until = 0.0
        self.timers: LazyTimerWheel[SubmissionReceipt | TaskQuery] = LazyTimerWheel()
        self.connection = 0

    def query(
        self,
        kind: str,
        method: str,
        params: Sequence[Any],
        seconds: float,
        now: Now,
        tag: Any = None,
        futures: Sequence[TaskFuture] = (),
    ) -> TaskQuery:
        """Make a new query, with a deadline."""
        self.last += 1
        part = responses.call(method, params, self.last)
        query = TaskQuery(kind, self.last, part, now.mono + seconds, tag, futures)
        self.by_number[self.last] = query
        self.timers.add(query, now.mono)
        self.queue.append(query)
        return query

    def close(self, query: TaskQuery) -> None:
        query.ended = True
        self.timers.remove(query)

    def delay(self, number: int, call: Call, until: float) -> None:
        """The broker could not accept it for the moment: send it again at `until`."""
        self._mark_unsent(call)
        self.by_number[number] = call
        if not self.delayed:
            self.delayed_until = until
        self.delayed.append(call)

    def resume(self) -> None:
        """A new connection: everything unanswered is sent again."""
        self.connection += 1
        for number, call in list(self.by_number.items()):
            if isinstance(call, TaskQuery) and call.kind in OWN_QUERIES:
                del self.by_number[number]
                self.close(call)
        self.delayed = []
        self.queue = list(self.by_number.values())

    def unsent(self, frame: bytes) -> None:
        for number in responses.ids_of(frame):
            if number in self.by_number:
                self._mark_unsent(self.by_number[number])

    def never_connected(self) -> None:
        for call in self.by_number.values():
            self._mark_unsent(call)

    def _mark_unsent(self, call: Call) -> None:
        if call.sent and call.sent == self.connection:
            call.sent, call.tries = 0, call.tries - 1
            if not call.tries:
                call.broker = call.bound_to if isinstance(call, TaskFuture) else ""

    def take(self, now: Now) -> list[Call]:
        """The calls to send now."""
        if self.delayed and now.mono >= self.delayed_until:
            self.queue += self.delayed
            self.delayed = []
        queue, self.queue = self.queue, []
        return queue

    def send(self, queue: Sequence[Call], waits: Sequence[Call], broker: str, effects: SessionEffects) -> None:
        """Send these calls to this broker."""
        limits = self._limits
        if queue:
            for frame in responses.frames_of(queue, limits.max_batch_messages, limits.max_message_bytes):
                effects.sends.append([frame])
        for wait in waits:
            # Each wait alone: the broker does not wait for one inside an array.
            effects.sends.append([wait.part])
        connection = self.connection
        for calls in (queue, waits):
            for call in calls:
                call.tries += 1
                call.sent, call.broker = connection, broker

    def drop_ended(self) -> None:
        self.queue = [call for call in self.queue if not call.ended]
        self.delayed = [call for call in self.delayed if not call.ended]

    def clear(self) -> None:
        self.by_number.clear()
        self.queue, self.delayed = [], []

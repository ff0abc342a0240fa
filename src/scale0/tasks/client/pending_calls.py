"""The calls of a task client that have no answer yet: what goes out next, and what is said again.

Lives here: `PendingCalls`. Never here: what an answer means (`asker`), or which tasks are watched (`watching`).
Invariants: whatever was not answered goes out again on the next connection, except our own questions, which are asked
anew; a try counts only if it may have left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scale0.kernel.clock import Now
from scale0.kernel.limits import Limits
from scale0.kernel.timers import LazyTimerWheel
from scale0.tasks.client import responses
from scale0.tasks.client.futures import OWN_QUESTIONS, SubmissionReceipt, TaskFuture, TaskQuery
from scale0.tasks.client.subscriptions import Call, OutgoingCalls


class PendingCalls:
    """The submissions and questions of one client that are under way."""

    __slots__ = ("_limits", "again", "again_at", "by_number", "connection", "last", "queue", "timers")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.last = 0
        """The number of the last call."""
        self.by_number: dict[int, Call] = {}
        self.queue: list[Call] = []
        """To be sent with the next flush, in the order in which it was said."""
        self.again: list[Call] = []
        """What the broker could not take just now."""
        self.again_at = 0.0
        self.timers: LazyTimerWheel[SubmissionReceipt | TaskQuery] = LazyTimerWheel()
        self.connection = 0

    def ask(
        self,
        kind: str,
        method: str,
        params: Sequence[Any],
        seconds: float,
        now: Now,
        tag: Any = None,
        about: Sequence[TaskFuture] = (),
    ) -> TaskQuery:
        """A new question, with a deadline."""
        self.last += 1
        part = responses.call(method, params, self.last)
        question = TaskQuery(kind, self.last, part, now.mono + seconds, tag, about)
        self.by_number[self.last] = question
        self.timers.add(question, now.mono)
        self.queue.append(question)
        return question

    def close(self, question: TaskQuery) -> None:
        """It has its answer, or needs none any more."""
        question.ended = True
        self.timers.remove(question)

    def hold(self, number: int, one: Call, at: float) -> None:
        """The broker did not take it just now: say it again then."""
        self._keep_back(one)
        self.by_number[number] = one
        if not self.again:
            self.again_at = at
        self.again.append(one)

    def resume(self) -> None:
        """A new connection: all that was not answered goes out again."""
        self.connection += 1
        for number, one in list(self.by_number.items()):
            if isinstance(one, TaskQuery) and one.kind in OWN_QUESTIONS:
                del self.by_number[number]
                self.close(one)
        self.again = []
        self.queue = list(self.by_number.values())

    def unsent(self, frame: bytes) -> None:
        """This never left."""
        for number in responses.ids_of(frame):
            if number in self.by_number:
                self._keep_back(self.by_number[number])

    def never_connected(self) -> None:
        """The last connection never came to be."""
        for one in self.by_number.values():
            self._keep_back(one)

    def _keep_back(self, one: Call) -> None:
        if one.sent and one.sent == self.connection:
            one.sent, one.tries = 0, one.tries - 1
            one.at = one.at if one.tries else ""

    def take(self, now: Now) -> list[Call]:
        """What is to be sent now."""
        if self.again and now.mono >= self.again_at:
            self.queue += self.again
            self.again = []
        queue, self.queue = self.queue, []
        return queue

    def send(self, queue: Sequence[Call], waits: Sequence[Call], broker: str, out: OutgoingCalls) -> None:
        """These go to this broker now."""
        limits = self._limits
        if queue:
            for frame in responses.frames_of(queue, limits.max_batch_messages, limits.max_message_bytes):
                out.sends.append([frame])
        for wait in waits:
            # Alone: a wait inside an array does not wait.
            out.sends.append([wait.part])
        connection = self.connection
        for calls in (queue, waits):
            for one in calls:
                one.tries += 1
                one.sent, one.at = connection, broker

    def drop_ended(self) -> None:
        """Nobody waits any more for some of these."""
        self.queue = [one for one in self.queue if not one.ended]
        self.again = [one for one in self.again if not one.ended]

    def clear(self) -> None:
        """There will be no answers."""
        self.by_number.clear()
        self.queue, self.again = [], []

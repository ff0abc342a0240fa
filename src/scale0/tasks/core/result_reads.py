"""Reads the results of ended tasks from the store. Invariants: one query is under way at a time, and its answer is at
most `max_message_bytes`, or one result; requests are answered in their order, each with at least one result."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from scale0.broker.core.state import BrokerState
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.storage.task_queries import ReadResults
from scale0.storage.task_rows import FAILED, checksum
from scale0.tasks.core.stored_backlog import StoredBacklog
from scale0.tasks.jsonrpc.messages import DAMAGED, error_object

MAX_RESULTS: Final = 1_000
"""Results that one query reads: some 10 ms of the store, for which commits wait."""

StoredResult = tuple[int, bytes] | None
"""Status and body; None: the task is not ended any more."""
DAMAGED_RESULT: Final = error_object(
    DAMAGED, "the task has ended, but its stored result is damaged; see `scale0 store check`"
)
Then = Callable[[Sequence[StoredResult], Now, Effects], None]


class ResultReads:
    def __init__(self, state: BrokerState, backlog: StoredBacklog) -> None:
        self._state = state
        self._backlog = backlog
        self._waiting: deque[tuple[tuple[int, ...], Then]] = deque()
        self._reading = False

    def ask(self, seqs: tuple[int, ...], then: Then, effects: Effects) -> None:
        """Reads the results of these tasks, at least one; `then` gets those of the first ones, as many as fit."""
        self._waiting.append((seqs[:MAX_RESULTS], then))
        self._next(effects)

    def _next(self, effects: Effects) -> None:
        if self._reading or not self._waiting:
            return
        self._reading = True
        requests: list[tuple[tuple[int, ...], Then]] = []
        seqs: list[int] = []
        while self._waiting and (not seqs or len(seqs) + len(self._waiting[0][0]) <= MAX_RESULTS):
            requests.append(self._waiting.popleft())
            seqs += requests[-1][0]

        def answered(rows: Sequence[tuple[int, bytes, int] | None], _mark: int, now: Now, out: Effects) -> None:
            self._reading = False
            results = [None if row is None else intact(seq, *row) for seq, row in zip(seqs, rows, strict=False)]
            first = 0
            unread: list[tuple[tuple[int, ...], Then]] = []
            for request in requests:
                wanted, then = request
                found = results[first : first + len(wanted)]
                first += len(wanted)
                if found:
                    then(found, now, out)
                else:
                    unread.append(request)
            self._waiting.extendleft(reversed(unread))
            self._next(out)

        self._backlog.ask(ReadResults(tuple(seqs), self._state.limits.max_message_bytes), answered, effects)


def intact(seq: int, status: int, body: bytes, result_sum: int) -> tuple[int, bytes]:
    """Status and body of an ended task; an error in place of a body that is not the one that was stored."""
    if result_sum and checksum(seq, body) != result_sum:
        return FAILED, DAMAGED_RESULT
    return status, body

"""Reads of the store for clients and nodes, in turn by sender. A commit waits for the reads before it, and everybody
waits for commits. Invariants: reads of at most MAX_ROWS rows are under way, unless one read alone has more; the reads
of one sender stay in order; what one sender has waiting is bounded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.tasks.core.stored_backlog import StoredBacklog
from scale0.tasks.jsonrpc.messages import RATE_LIMITED, RpcError

MAX_ROWS: Final = 1_000
"""Some 10 ms of the store."""
MAX_WAITING_ROWS: Final = 100_000
"""Rows of one sender that wait to be read."""
ROW_BYTES: Final = 1_024
"""Size that counts as one waiting row."""
PIECE_IDS: Final = 500
"""Tasks that one query looks up; more are several queries."""

Then = Callable[[Any, int, Now, Effects], None]
Found = Callable[[Any, Now, Effects], None]


class WaitingRead(NamedTuple):
    query: Any
    rows: int
    weight: int
    """Rows as which its size counts."""
    then: Then


class FairReads:
    def __init__(self, backlog: StoredBacklog) -> None:
        self._backlog = backlog
        self._queues: dict[Any, deque[WaitingRead]] = {}
        """By sender; in turn."""
        self._waiting: dict[Any, int] = {}
        """Rows, by sender."""
        self._under_way = 0
        """Rows."""

    def has_room(self, sender: Any, rows: int, size: int = 0) -> bool:
        """False if too much of this sender's waits already."""
        waiting = self._waiting.get(sender, 0)
        return not waiting or waiting + rows + size // ROW_BYTES <= MAX_WAITING_ROWS

    def check(self, sender: Any, rows: int, size: int = 0, code: int = RATE_LIMITED) -> None:
        """Raises RpcError if too much of this sender's waits already."""
        if not self.has_room(sender, rows, size):
            waiting = self._waiting[sender]
            message = f"{waiting} tasks wait to be looked up for this client: repeat the call when they are answered"
            raise RpcError(code, message)

    def hold(self, sender: Any, rows: int, size: int = 0) -> None:
        """Counts rows that the sender waits for, and bytes that are kept for it, until `let_go`."""
        if rows := rows + size // ROW_BYTES:
            self._waiting[sender] = self._waiting.get(sender, 0) + rows

    def let_go(self, sender: Any, rows: int, size: int = 0) -> None:
        left = self._waiting.get(sender, 0) - rows - size // ROW_BYTES
        if left:
            self._waiting[sender] = left
        else:
            self._waiting.pop(sender, None)

    def find(
        self,
        sender: Any,
        ids: Sequence[str],
        then: Found,
        effects: Effects,
        size: int = 0,
        brief: bool = True,
    ) -> None:
        """`StoredBacklog.find` in turn, for at most PIECE_IDS tasks. `size`: bytes that `then` keeps until it is
        called; they count as rows that wait."""

        def found(rows: Any, now: Now, out: Effects) -> None:
            self.let_go(sender, 0, size)
            then(rows, now, out)

        def ask(query: Any, answered: Then, out: Effects) -> None:
            self.ask(sender, query, len(ids), answered, out)

        self.hold(sender, 0, size)
        self._backlog.find(tuple(ids), found, effects, brief=brief, ask=ask)

    def ask(self, sender: Any, query: Any, rows: int, then: Then, effects: Effects, size: int = 0) -> None:
        """Queries the store when it is the sender's turn. `size`: bytes that `then` keeps until it is called."""
        self.hold(sender, rows, size)
        self._queues.setdefault(sender, deque()).append(WaitingRead(query, rows, size // ROW_BYTES, then))
        effects.reads += rows
        self._next(effects)

    def _next(self, effects: Effects) -> None:
        while self._queues:
            sender, queue = next(iter(self._queues.items()))
            read = queue[0]
            if self._under_way and self._under_way + read.rows > MAX_ROWS:
                return
            del self._queues[sender]
            queue.popleft()
            if queue:
                self._queues[sender] = queue  # behind the others
            self._under_way += read.rows
            self._read(sender, read, effects)

    def _read(self, sender: Any, read: WaitingRead, effects: Effects) -> None:
        def answered(found: Any, mark: int, now: Now, out: Effects) -> None:
            self._under_way -= read.rows
            self.let_go(sender, read.rows + read.weight)
            try:
                read.then(found, mark, now, out)
            finally:
                self._next(out)

        self._backlog.ask(read.query, answered, effects, rows=0)

"""A host for machines in tests: the real order of a turn (`kernel.turn`) over a store whose commits a test can hold.

Commits are done when the turn that decided them has ended, one after the other; queries are answered behind the commit
of their turn. A commit that is held, or whose store cannot be reached, stays in flight, and what is decided meanwhile
goes into the next one, as in `kernel/edge/commits.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, Message, Readers
from scale0.kernel.machine import Machine, Sent
from scale0.kernel.turn import Turn
from scale0.storage.interface import StoredJournal
from simulator.fake_postgres.store import StoreUnreachable

UNLIMITED_BYTES = 1 << 40


class Commit(NamedTuple):
    """What one commit stores, and what follows."""

    writes: list[Any]
    releases: list[Callable[[], None]]
    asks: list[Any]


class InstantHost:
    """Commits and store queries take no time, unless `blocked`.

    `send` gets a peer and frames; `releasing` is True while it is called for what a commit released. An ask whose class
    is not in `answered` gets no answer.
    """

    def __init__(
        self,
        clock: Callable[[], Now],
        send: Callable[[Any, list[bytes]], Sent],
        disconnect: Callable[[str], object] = lambda _: None,
        answered: tuple[type, ...] = (),
    ) -> None:
        self.read_clock = clock
        self.send = send
        self.disconnect_one = disconnect
        self.events: deque[Any] = deque()
        self.releasing = False
        self.crashed = False
        """Nothing more is committed, answered or released."""
        self.blocked = False
        """Commits do not return."""
        self.in_flight: Commit | None = None
        self._answered = answered

    def begin(self, machine: Machine, store: Any, journal: StoredJournal | None = None) -> None:
        """A machine starts, on this store."""
        self._machine, self.store, self._journal = machine, store, journal
        self._turn = Turn(machine, self, UNLIMITED_BYTES)
        self._next, self.in_flight = Commit([], [], []), None
        self.crashed = False

    def finish(self, effects: Effects) -> None:
        """The end of a turn, and the turns that follow from its commit and its queries."""
        self._turn.finish(effects, self.read_clock())
        self.go_on()

    def commit(self, writes: list[Any], events: list[Any], release: Callable[[], None] | None, now: Now) -> None:
        if self.crashed:
            return
        self.events += events
        self._next.writes.extend([*writes, *(self._journal.append(events, now) if self._journal is not None else ())])
        if release is not None:
            self._next.releases.append(release)
        self._begin_next()

    def ask(self, ask: Any) -> None:
        if isinstance(ask, self._answered):
            self._next.asks.append(ask)
            self._begin_next()

    def _begin_next(self) -> None:
        """One commit is in flight at a time."""
        if self.in_flight is None and any(self._next):
            self.in_flight, self._next = self._next, Commit([], [], [])

    def go_on(self) -> None:
        """Does one commit after the other, until nothing is left, commits are blocked, or the store is away."""
        while self.in_flight is not None and not self.crashed:
            if (self.blocked and (self.in_flight.writes or self.in_flight.asks)) or not self._end():
                return

    def end_one(self) -> None:
        """The commit in flight is done; the next one begins."""
        if self.in_flight is not None:
            self._end()
        self.go_on()

    def store_one(self) -> None:
        """The commit in flight is stored, and nobody has heard of it."""
        if self.in_flight is not None and self.in_flight.writes:
            self.store.commit(self.in_flight.writes)

    def _end(self) -> bool:
        """Stores, releases and answers; False if the store cannot be reached."""
        commit = self.in_flight
        assert commit is not None
        try:
            self.store_one()
            answers = [(ask, self.store.read(ask.ask)) for ask in commit.asks]
        except StoreUnreachable:
            return False
        self.in_flight = None
        for release in commit.releases:
            self.releasing = True
            release()
            self.releasing = False
        if answers:
            effects = Effects()
            for ask, value in answers:
                self._machine.answer(ask, value, self.read_clock(), effects)
            self._turn.finish(effects, self.read_clock())
        self._begin_next()
        return True

    def pack(self, peer: Any, messages: Sequence[Message]) -> list[list[bytes]]:
        packed: list[list[bytes]] = peer.pack(messages)
        return packed

    def disconnect(self, endpoint: str) -> None:
        self.disconnect_one(endpoint)

    def publish(self, socket: str, frames: list[bytes], readers: Readers | None) -> None: ...
    def dial(self, endpoint: str) -> None: ...
    def close(self, peer: Any) -> None: ...
    def drop(self, peer: Any) -> None: ...
    def note_backlog(self, peer: Any, size: int) -> None: ...

    def failed(self, where: str, error: Exception) -> None:
        raise error

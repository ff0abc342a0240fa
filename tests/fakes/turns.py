"""A host for machines in tests: the real order of a turn (`kernel.turn`) over a store that commits at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from scale0.history.events.journal import Journal
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, Message
from scale0.kernel.machine import Machine, Sent
from scale0.kernel.turn import Turn

UNLIMITED_BYTES = 1 << 40


class InstantHost:
    """Commits and store queries are done when the turn that decided them has ended; nothing takes time.

    `send` gets a peer and frames; `releasing` is True while it is called for what a commit released. An ask whose class
    is not in `answered` gets no answer.
    """

    def __init__(
        self,
        clock: Callable[[], Now],
        send: Callable[[Any, list[bytes]], Sent],
        hang_up: Callable[[str], object] = lambda _: None,
        answered: tuple[type, ...] = (),
    ) -> None:
        self.read_clock = clock
        self.send = send
        self.hang_up_one = hang_up
        self.events: list[Any] = []
        self.releasing = False
        self.crashed = False
        """Nothing more is committed, answered or released."""
        self._answered = answered
        self._after_turn: list[Callable[[], None]] = []

    def begin(self, machine: Machine, store: Any, journal: Journal | None = None) -> None:
        """A machine starts, on this store."""
        self._machine, self._store, self._journal = machine, store, journal
        self._turn = Turn(machine, self, UNLIMITED_BYTES)
        self._after_turn.clear()

    def finish(self, effects: Effects) -> None:
        """The end of a turn, and the turns that follow from its commit and its queries."""
        self._turn.finish(effects, self.read_clock())
        while self._after_turn and not self.crashed:
            self._after_turn.pop(0)()

    def commit(self, writes: list[Any], events: list[Any], release: Callable[[], None] | None, now: Now) -> None:
        if self.crashed:
            return
        self.events += events
        row = self._journal.append(events, now) if self._journal is not None and events else None
        if row is not None:
            writes.append(row)
        if writes:
            self._store.commit(writes)
        if release is not None:
            self._after_turn.append(lambda: self._release(release))

    def _release(self, release: Callable[[], None]) -> None:
        self.releasing = True
        release()
        self.releasing = False

    def ask(self, ask: Any) -> None:
        if isinstance(ask, self._answered):
            self._after_turn.append(lambda: self._answer(ask))

    def _answer(self, ask: Any) -> None:
        effects = Effects()
        self._machine.answer(ask, self._store.read(ask.ask), self.read_clock(), effects)
        self._turn.finish(effects, self.read_clock())

    def pack(self, peer: Any, messages: Sequence[Message]) -> list[list[bytes]]:
        packed: list[list[bytes]] = peer.pack(messages)
        return packed

    def hang_up(self, endpoint: str) -> None:
        self.hang_up_one(endpoint)

    def publish(self, socket: str, frames: list[bytes]) -> None: ...
    def dial(self, endpoint: str) -> None: ...
    def close(self, peer: Any) -> None: ...

    def failed(self, where: str, error: Exception) -> None:
        raise error

"""The disk of a simulated broker: the counterpart of `kernel/edge/commits.py`, with commits that take time and can be
interrupted by a crash. Invariants: a release or an answer follows the commit that it waits for; a read follows all
writes that were added before it; a commit that a crash interrupts is stored completely or not at all."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Protocol

from scale0.kernel.effects import StoreQuery
from scale0.storage.memory.store import MemoryStore
from simulator.virtual_time import Agenda


class Process(Protocol):
    """The owner of the disk."""

    @property
    def life(self) -> int: ...
    @property
    def asleep(self) -> bool: ...

    on_waking: list[Callable[[], None]]

    def crash(self, silent: bool) -> None: ...
    def answer(self, answers: list[tuple[StoreQuery, Any]]) -> None: ...


class Disk:
    """One disk, across all processes of its broker."""

    crash_point: str
    """`before` or `after`: the process crashes before or after the next commit; empty: it does not."""
    low: float
    high: float
    """The duration of a commit."""

    def __init__(self, agenda: Agenda, rng: random.Random, node: Process) -> None:
        self._agenda = agenda
        self._rng = rng
        self.node = node
        self.heal()
        self.on_stored: Callable[[Any], None] = lambda _: None
        """Called with each note when its writes are durable."""
        self.open(MemoryStore())

    def heal(self) -> None:
        self.crash_point = ""
        self.restore_speed()

    def restore_speed(self) -> None:
        self.low, self.high = 0.0005, 0.004

    def open(self, store: MemoryStore) -> None:
        self.store = store
        self._writes: list[Any] = []
        self._releases: list[Callable[[], None]] = []
        self._questions: list[StoreQuery] = []
        self._notes: list[Any] = []
        self._in_flight = False

    @property
    def busy(self) -> bool:
        """True while a commit is in flight."""
        return self._in_flight

    def add(self, writes: list[Any], release: Callable[[], None] | None, note: Any = None) -> None:
        """Stores the writes, then calls `release`. Without writes, `release` waits for the earlier ones. A note
        requires writes."""
        self._writes.extend(writes)
        if note is not None:
            self._notes.append(note)
        if release is not None:
            self._releases.append(release)
        self._next()

    def ask(self, question: StoreQuery) -> None:
        """Reads after everything that was added before."""
        self._questions.append(question)
        self._next()

    def _next(self) -> None:
        if self._in_flight:
            return
        writes, self._writes = self._writes, []
        releases, self._releases = self._releases, []
        questions, self._questions = self._questions, []
        notes, self._notes = self._notes, []
        if not writes and not questions:
            for release in releases:
                release()
            return
        self._in_flight = True
        seconds = self.low + (self.high - self.low) * self._rng.random()
        self._agenda.after(seconds, self._commit, writes, releases, questions, notes, self.node.life)

    def _commit(
        self,
        writes: list[Any],
        releases: list[Callable[[], None]],
        questions: list[StoreQuery],
        notes: list[Any],
        life: int,
    ) -> None:
        if life != self.node.life:
            return
        crash_point, self.crash_point = (self.crash_point, "") if writes else ("", self.crash_point)
        if writes and crash_point != "before":
            self.store.commit(writes)
            for note in notes:
                self.on_stored(note)
        if crash_point:
            self.node.crash(silent=False)
            return
        answers = [(question, self.store.read(question.ask)) for question in questions]
        self._in_flight = False
        if self.node.asleep:
            self.node.on_waking.append(lambda: self._release(releases, answers))
        else:
            self._release(releases, answers)

    def _release(self, releases: list[Callable[[], None]], answers: list[tuple[StoreQuery, Any]]) -> None:
        for release in releases:
            release()
        if answers:
            self.node.answer(answers)
        self._next()

"""What the simulated broker and Helen have in common: the host of `kernel.turn` over all processes of one machine, with
clocks, an inbox, an alarm, suspension and a disk.

Invariants: messages of a turn leave at its end; a commit takes virtual time, and a crash preserves exactly what was
committed; what was scheduled for one process never acts on another.
"""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, StoreQuery
from scale0.kernel.turn import Turn
from scale0.storage.interface import OpenedStore, StoredJournal
from scale0.storage.memory.store import MemoryStore
from simulator.network.connections import Wire
from simulator.network.disk import Disk
from simulator.virtual_time import Agenda, Diary

EPOCH_WALL: Final = 1_700_000_000.0
"""The wall clock at the start of every simulation."""
BACKLOG_RETRY_SECONDS: Final = 0.05
LEAST_SECONDS: Final = 1e-6
"""Retry delay of a timer that fired early because of rounding."""


class SimulatedProcess:
    """One machine, across all its processes. A subclass composes its machine in `start`, and implements `_turn`."""

    _driver: Turn

    def __init__(self, agenda: Agenda, diary: Diary, rng: random.Random, name: str) -> None:
        self._agenda = agenda
        self._diary = diary
        self._rng = rng
        self.name = name
        self.life = 0
        self.lives = 0
        self.up = False
        self.asleep = False
        self.on_waking: list[Callable[[], None]] = []
        self.wall_offset = 0.0
        self.latency = 0.0001
        self.started = 0.0
        self.wires: dict[bytes, Wire] = {}
        self.disk = Disk(agenda, rng, self)
        self._mono_base = 0.0

    @property
    def machine(self) -> Any:
        raise NotImplementedError

    @property
    def now(self) -> Now:
        """The time by this machine's clocks."""
        at = self._agenda.now
        return Now(self._mono_base + at, EPOCH_WALL + self.wall_offset + at)

    def virtual(self, mono: float) -> float:
        """Converts this machine's monotonic time to the time of the world."""
        return mono - self._mono_base

    def _begin(self, store: MemoryStore) -> tuple[OpenedStore, int]:
        """Begins a process on this store; returns the opened store, and the boot."""
        self.life += 1
        self.lives += 1
        self.up, self.asleep, self.on_waking = True, False, []
        self._mono_base = self._rng.random() * 10_000.0
        self._inbox: deque[Any] = deque()
        self._turn_due = False
        self._alarm_at = float("inf")
        self.wires = {}
        self.disk.crash_point = ""
        self.disk.open(store)
        self.started = self._agenda.now
        opened = store.open()
        boot = max(int(self.now.wall * 1_000_000), opened.last_boot_us + 1)
        self._journal = StoredJournal(self.name, boot, opened)
        return opened, boot

    def crash(self, silent: bool) -> None:
        """Ends the process at once; `silent`: its machine fails too, so that no connection is reset."""
        if not self.up:
            return
        self._diary.note(f"{self.name} {'loses power' if silent else 'is killed'}, commit in flight: {self.disk.busy}")
        self.up = False
        self.life += 1
        self._ended()
        for wire in list(self.wires.values()):
            wire.end_of_broker(silent)
        self.wires = {}

    def _ended(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        """Stops in order, as on SIGTERM."""
        self._stop_machine()
        self._agenda.after(self.disk.high * 2, self._stopped, self.life)

    def _stop_machine(self) -> None:
        raise NotImplementedError

    def _stopped(self, life: int) -> None:
        if life == self.life:
            self.crash(silent=False)

    def sleep(self) -> None:
        """SIGSTOP."""
        self.asleep = self.up

    def wake(self) -> None:
        """SIGCONT: timers fire before received messages are read, as on a real machine."""
        if not self.asleep:
            return
        self.asleep = False
        waiting, self.on_waking = self.on_waking, []
        inbox, self._inbox = self._inbox, deque()
        for act in waiting:
            act()
        self._turn_due = False
        self._turn(self.life)
        self._inbox.extend(inbox)
        self._soon(self._rng.random() * 0.05)

    def _soon(self, seconds: float) -> None:
        if not self._turn_due:
            self._turn_due = True
            self._agenda.after(seconds, self._turn, self.life)

    def _turn(self, life: int) -> None:
        raise NotImplementedError

    def _finish(self, effects: Effects, now: Now) -> None:
        self._driver.finish(effects, now)
        self._arm()

    def _arm(self) -> None:
        due = self.machine.deadline()
        when = float("inf") if due is None else self.virtual(due)
        if self._driver.backlogs:
            when = min(when, self._agenda.now + BACKLOG_RETRY_SECONDS)
        when = max(when, self._agenda.now + LEAST_SECONDS)
        if when < self._alarm_at:
            self._alarm_at = when
            self._agenda.at(when, self._ring, when, self.life)

    def _ring(self, when: float, life: int) -> None:
        if life != self.life or when != self._alarm_at:
            return
        self._alarm_at = float("inf")
        if self.asleep:
            self.on_waking.append(self._arm)
            return
        due = self.machine.deadline()
        if self._driver.backlogs or (due is not None and due <= self.now.mono):
            self._on_alarm()
        else:
            self._arm()

    def _on_alarm(self) -> None:
        self._turn(self.life)

    def answer(self, answers: list[tuple[StoreQuery, Any]]) -> None:
        """Handles the answers of the disk in one turn."""
        now, effects = self.now, Effects()
        for question, value in answers:
            self.machine.answer(question, value, now, effects)
        self._finish(effects, now)

    # The host of a turn: see kernel.turn.TurnHost.

    def read_clock(self) -> Now:
        return self.now

    def failed(self, where: str, error: Exception) -> None:
        raise error

    def _store(self, writes: list[Any], release: Callable[[], None] | None, note: Any = None) -> None:
        if writes or release is not None:
            self.disk.add(writes, None if release is None else functools.partial(self._released, release), note)

    def _released(self, release: Callable[[], None]) -> None:
        release()
        self._soon(self.latency)

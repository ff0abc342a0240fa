"""A broker in the simulation: the real state machines, run as `kernel/edge/runner.py` runs them, with commits in
virtual time, crashes, restarts and suspensions. Invariants: messages of a turn leave at its end; promises and
publications leave after their commit; commits are ordered, one in flight; a crash preserves exactly what was
committed."""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from scale0.broker.admin.access import VerifyPassword, digest_of
from scale0.broker.admin.commands import ReadHistory, ReadOwnFile
from scale0.broker.core.broker import Broker
from scale0.broker.core.connections import Connection
from scale0.broker.main.composition import compose_broker, start_broker
from scale0.config import BrokerConfig
from scale0.history.events.journal import Journal
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, Message, StoreQuery
from scale0.kernel.machine import Sent
from scale0.kernel.turn import Turn
from scale0.storage.interface import OpenedStore
from scale0.storage.memory.store import MemoryStore
from simulator.network.connections import Parcel, Wire
from simulator.network.disk import Disk
from simulator.virtual_time import Agenda, Diary

EPOCH_WALL: Final = 1_700_000_000.0
"""The wall clock at the start of every simulation."""
BACKLOG_RETRY_SECONDS: Final = 0.05
TURN_MESSAGES: Final = 1_000
LEAST_SECONDS: Final = 1e-6
"""Retry delay of a timer that fired early because of rounding."""
LOCAL_TOKEN: Final = "s0_local"

Mail = tuple[Wire, list[bytes]]


class Watch(Protocol):
    """The observer interface: see `simulator.invariants`."""

    def began(self, node: BrokerNode, opened: OpenedStore, with_disk: bool) -> None: ...
    def before_turn(self, node: BrokerNode, mail: Sequence[Mail], now: Now) -> None: ...
    def happened(self, node: BrokerNode, event: Any, now: Now) -> None: ...
    def decided(self, node: BrokerNode, writes: Sequence[Any], now: Now) -> None: ...
    def said(self, node: BrokerNode, wire: Wire | None, peer: Connection, messages: Sequence[Message]) -> None: ...
    def after_turn(self, node: BrokerNode) -> None: ...
    def disk_lost(self, node: BrokerNode) -> None: ...
    def woke(self) -> None: ...
    def ended(self, node: BrokerNode) -> None: ...


class BrokerNode:
    """One broker, across all its processes."""

    __slots__ = (
        *("_agenda", "_alarm_at", "_rng", "_diary", "_driver", "_inbox", "_journal", "_mono_base", "_turn_due"),
        *("asleep", "broker", "capacity", "config", "disk", "latency", "life", "lives", "name", "on_waking"),
        *("on_dial", "on_hang", "on_start", "passwords", "publish", "started", "turns", "up", "wall_offset", "watch"),
        "wires",
    )

    def __init__(
        self, agenda: Agenda, diary: Diary, config: BrokerConfig, rng: random.Random, watch: Watch, capacity: int
    ) -> None:
        self._agenda = agenda
        self._diary = diary
        self._rng = rng
        self.config = config
        self.name = config.identity
        self.watch = watch
        self.capacity = capacity
        """Messages that one connection buffers for a client that does not read."""
        self.life = 0
        self.lives = 0
        self.up = False
        self.asleep = False
        self.on_waking: list[Callable[[], None]] = []
        self.wall_offset = 0.0
        self.latency = 0.0001
        self.turns = 0
        self.started = 0.0
        self.passwords: dict[str, str] = {}
        """Password hash to password: hashing itself is not simulated."""
        self.disk = Disk(agenda, rng, self)
        self.publish: Callable[[str, list[bytes]], None] = lambda *_: None
        """Delivers publications; the default discards them."""
        self.on_start: Callable[[], None] = lambda: None
        self.on_dial: Callable[[str], None] = lambda _: None
        self.on_hang: Callable[[str], None] = lambda _: None
        """Called with the endpoints of other brokers to connect to and to disconnect from."""
        self._mono_base = 0.0

    @property
    def now(self) -> Now:
        at = self._agenda.now
        return Now(self._mono_base + at, EPOCH_WALL + self.wall_offset + at)

    def virtual(self, mono: float) -> float:
        """Converts this machine's monotonic time to the time of the world."""
        return mono - self._mono_base

    def start(self, with_disk: bool = True) -> None:
        """Starts a process on the disk of the previous one, or on a new disk."""
        self.life += 1
        self.lives += 1
        self.up, self.asleep = True, False
        self.on_waking = []
        self._mono_base = self._rng.random() * 10_000.0
        self._inbox: deque[Mail] = deque()
        self._turn_due = False
        self._alarm_at = float("inf")
        self.wires: dict[bytes, Wire] = {}
        self.disk.doom = ""
        if not with_disk:
            self.watch.disk_lost(self)
        self.disk.open(self.disk.store.crash() if with_disk else MemoryStore())
        self.started = self._agenda.now
        now, effects = self.now, Effects()
        opened = self.disk.store.open()
        boot = max(int(now.wall * 1_000_000), opened.last_boot_us + 1)
        endpoints = self.config.endpoints()
        self.broker: Broker = compose_broker(self.config, endpoints, opened, boot, self._rng, digest_of(LOCAL_TOKEN))
        self._driver = Turn(self.broker, self, self.broker.state.limits.max_client_bytes)
        self._journal = Journal(self.name, boot, opened.next_seq, opened.last_time_us)
        self._diary.note(f"{self.name} starts, boot {boot:x}, {'its disk' if with_disk else 'a new disk'}")
        self.watch.began(self, opened, with_disk)
        start_broker(self.broker, opened, now, effects)
        self._finish(effects, now)
        self.on_start()

    def crash(self, silent: bool) -> None:
        """Ends the process at once; `silent`: its machine fails too, so that no connection is reset."""
        if not self.up:
            return
        self._diary.note(f"{self.name} {'loses power' if silent else 'is killed'}, commit in flight: {self.disk.busy}")
        self.up = False
        self.life += 1
        self.watch.ended(self)
        for wire in list(self.wires.values()):
            wire.end_of_broker(silent)
        self.wires = {}

    def stop(self) -> None:
        """Stops in order, as on SIGTERM."""
        now, effects = self.now, Effects()
        self.broker.stop("stopped", now, effects)
        self._finish(effects, now)
        self._agenda.after(self.disk.high * 2, self._stopped, self.life)

    def _stopped(self, life: int) -> None:
        if life == self.life:
            self.crash(silent=False)

    def sleep(self) -> None:
        """SIGSTOP."""
        self.asleep = self.up

    def wake(self) -> None:
        """SIGCONT: timers fire before messages are read, as on a real machine."""
        if not self.asleep:
            return
        self.asleep = False
        self.watch.woke()
        waiting, self.on_waking = self.on_waking, []
        for act in waiting:
            act()
        inbox, self._inbox = self._inbox, deque()
        self._turn_due = False
        self._turn(self.life)
        self._inbox.extend(inbox)
        self._soon(self._rng.random() * 0.05)

    def accept(self, wire: Wire) -> None:
        self.wires[wire.routing_id] = wire

    def arrive(self, wire: Wire, parcel: Parcel) -> None:
        if parcel:
            self._inbox.append((wire, parcel))
            self._soon(self.latency)

    def subscribe(self, frame: bytes) -> None:
        """Handles an XPUB frame: the byte 1 or 0, and a topic."""
        now, effects = self.now, Effects()
        self.broker.hear_subscription([frame], now, effects)
        self._finish(effects, now)

    def hung_up(self, wire: Wire) -> None:
        """Removes a closed connection: the next send reports it."""
        self.wires.pop(wire.routing_id, None)

    def _soon(self, seconds: float) -> None:
        if not self._turn_due:
            self._turn_due = True
            self._agenda.after(seconds, self._turn, self.life)

    def _turn(self, life: int) -> None:
        if life != self.life:
            return
        if self.asleep:
            return
        self._turn_due = False
        self.turns += 1
        now, effects = self.now, Effects()
        inbox, receive = self._inbox, self.broker.receive
        if len(inbox) <= TURN_MESSAGES:
            mail, self._inbox = inbox, deque()
        else:
            mail = deque(inbox.popleft() for _ in range(TURN_MESSAGES))
            self._soon(0.0)
        self.watch.before_turn(self, mail, now)
        for wire, frames in mail:
            receive(wire.door, wire.routing_id, frames, now, effects)
        self._finish(effects, now)

    def _finish(self, effects: Effects, now: Now) -> None:
        self._driver.finish(effects, now)
        self.watch.after_turn(self)
        self._arm()

    # The host of a turn: see kernel.turn.TurnHost.

    def read_clock(self) -> Now:
        return self.now

    def ask(self, ask: Any) -> None:
        if isinstance(ask, StoreQuery) and not ask.aside:
            self.disk.ask(ask)
        else:
            self._agenda.after(0.001 + 0.05 * self._rng.random(), self._answer, ask, self.life)

    def dial(self, endpoint: str) -> None:
        self.on_dial(endpoint)

    def hang_up(self, endpoint: str) -> None:
        self.on_hang(endpoint)

    def close(self, peer: Connection) -> None:
        """A ROUTER socket cannot close a connection."""

    def failed(self, where: str, error: Exception) -> None:
        raise error

    def hear(self, answers: list[tuple[StoreQuery, Any]]) -> None:
        """Handles the answers of the disk in one turn."""
        now, effects = self.now, Effects()
        for question, value in answers:
            self.broker.answer(question, value, now, effects)
        self._finish(effects, now)

    def commit(self, writes: list[Any], events: list[Any], release: Callable[[], None] | None, now: Now) -> None:
        if writes:
            self.watch.decided(self, writes, now)
        for event in events:
            self.watch.happened(self, event, now)
        row = self._journal.append(events, now) if events else None
        if row is not None:
            writes.append(row)
        if release is not None:
            self.disk.add(writes, functools.partial(self._released, release))
        elif writes:
            self.disk.add(writes, None)

    def _released(self, release: Callable[[], None]) -> None:
        release()
        self._soon(self.latency)

    def pack(self, peer: Connection, messages: Sequence[Message]) -> list[list[bytes]]:
        self.watch.said(self, self.wires.get(peer.routing_id), peer, messages)
        return peer.pack(messages)

    def send(self, peer: Connection, frames: list[bytes]) -> Sent:
        wire = self.wires.get(peer.routing_id)
        if wire is None:
            return "gone"
        if wire.down.unread >= self.capacity:
            return "full"
        wire.to_client(frames)
        return "sent"

    def _arm(self) -> None:
        due = self.broker.deadline()
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
        due = self.broker.deadline()
        if self._driver.backlogs or (due is not None and due <= self.now.mono):
            self._turn(life)
        else:
            self._arm()

    def _answer(self, ask: Any, life: int) -> None:
        if life != self.life:
            return
        if self.asleep:
            self.on_waking.append(lambda: self._answer(ask, life))
            return
        match ask:
            case VerifyPassword():
                value: Any = self.passwords.get(ask.password_hash) == ask.password
            case ReadHistory() | StoreQuery():
                value = self.disk.store.read(ask.ask)
            case ReadOwnFile():
                value = self.config
            case _:
                raise TypeError(f"nobody answers {ask!r}")
        now, effects = self.now, Effects()
        self.broker.answer(ask, value, now, effects)
        self._finish(effects, now)

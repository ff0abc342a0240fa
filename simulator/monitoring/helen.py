"""A simulated Helen: the real machine, driven by `kernel.turn`.

Commits take virtual time; a crash leaves exactly what was committed. Observers change nothing.
"""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from scale0.config import HelenConfig
from scale0.history.events.journal import Journal
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, Message, StoreQuery
from scale0.kernel.machine import Sent
from scale0.kernel.turn import Turn
from scale0.monitoring.helen.core.helen import Helen
from scale0.monitoring.helen.core.socket_events import (
    AGENTS,
    NETWORK,
    AgentEvent,
    BytesReceived,
    ConnectionClosed,
    ConnectionOpened,
    NetworkEvent,
    RequestError,
    RequestReply,
)
from scale0.monitoring.helen.edge.composition import MAX_CLIENT_BYTES, compose_helen, read_agents, read_spools
from simulator.invariants.evaluation_recorder import EvaluationRecorder, Note, StoredTurn
from simulator.network.broker import EPOCH_WALL, LEAST_SECONDS
from simulator.network.connections import Parcel, Wire
from simulator.network.disk import Disk
from simulator.virtual_time import Agenda, Diary

Item = tuple[str, bytes, AgentEvent | NetworkEvent]
"""A received event: its socket, its routing id and the event."""

MAX_PIECES: Final = 4


class Observer(Protocol):
    """The observer: see `simulator/invariants/agents.py`."""

    def helen_started(self, node: HelenNode) -> None: ...
    def helen_ended(self, node: HelenNode) -> None: ...
    def helen_sent(self, node: HelenNode, wire: Wire, data: bytes) -> None: ...
    def helen_stored(self, node: HelenNode, turn: StoredTurn) -> None: ...


class Surroundings(Protocol):
    """The rest of the network, as a Helen sees it: see `network`."""

    def started(self, node: HelenNode) -> None: ...
    def answer(self, node: HelenNode, ask: Any) -> None: ...
    def reply(self, node: HelenNode, routing_id: bytes, answer: RequestReply | RequestError) -> None: ...
    def revoked(self, name: str, serial: str, issued: float) -> bool: ...


class HelenNode:
    """One Helen, over all her processes."""

    __slots__ = (
        *("_agenda", "_alarm_at", "_rng", "_diary", "_driver", "_inbox", "_journal", "_mono_base", "_notes"),
        *(
            "surroundings",
            "asleep",
            "config",
            "disk",
            "helen",
            "life",
            "lives",
            "observer",
            "name",
            "on_waking",
            "place",
        ),
        *("_turn_due", "started", "up", "wall_offset", "wires"),
    )

    def __init__(
        self,
        agenda: Agenda,
        diary: Diary,
        config: HelenConfig,
        rng: random.Random,
        observer: Observer,
        surroundings: Surroundings,
    ) -> None:
        self._agenda = agenda
        self._diary = diary
        self._rng = rng
        self.config = config
        self.name = config.identity
        self.place = (config.advertise, config.helen_port)
        self.observer = observer
        self.surroundings = surroundings
        self.life = 0
        self.lives = 0
        self.up = False
        self.asleep = False
        self.on_waking: list[Callable[[], None]] = []
        self.wall_offset = 0.0
        self.started = 0.0
        self.wires: dict[bytes, Wire] = {}
        self.disk = Disk(agenda, rng, self)
        self.disk.on_stored = self._stored
        self._mono_base = 0.0

    @property
    def now(self) -> Now:
        """The time by this machine's clocks."""
        at = self._agenda.now
        return Now(self._mono_base + at, EPOCH_WALL + self.wall_offset + at)

    def start(self) -> None:
        """Start a process on the disk that the last one left."""
        self.life += 1
        self.lives += 1
        self.up, self.asleep, self.on_waking = True, False, []
        self._mono_base = self._rng.random() * 10_000.0
        self._inbox: deque[Item] = deque()
        self._turn_due = False
        self._alarm_at = float("inf")
        self.wires = {}
        self.disk.doom = ""
        self.disk.open(self.disk.store.crash())
        self.started = self._agenda.now
        now, effects = self.now, Effects()
        opened = self.disk.store.open()
        boot = max(int(now.wall * 1_000_000), opened.last_boot_us + 1)
        self._journal = Journal(self.name, boot, opened.next_seq, opened.last_time_us)
        self.helen: Helen = compose_helen(self.config, self.config.helen_port, self.disk.store)
        self._driver = Turn(self.helen, self, MAX_CLIENT_BYTES)
        self._notes: list[Note] = []
        recorder: Any = EvaluationRecorder(self.helen.state.evaluation, self._notes)
        self.helen.state.evaluation = recorder
        self._diary.note(f"{self.name} starts, boot {boot:x}")
        self.observer.helen_started(self)
        self.helen.start(read_agents(self.disk.store), read_spools(self.disk.store), now, effects)
        self.helen.revoke(self.surroundings.revoked, now, effects)
        self._finish(effects, now)
        self.surroundings.started(self)

    def crash(self, silent: bool) -> None:
        """End the process at once; `silent`: with its machine, so that no connection is reset."""
        if not self.up:
            return
        self._diary.note(f"{self.name} {'loses power' if silent else 'is killed'}, commit in flight: {self.disk.busy}")
        self.up = False
        self.life += 1
        for wire in list(self.wires.values()):
            wire.end_of_broker(silent)
        self.wires = {}
        self.observer.helen_ended(self)

    def stop(self) -> None:
        """An orderly stop, as on SIGTERM."""
        self.take(self.helen.stop)
        self._agenda.after(self.disk.high * 2, self._stopped, self.life)

    def _stopped(self, life: int) -> None:
        if life == self.life:
            self.crash(silent=False)

    def sleep(self) -> None:
        """SIGSTOP."""
        self.asleep = self.up

    def wake(self) -> None:
        """SIGCONT: timers fire before received data is read, as on a real machine."""
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

    def accept(self, wire: Wire, opened: ConnectionOpened) -> None:
        self.wires[wire.routing_id] = wire
        self._put(AGENTS, wire.routing_id, opened)

    def arrive(self, wire: Wire, parcel: Parcel) -> None:
        if parcel:
            self._put(AGENTS, wire.routing_id, BytesReceived(parcel[0]))

    def hung_up(self, wire: Wire) -> None:
        if self.wires.pop(wire.routing_id, None) is not None:
            self._put(AGENTS, wire.routing_id, ConnectionClosed("closed", orderly=not wire.open))

    def request(self, routing_id: bytes, event: NetworkEvent) -> None:
        if self.up:
            self._put(NETWORK, routing_id, event)

    def take(self, do: Callable[[Now, Effects], Any]) -> None:
        """A turn for an input that comes by no socket."""
        if not self.up:
            return
        if self.asleep:
            self.on_waking.append(lambda: self.take(do))
            return
        now, effects = self.now, Effects()
        do(now, effects)
        self._finish(effects, now)

    def _put(self, socket: str, routing_id: bytes, event: AgentEvent | NetworkEvent) -> None:
        self._inbox.append((socket, routing_id, event))
        self._soon(0.0001)

    def _soon(self, seconds: float) -> None:
        if not self._turn_due:
            self._turn_due = True
            self._agenda.after(seconds, self._turn, self.life)

    def _turn(self, life: int) -> None:
        if life != self.life or self.asleep:
            return
        self._turn_due = False
        now, effects = self.now, Effects()
        inbox, self._inbox = self._inbox, deque()
        for socket, routing_id, event in inbox:
            self.helen.receive(socket, routing_id, [event], now, effects)
        self._finish(effects, now)

    def _finish(self, effects: Effects, now: Now) -> None:
        self._driver.finish(effects, now)
        self._arm()

    # The host of a turn: see kernel.turn.TurnHost.

    def read_clock(self) -> Now:
        return self.now

    def ask(self, ask: Any) -> None:
        if isinstance(ask, StoreQuery):
            self.disk.ask(ask)
        else:
            self.surroundings.answer(self, ask)

    def commit(self, writes: list[Any], events: list[Any], release: Callable[[], None] | None, now: Now) -> None:
        row = self._journal.append(events, now) if events else None
        if row is not None:
            writes.append(row)
        turn = None
        if writes:
            turn = StoredTurn(self._agenda.now, now.wall, tuple(self._notes), tuple(events), tuple(writes), row)
            self._notes.clear()
        if writes or release is not None:
            self.disk.add(writes, None if release is None else functools.partial(self._released, release), turn)

    def _stored(self, turn: StoredTurn) -> None:
        self.observer.helen_stored(self, turn)

    def _released(self, release: Callable[[], None]) -> None:
        release()
        self._soon(0.0001)

    def pack(self, peer: Any, messages: Sequence[Message]) -> list[list[Any]]:
        packed: list[list[Any]] = peer.pack(messages)
        return packed

    def send(self, peer: Any, frames: list[Any]) -> Sent:
        if peer.door == NETWORK:
            self.surroundings.reply(self, peer.routing_id, frames[0])
            return "sent"
        wire = self.wires.get(peer.routing_id)
        if wire is None:
            return "gone"
        data = b"".join(frames)
        self.observer.helen_sent(self, wire, data)
        for piece in cut(data, self._rng):
            wire.to_client([piece])
        return "sent"

    def publish(self, socket: str, frames: list[bytes]) -> None:
        raise TypeError("Helen publishes nothing")

    def dial(self, endpoint: str) -> None:
        raise TypeError("Helen dials nobody")

    def hang_up(self, endpoint: str) -> None:
        raise TypeError("Helen dials nobody")

    def close(self, peer: Any) -> None:
        wire = self.wires.pop(peer.routing_id, None) if peer.door == AGENTS else None
        if wire is not None:
            wire.end_of_broker(silent=False)

    def failed(self, where: str, error: Exception) -> None:
        raise error

    def hear(self, answers: list[tuple[StoreQuery, Any]]) -> None:
        """The disk's answers, in one turn."""
        now, effects = self.now, Effects()
        for question, value in answers:
            self.helen.answer(question, value, now, effects)
        self._finish(effects, now)

    def tell(self, ask: Any, value: Any, life: int) -> None:
        """The network's answer, if the process that asked still runs."""
        if life == self.life:
            self.take(lambda now, effects: self.helen.answer(ask, value, now, effects))

    def _arm(self) -> None:
        due = self.helen.deadline()
        when = float("inf") if due is None else due - self._mono_base
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
        due = self.helen.deadline()
        if due is not None and due <= self.now.mono:
            self._finish(Effects(), self.now)
        else:
            self._arm()


def cut(data: bytes, rng: random.Random) -> list[bytes]:
    """The same bytes in a few pieces, cut anywhere."""
    if len(data) < 2 or rng.random() < 0.5:
        return [data]
    places = sorted(rng.randrange(1, len(data)) for _ in range(rng.randint(1, MAX_PIECES - 1)))
    return [data[begin:end] for begin, end in zip([0, *places], [*places, len(data)], strict=True) if begin < end]

"""A simulated Helen: the real machine, driven by `kernel.turn`.

Commits take virtual time; a crash leaves exactly what was committed. Observers change nothing.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from scale0.config import HelenConfig
from scale0.history.events.journal import JournalRow
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, Message, Readers, StoreQuery
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
from simulator.network.connections import Parcel, Wire
from simulator.network.process import SimulatedProcess
from simulator.virtual_time import Agenda, Diary

Item = tuple[str, bytes, AgentEvent | NetworkEvent]
"""A received event: its socket, its routing id and the event."""

MAX_PIECES: Final = 4
ALONE_SECONDS: Final = 120.0
"""After a start, how long another Helen may have an agent that is not connected here."""


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


class HelenNode(SimulatedProcess):
    def __init__(
        self,
        agenda: Agenda,
        diary: Diary,
        config: HelenConfig,
        rng: random.Random,
        observer: Observer,
        surroundings: Surroundings,
    ) -> None:
        super().__init__(agenda, diary, rng, config.identity)
        self.config = config
        self.place = (config.advertise, config.helen_port)
        self.observer = observer
        self.surroundings = surroundings
        self.disk.on_stored = self._stored

    @property
    def machine(self) -> Helen:
        return self.helen

    def start(self) -> None:
        """Start a process on the disk that the last one left."""
        _, boot = self._begin(self.disk.store.crash())
        now, effects = self.now, Effects()
        self.helen: Helen = compose_helen(self.config, self.config.helen_port, self.disk.store)
        self._driver = Turn(self.helen, self, MAX_CLIENT_BYTES)
        self._notes: list[Note] = []
        self._started_at = now.mono
        recorder: Any = EvaluationRecorder(self.helen.state.evaluation, self._notes, self._is_unknown)
        self.helen.state.evaluation = recorder
        self._diary.note(f"{self.name} starts, boot {boot:x}")
        self.observer.helen_started(self)
        self.helen.start(read_agents(self.disk.store), read_spools(self.disk.store), now, effects)
        self.helen.expect_replicas(now)
        self.helen.revoke(self.surroundings.revoked, now, effects)
        self._finish(effects, now)
        self.surroundings.started(self)

    def _is_unknown(self, identity: str) -> bool:
        if self.now.mono >= self._started_at + ALONE_SECONDS:
            return False
        agent = self.helen.state.agents.get(identity)
        return agent is None or agent.connection is None

    def _ended(self) -> None:
        self.observer.helen_ended(self)

    def _stop_machine(self) -> None:
        self.take(self.helen.stop)

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
        self._soon(self.latency)

    def _turn(self, life: int) -> None:
        if life != self.life or self.asleep:
            return
        self._turn_due = False
        now, effects = self.now, Effects()
        inbox, self._inbox = self._inbox, deque()
        for socket, routing_id, event in inbox:
            self.helen.receive(socket, routing_id, [event], now, effects)
        self._finish(effects, now)

    def _on_alarm(self) -> None:
        self._finish(Effects(), self.now)

    # The host of a turn: see kernel.turn.TurnHost.

    def ask(self, ask: Any) -> None:
        if isinstance(ask, StoreQuery):
            self.disk.ask(ask)
        else:
            self.surroundings.answer(self, ask)

    def commit(self, writes: list[Any], events: list[Any], release: Callable[[], None] | None, now: Now) -> None:
        rows = self._journal.append(events, now)
        writes += rows
        turn = None
        if writes:
            row = next((one for one in rows if isinstance(one, JournalRow)), None)
            turn = StoredTurn(self._agenda.now, now.wall, tuple(self._notes), tuple(events), tuple(writes), row)
            self._notes.clear()
        self._store(writes, release, turn)

    def _stored(self, turn: StoredTurn) -> None:
        self.observer.helen_stored(self, turn)

    def pack(self, peer: Any, messages: Sequence[Message]) -> list[list[Any]]:
        packed: list[list[Any]] = peer.pack(messages)
        return packed

    def send(self, peer: Any, frames: list[Any]) -> Sent:
        if peer.socket == NETWORK:
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

    def publish(self, socket: str, frames: list[bytes], readers: Readers | None) -> None:
        raise TypeError("Helen publishes nothing")

    def dial(self, endpoint: str) -> None:
        raise TypeError("Helen dials nobody")

    def disconnect(self, endpoint: str) -> None:
        raise TypeError("Helen dials nobody")

    def close(self, peer: Any) -> None:
        wire = self.wires.pop(peer.routing_id, None) if peer.socket == AGENTS else None
        if wire is not None:
            wire.end_of_broker(silent=False)

    def drop(self, peer: Any) -> None:
        self.close(peer)

    def note_backlog(self, peer: Any, size: int) -> None: ...

    def answer_ask(self, ask: Any, value: Any, life: int) -> None:
        """The network's answer, if the process that asked still runs."""
        if life == self.life:
            self.take(lambda now, effects: self.helen.answer(ask, value, now, effects))


def cut(data: bytes, rng: random.Random) -> list[bytes]:
    """The same bytes in a few pieces, cut anywhere."""
    if len(data) < 2 or rng.random() < 0.5:
        return [data]
    places = sorted(rng.randrange(1, len(data)) for _ in range(rng.randint(1, MAX_PIECES - 1)))
    return [data[begin:end] for begin, end in zip([0, *places], [*places, len(data)], strict=True) if begin < end]

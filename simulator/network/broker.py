"""A broker in the simulation: the real state machines, run as `kernel/edge/runner.py` runs them."""

from __future__ import annotations

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
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, Message, Readers, StoreQuery
from scale0.kernel.machine import Sent
from scale0.kernel.turn import Turn
from scale0.storage.interface import OpenedStore
from scale0.storage.memory.store import MemoryStore
from simulator.network.connections import Parcel, Wire
from simulator.network.process import SimulatedProcess
from simulator.virtual_time import Agenda, Diary

TURN_MESSAGES: Final = 1_000
LOCAL_TOKEN: Final = "s0_local"

Mail = tuple[Wire, list[bytes]]


class BrokerObserver(Protocol):
    """The observer interface: see `simulator.invariants`."""

    def began(self, node: BrokerNode, opened: OpenedStore, with_disk: bool) -> None: ...
    def before_turn(self, node: BrokerNode, mail: Sequence[Mail], now: Now) -> None: ...
    def happened(self, node: BrokerNode, event: Any, now: Now) -> None: ...
    def decided(self, node: BrokerNode, writes: Sequence[Any], now: Now) -> None: ...
    def sent(self, node: BrokerNode, wire: Wire | None, peer: Connection, messages: Sequence[Message]) -> None: ...
    def after_turn(self, node: BrokerNode) -> None: ...
    def disk_lost(self, node: BrokerNode) -> None: ...
    def woke(self) -> None: ...
    def ended(self, node: BrokerNode) -> None: ...


class BrokerNode(SimulatedProcess):
    def __init__(
        self,
        agenda: Agenda,
        diary: Diary,
        config: BrokerConfig,
        rng: random.Random,
        observer: BrokerObserver,
        capacity: int,
    ) -> None:
        super().__init__(agenda, diary, rng, config.identity)
        self.config = config
        self.observer = observer
        self.capacity = capacity
        """Messages that one connection buffers for a client that does not read."""
        self.turns = 0
        self.passwords: dict[str, str] = {}
        """Password hash to password: hashing itself is not simulated."""
        self.publish: Callable[[str, list[bytes], Readers | None], None] = lambda *_: None
        """Delivers publications; the default discards them."""
        self.on_start: Callable[[], None] = lambda: None
        self.on_dial: Callable[[str], None] = lambda _: None
        self.on_disconnect: Callable[[str], None] = lambda _: None
        """Called with the endpoints of other brokers to connect to and to disconnect from."""

    @property
    def machine(self) -> Broker:
        return self.broker

    def start(self, with_disk: bool = True) -> None:
        """Starts a process on the disk of the previous one, or on a new disk."""
        if not with_disk:
            self.observer.disk_lost(self)
        opened, boot = self._begin(self.disk.store.crash() if with_disk else MemoryStore())
        now, effects = self.now, Effects()
        endpoints = self.config.endpoints()
        self.broker: Broker = compose_broker(self.config, endpoints, opened, boot, self._rng, digest_of(LOCAL_TOKEN))
        self._driver = Turn(self.broker, self, self.broker.state.limits.max_client_bytes)
        self._diary.note(f"{self.name} starts, boot {boot:x}, {'its disk' if with_disk else 'a new disk'}")
        self.observer.began(self, opened, with_disk)
        start_broker(self.broker, opened, now, effects)
        self._finish(effects, now)
        self.on_start()

    def _ended(self) -> None:
        self.observer.ended(self)

    def _stop_machine(self) -> None:
        now, effects = self.now, Effects()
        self.broker.stop("stopped", now, effects)
        self._finish(effects, now)

    def wake(self) -> None:
        if self.asleep:
            self.observer.woke()
        super().wake()

    def accept(self, wire: Wire) -> None:
        self.wires[wire.routing_id] = wire

    def arrive(self, wire: Wire, parcel: Parcel) -> None:
        if parcel:
            self._inbox.append((wire, parcel))
            self._soon(self.latency)

    def subscribe(self, frame: bytes) -> None:
        """Handles an XPUB frame: the byte 1 or 0, and a topic."""
        now, effects = self.now, Effects()
        self.broker.receive_subscription([frame], now, effects)
        self._finish(effects, now)

    def hung_up(self, wire: Wire) -> None:
        """Handles the end of a connection, after the messages that arrived before it."""
        self.wires.pop(wire.routing_id, None)
        self._inbox.append((wire, None))
        self._soon(self.latency)

    def _turn(self, life: int) -> None:
        if life != self.life or self.asleep:
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
        self.observer.before_turn(self, deque((wire, frames) for wire, frames in mail if frames is not None), now)
        for wire, frames in mail:
            if frames is None:
                self.broker.closed(wire.socket, wire.routing_id, now, effects)
            else:
                receive(wire.socket, wire.routing_id, frames, now, effects)
        self._finish(effects, now)

    def _finish(self, effects: Effects, now: Now) -> None:
        self._driver.finish(effects, now)
        self.observer.after_turn(self)
        self._arm()

    # The host of a turn: see kernel.turn.TurnHost.

    def ask(self, ask: Any) -> None:
        if isinstance(ask, StoreQuery) and not ask.aside:
            self.disk.ask(ask)
        else:
            self._agenda.after(0.001 + 0.05 * self._rng.random(), self._answer, ask, self.life)

    def dial(self, endpoint: str) -> None:
        self.on_dial(endpoint)

    def disconnect(self, endpoint: str) -> None:
        self.on_disconnect(endpoint)

    def close(self, peer: Connection) -> None:
        """A ROUTER socket cannot close a connection."""

    def drop(self, peer: Connection) -> None:
        """As `close`: the client of a simulated wire finds out by its own timeouts."""

    def note_backlog(self, peer: Connection, size: int) -> None: ...

    def commit(self, writes: list[Any], events: list[Any], release: Callable[[], None] | None, now: Now) -> None:
        if writes:
            self.observer.decided(self, writes, now)
        for event in events:
            self.observer.happened(self, event, now)
        writes += self._journal.append(events, now)
        self._store(writes, release)

    def pack(self, peer: Connection, messages: Sequence[Message]) -> list[list[bytes]]:
        self.observer.sent(self, self.wires.get(peer.routing_id), peer, messages)
        return peer.pack(messages)

    def send(self, peer: Connection, frames: list[bytes]) -> Sent:
        wire = self.wires.get(peer.routing_id)
        if wire is None:
            return "gone"
        if wire.down.unread >= self.capacity:
            return "full"
        wire.to_client(frames)
        return "sent"

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

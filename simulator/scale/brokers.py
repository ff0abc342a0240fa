"""Brokers of a large simulated network, and the connections between them. Invariants: a dialed broker is reconnected
until it is hung up; nothing is queued for an unreachable broker, as with ZMQ_IMMEDIATE."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from scale0.broker.core.connections import Connection
from scale0.config import BrokerConfig
from scale0.kernel.clock import Now
from scale0.kernel.effects import Message
from scale0.storage.interface import OpenedStore
from scale0.transport.core.sockets import CLIENT_SOCKETS, DIALED, PEER
from simulator.network.broker import BrokerNode, Mail
from simulator.network.connections import Parcel, Route, Wire
from simulator.scale.counters import Meter
from simulator.virtual_time import Agenda, Diary

RECONNECT_SECONDS: Final = 0.25
"""Retry interval for an unreachable broker."""
CAPACITY: Final = 10_000
"""Messages that one connection buffers."""


class SilentObserver:
    """Counts messages from clients to brokers and ignores everything else."""

    def __init__(self, agenda: Agenda, meter: Meter) -> None:
        self._agenda = agenda
        self._meter = meter

    def before_turn(self, node: BrokerNode, mail: Sequence[Mail], now: Now) -> None:
        del now
        second = int(self._agenda.now)
        for wire, frames in mail:
            if wire.socket in CLIENT_SOCKETS:
                self._meter.client_sent(node.name, frames, second)

    def began(self, node: BrokerNode, opened: OpenedStore, with_disk: bool) -> None: ...

    def happened(self, node: BrokerNode, event: Any, now: Now) -> None: ...

    def decided(self, node: BrokerNode, writes: Sequence[Any], now: Now) -> None: ...

    def sent(self, node: BrokerNode, wire: Wire | None, peer: Connection, messages: Sequence[Message]) -> None:
        """Does nothing: peer connections count their own messages."""

    def after_turn(self, node: BrokerNode) -> None: ...

    def disk_lost(self, node: BrokerNode) -> None: ...

    def woke(self) -> None: ...

    def ended(self, node: BrokerNode) -> None: ...


class ScaleNode(BrokerNode):
    """A broker that dials others, and whose processor time is measured."""

    def __init__(
        self,
        agenda: Agenda,
        diary: Diary,
        config: BrokerConfig,
        rng: random.Random,
        observer: SilentObserver,
        meter: Meter,
    ) -> None:
        super().__init__(agenda, diary, config, rng, observer, CAPACITY)
        self._connections: dict[str, PeerConnection] = {}
        self._meter = meter
        self.reach: Callable[[str], ScaleNode | None] = lambda _: None
        """Returns the broker that listens for peers at an endpoint; None: there is none."""
        self.on_dial, self.on_disconnect = self._connect, self._disconnect
        self.publish = lambda _socket, frames, _readers: meter.publish(self.name, frames)

    @property
    def rank(self) -> tuple[int, str]:
        return self.broker.documents.version, self.broker.documents.hash

    @property
    def live_peers(self) -> int:
        return sum(1 for _ in self.broker.peers.alive())

    def start(self, with_disk: bool = True) -> None:
        """Starts a process; connections of the previous one are gone."""
        self._connections = {}
        super().start(with_disk)

    def crash(self, silent: bool) -> None:
        """Ends the process and the connections that it dialed."""
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.end(silent)
            self.wires.pop(connection.routing_id, None)
        super().crash(silent)

    def _turn(self, life: int) -> None:
        began = time.process_time()
        super()._turn(life)
        spent = self._meter.cpu
        spent[self.name] = spent.get(self.name, 0.0) + time.process_time() - began

    def _connect(self, endpoint: str) -> None:
        connection = self._connections[endpoint] = PeerConnection(
            self._agenda, self._diary, self, endpoint, self._rng, self._meter
        )
        connection.connect()

    def _disconnect(self, endpoint: str) -> None:
        connection = self._connections.pop(endpoint, None)
        if connection is not None:
            self.wires.pop(connection.routing_id, None)
            connection.end(silent=False)


class PeerWire(Wire):
    """A connection between two brokers; counts the messages of the dialed one."""

    meter: Meter

    def to_client(self, frames: list[bytes]) -> None:
        self.meter.carried(self.broker.name, self.client.name, frames)
        super().to_client(frames)


class Unread:
    """The messages that wait for a dialed broker; a backlog there is not simulated."""

    unread: Final = 0


class PeerConnection:
    """A dialed connection: the client's end of a wire, and for its own broker a wire itself."""

    _serial = 0

    def __init__(
        self, agenda: Agenda, diary: Diary, node: ScaleNode, endpoint: str, rng: random.Random, meter: Meter
    ) -> None:
        self._agenda = agenda
        self._diary = diary
        self._node = node
        self._meter = meter
        self._wire: Wire | None = None
        self.name = node.name
        self.socket = DIALED
        self.endpoint = endpoint
        self.routing_id = endpoint.encode()
        self.route = Route(node.name, rng)
        self.down = Unread()
        self.ended = False

    def connect(self) -> None:
        if self.ended:
            return
        there = self._node.reach(self.endpoint)
        if there is None or not there.up:
            self._agenda.after(RECONNECT_SECONDS, self.connect)
            return
        PeerConnection._serial += 1
        wire = PeerWire(self._agenda, self._diary, self.route, self, there, PEER, (1 << 31) + PeerConnection._serial)
        wire.meter = self._meter
        there.accept(wire)
        self._wire = wire
        self._node.wires[self.routing_id] = self  # type: ignore[assignment]  # to its broker it is a wire

    def to_client(self, frames: list[bytes]) -> None:
        """Sends a message of the own broker."""
        wire = self._wire
        if wire is not None:
            self._meter.carried(self.name, wire.broker.name, frames)
            wire.to_broker(frames)

    def arrive(self, wire: Wire, parcel: Parcel) -> None:
        """Handles a message of the other broker, or its disconnection."""
        if wire is not self._wire:
            return
        if parcel is None:
            self._wire = None
            self._node.wires.pop(self.routing_id, None)
            self._agenda.after(RECONNECT_SECONDS, self.connect)
        else:
            wire.down.unread -= 1
            self._node.arrive(self, parcel)  # type: ignore[arg-type]

    def broke(self, wire: Wire) -> None:
        self.arrive(wire, None)

    def end_of_broker(self, silent: bool) -> None:
        """Does nothing: `end` was called before."""

    def end(self, silent: bool) -> None:
        self.ended = True
        wire, self._wire = self._wire, None
        if wire is None:
            return
        if silent:
            wire.open = False
        else:
            wire.close(lossy=True)

"""Brokers of one network without sockets, and clients that come to them: one clock, and messages that a test can cut.

Each name is a machine. A broker may be killed, started again, or frozen: a frozen one does nothing, and what is sent to
it waits. `cut` loses what is sent in a direction; `repeats` delivers messages between brokers a second time, later.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import msgspec

from scale0.broker.core.connections import Connection
from scale0.config import Endpoints
from scale0.kernel.clock import Now
from scale0.kernel.machine import Sent
from scale0.transport.core.backend_session import BackendSession, RequestReceived
from scale0.transport.core.codec import encode
from scale0.transport.core.frontend_session import FrontendSession
from scale0.transport.core.session import UP, SessionEffects
from scale0.transport.core.sockets import BACKEND, CLIENT_SOCKETS, DIALED, FRONTEND, PEER
from tests.fakes.broker import WALL, FakeBroker
from tests.fakes.messages import Message

PORTS = {"frontend": 1, "backend": 2, "config_pub": 3, "task_pub": 4, "peer": 5}


def endpoint_of(name: str, socket: str = "peer") -> str:
    """Where a broker listens."""
    return f"tcp://{name}:{PORTS[socket]}"


class NetworkBroker(FakeBroker):
    """One broker of a network."""

    def __init__(self, network: FakeNetwork, name: str, **config: Any) -> None:
        self.network = network
        self.name = name
        self.skew = network.rng.random() * 10_000
        self.dialed: dict[str, int] = {}
        """By endpoint: the number of the connection, which the other end knows it by."""
        endpoints = msgspec.convert({socket: endpoint_of(name, socket) for socket in PORTS}, Endpoints)
        super().__init__(rng=network.rng, endpoints=endpoints, **config)

    @property
    def now(self) -> Now:
        return Now(self.skew + self.network.time, WALL + self.network.time)

    @property
    def rank(self) -> tuple[int, str]:
        return self.machine.documents.version, self.machine.documents.hash

    def start(self, store: Any = None) -> None:
        """With what its last life stored."""
        self.up, self.frozen = True, False
        super().start(store or self.store.crash())

    def kill(self) -> None:
        """kill -9: its connections are gone, and nobody is told."""
        self.up = False
        self.dialed.clear()
        for who, client in list(self.network.connected.items()):
            if client.at is self:
                del self.network.connected[who]
                self.network.send_to_client(self.name, client, None)
        for other in self.network.brokers.values():
            for endpoint in list(other.dialed):
                if self.network.aliases.get(endpoint, endpoint) == endpoint_of(self.name):
                    del other.dialed[endpoint]

    def client(self, socket: str) -> RawClient:
        return RawClient(self, socket)

    def worker(self, *services: str, slots: int = 1, **options: Any) -> RawClient:
        """A backend that has joined."""
        client = RawClient(self, BACKEND)
        client.join(f"worker-{client.number}", *services, slots=slots, **options)
        return client

    def known_worker(self, *services: str, slots: int = 1) -> RawClient:
        """A backend that has joined, and of which the other brokers have heard."""
        client = self.worker(*services, slots=slots)
        self.network.run(2)
        return client

    def ask_once(self, socket: str, *messages: tuple[str, dict[str, Any]]) -> list[Message]:
        """What a client receives at once that sends these on a connection of its own."""
        client = RawClient(self, socket)
        for command, options in messages:
            client.send(command, options)
        return client.received()

    def history(self) -> set[tuple[int, str]]:
        answer = self.manage("config_history", limit=1_000)
        assert answer.code == 200
        return {(row["version"], row["hash"]) for row in answer.body["items"]}

    def of_kind(self, kind: str) -> list[Any]:
        return [event for event in self.events if event.kind == kind]

    def _send(self, peer: Connection, frames: list[bytes]) -> Sent:
        if peer.socket not in CLIENT_SOCKETS:
            return "sent" if self.network.carry(self, peer, frames) else "gone"
        client = self.network.connected.get(peer.routing_id.decode())
        if client is None:
            return super()._send(peer, frames)
        self.network.send_to_client(self.name, client, frames)
        return "sent"

    def _disconnect(self, endpoint: str) -> None:
        self.dialed.pop(endpoint, None)


class RawClient:
    """A connection whose messages the test writes."""

    def __init__(self, broker: NetworkBroker, socket: str) -> None:
        self.broker, self.socket = broker, socket
        self.number = broker.network.next_number()
        self.who = f"{socket}-{self.number}"

    def send(self, command: str, options: dict[str, Any], *bodies: bytes) -> None:
        self.broker.send(self.who, command, options, *bodies)

    def received(self, *commands: str) -> list[Message]:
        return self.broker.received(self.who, *commands)

    def join(self, identity: str, *services: str, slots: int = 1, **options: Any) -> None:
        """CHECKCONFIG and READY."""
        self.broker.join(self.who, *services, identity=identity, slots=slots, heartbeat_interval=3600, **options)

    def request(self, service: str, body: bytes = b"", **options: Any) -> None:
        """REQUEST, and whatever follows at once in the whole network."""
        self.send("REQUEST", {"service": service, "id": "r", **options}, body)
        self.broker.network.run(0)

    def answer(self, body: bytes = b"done") -> dict[str, Any]:
        """Takes the next request, and replies; the options of the request."""
        options = self.received("REQUEST")[0].options
        self.send("REPLY", {"id": options["id"]}, body)
        self.broker.network.run(0)
        return options


class SessionClient:
    """A client of the SDK: a session, and its connection to one broker at a time."""

    def __init__(self, network: FakeNetwork, name: str, socket: str, session: Any) -> None:
        self.network, self.name, self.socket, self.session = network, name, socket, session
        self.skew = network.rng.random() * 10_000
        self.at: NetworkBroker | None = None
        self.who = ""
        self.notifications: list[Any] = []
        network.clients.append(self)
        self.act("start")

    @property
    def now(self) -> Now:
        return Now(self.skew + self.network.time, WALL + self.network.time)

    @property
    def served_by(self) -> str:
        """The name of the broker that serves it; empty: none."""
        return self.at.name if self.at is not None and self.session.connection.state == UP else ""

    def act(self, name: str, *arguments: Any) -> None:
        out = SessionEffects()
        getattr(self.session, name)(*arguments, self.now, out)
        self._perform(out)

    def ask(self, tag: str, timeout: float = 20.0, retry: bool = False) -> None:
        self.act("request", "paint", [b"red"], timeout, retry, tag)

    def answer(self) -> int:
        """Does all that it was given; how much that was."""
        requests = self.notified(RequestReceived)
        self.notifications.clear()
        for request in requests:
            self.act("reply", request.id, [b"done"])
        return len(requests)

    def receive(self, sender: str, frames: list[bytes] | None) -> None:
        """`None`: the connection broke."""
        if frames is None:
            if self.at is None or self.at.name == sender:
                self.at = None
                self.act("closed", "the connection broke")
        elif self.at is not None and self.at.name == sender:
            self.act("receive", frames)

    def notified(self, kind: type[Any]) -> list[Any]:
        return [one for one in self.notifications if isinstance(one, kind)]

    def _perform(self, out: SessionEffects) -> None:
        self.notifications += out.notifications
        if out.close:
            if out.send_disconnect:
                self._send(encode(("DISCONNECT", {})))
            self.network.connected.pop(self.who, None)
            self.at = None
            if out.open is None:
                self.session.unsent(out.sends)
                return
        if out.open is not None:
            self._connect(out.open)
        if self.at is None:
            self.session.unsent(out.sends)
            return
        for message in out.sends:
            self._send(encode(message))

    def _connect(self, endpoint: str) -> None:
        network = self.network
        found = [one for one in network.brokers.values() if one.up and endpoint_of(one.name, self.socket) == endpoint]
        if not found:
            self.session.never_connected()
            network.send_to_client("", self, None)
            return
        self.at = found[0]
        self.who = f"{self.socket}-{network.next_number()}"
        network.connected[self.who] = self

    def _send(self, frames: list[bytes]) -> None:
        if self.at is not None:
            self.network.send_to_broker(self.name, self.at.name, self.socket, self.who.encode(), frames)


class FakeNetwork:
    """All brokers and clients, and time."""

    def __init__(self, seed: int = 1) -> None:
        self.rng = random.Random(seed)
        self.time = 0.0
        self.brokers: dict[str, NetworkBroker] = {}
        self.cuts: set[tuple[str, str]] = set()
        """(from, to): nothing arrives."""
        self.aliases: dict[str, str] = {}
        """Other names of endpoints."""
        self.clients: list[SessionClient] = []
        self.connected: dict[str, SessionClient] = {}
        """Clients of the SDK, by the routing id of their connection."""
        self.repeats = 0.0
        """How likely it is that a message between brokers arrives again, a while later."""
        self._to_brokers: deque[tuple[str, str, str, bytes, list[bytes]]] = deque()
        self._to_clients: deque[tuple[str, SessionClient, list[bytes] | None]] = deque()
        self._late: list[tuple[float, tuple[str, str, str, bytes, list[bytes]]]] = []
        self._numbers = 0
        self.dialers: dict[int, tuple[str, str]] = {}
        """By the number of a connection between brokers: who dialed it, and where."""

    def __getitem__(self, name: str) -> NetworkBroker:
        return self.brokers[name]

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def add(self, name: str, **config: Any) -> NetworkBroker:
        """A broker that starts now, on a machine of that name."""
        options: dict[str, Any] = {"identity": name, "group": "east", "peers": (), **config}
        self.brokers[name] = NetworkBroker(self, name, **options)
        return self.brokers[name]

    def worker(self, *brokers: str, name: str = "w", services: tuple[str, ...] = ("paint",)) -> SessionClient:
        """A backend that knows the addresses of these brokers."""
        endpoints, rng = [endpoint_of(broker, BACKEND) for broker in brokers], random.Random(self.rng.random())
        return SessionClient(self, name, BACKEND, BackendSession(endpoints, name, services, 4, rng))

    def caller(self, *brokers: str, name: str = "f") -> SessionClient:
        """A frontend that knows the addresses of these brokers."""
        endpoints, rng = [endpoint_of(broker, FRONTEND) for broker in brokers], random.Random(self.rng.random())
        return SessionClient(self, name, FRONTEND, FrontendSession(endpoints, name, rng))

    def until_served(self, client: SessionClient, most: float) -> None:
        """Lets time pass until some broker serves it, at most so long."""
        begun = self.time
        while not client.served_by:
            self.run(0.05)
            assert self.time - begun <= most, f"nobody serves it after {most} s"

    def cut(self, *pairs: tuple[str, str], both: bool = True) -> None:
        for one, other in pairs:
            self.cuts.add((one, other))
            if both:
                self.cuts.add((other, one))

    def heal(self) -> None:
        self.cuts.clear()

    def repair(self) -> None:
        """Nothing is cut, repeated, frozen or down."""
        self.heal()
        self.repeats = 0.0
        for broker in self.brokers.values():
            broker.frozen = False
            if not broker.up:
                broker.start()

    def carry(self, sender: NetworkBroker, peer: Connection, frames: list[bytes]) -> bool:
        """Sends a message to another broker; False: the socket knows that nobody is there."""
        if peer.socket == DIALED:
            endpoint = peer.routing_id.decode()
            actual = self.aliases.get(endpoint, endpoint)
            there = next((one for one in self.brokers.values() if endpoint_of(one.name) == actual), None)
            if there is None or not there.up:
                return False
            number = sender.dialed.setdefault(endpoint, self.next_number())
            self.dialers[number] = (sender.name, endpoint)
            self._carry(sender.name, there.name, PEER, str(number).encode(), frames)
            return True
        name, endpoint = self.dialers[int(peer.routing_id)]
        there = self.brokers[name]
        if not there.up or there.dialed.get(endpoint) != int(peer.routing_id):
            return False
        self._carry(sender.name, name, DIALED, endpoint.encode(), frames)
        return True

    def _carry(self, *message: Any) -> None:
        self.send_to_broker(*message)
        if self.repeats and self.rng.random() < self.repeats:
            self._late.append((self.time + self.rng.random() * 5, message))

    def send_to_broker(self, sender: str, broker: str, socket: str, routing_id: bytes, frames: list[bytes]) -> None:
        self._to_brokers.append((sender, broker, socket, routing_id, frames))

    def send_to_client(self, sender: str, client: SessionClient, frames: list[bytes] | None) -> None:
        """`None`: the connection broke."""
        self._to_clients.append((sender, client, frames))

    def run(self, seconds: float) -> None:
        """Lets time pass, with a turn at each deadline."""
        end = self.time + seconds
        self._deliver()
        while True:
            due: list[tuple[float, str | int]] = [
                (deadline - broker.skew, broker.name)
                for broker in self.brokers.values()
                if broker.up and not broker.frozen and (deadline := broker.machine.deadline()) is not None
            ]
            for number, client in enumerate(self.clients):
                if (deadline := client.session.deadline()) is not None:
                    due.append((deadline - client.skew, number))
            if not due or min(due, key=lambda one: one[0])[0] > end:
                break
            when, name = min(due, key=lambda one: one[0])
            self.time = max(self.time, when + 1e-9)
            if isinstance(name, int):
                self.clients[name].act("tick")
            else:
                self.brokers[name].turn()
            self._deliver()
        self.time = end

    def _deliver(self) -> None:
        frozen: list[Any] = []
        self._to_brokers.extend(message for when, message in self._late if when <= self.time)
        self._late = [(when, message) for when, message in self._late if when > self.time]
        while self._to_brokers or self._to_clients:
            if not self._to_brokers:
                name, client, parts = self._to_clients.popleft()
                if (name, client.name) not in self.cuts:
                    client.receive(name, parts)
                continue
            sender, receiver, socket, routing_id, frames = self._to_brokers.popleft()
            broker = self.brokers[receiver]
            if not broker.up or (sender, receiver) in self.cuts:
                continue
            if broker.frozen:
                frozen.append((sender, receiver, socket, routing_id, frames))
            else:
                broker.send_frames(routing_id.decode(), frames, socket=socket)
        self._to_brokers.extend(frozen)


def network_of(*names: str, **of: dict[str, Any]) -> FakeNetwork:
    """Brokers of one group; `a` may change the configuration. `of` has more for one of them."""
    network = FakeNetwork()
    for name in names:
        peers = () if name == "a" else (endpoint_of("a"),)
        network.add(name, peers=peers, config_service=name == "a", **of.get(name, {}))
    network.run(5)
    return network


def two_groups(seed: int = 1, fallback: str = "w", of: dict[str, Any] | None = None, **common: Any) -> FakeNetwork:
    """`a`, `b` and `c` in the east; `fallback` in the west, which is the east's fallback group."""
    network = FakeNetwork(seed)
    for name in ("a", "b", "c", *fallback):
        config = {"config_service": True, "fallback_groups": ("west",)} if name == "a" else {}
        config |= {"group": "west" if name in fallback else "east", **common, **(of or {}).get(name, {})}
        network.add(name, peers=() if name == "a" else (endpoint_of("a"),), **config)
    network.run(6)
    return network

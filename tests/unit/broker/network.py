"""Brokers without sockets, and the wires between them: for stories about peers and configuration.

Lives here: virtual time, delivery, cuts and crashes. Never here: an expectation. Invariants: a message that was sent
arrives at once or never; a crash leaves exactly what was committed; each broker has a monotonic clock of its own.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import msgspec

from scale0.broker.admin.access import digest_of
from scale0.broker.admin.commands import ReadHistory
from scale0.broker.core.broker import Broker
from scale0.broker.core.connections import Connection
from scale0.broker.core.keys import Keys
from scale0.broker.main.composition import compose_broker, start_broker
from scale0.config import BrokerConfig, Endpoints
from scale0.history.events.journal import Journal
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, StoreQuery
from scale0.kernel.machine import Sent
from scale0.storage.memory.store import MemoryStore
from scale0.transport.core.codec import encode
from scale0.transport.core.session import UP, SessionEffects
from scale0.transport.core.sockets import CLIENT_SOCKETS, DIALED, FRONTEND, PEER
from tests.fakes.turns import InstantHost

TOKEN = "s0_test"
WALL = 1_700_000_000.0


def place_of(name: str, door: str = "peer") -> str:
    """Where a broker listens: every name is a machine."""
    return f"tcp://{name}:{ {'frontend': 1, 'backend': 2, 'config_pub': 3, 'task_pub': 4, 'peer': 5}[door] }"


class Node:
    """One broker, over all its lives."""

    def __init__(self, network: Network, name: str, config: BrokerConfig) -> None:
        self._host = InstantHost(
            lambda: self.now, self._send, lambda endpoint: self.dialed.pop(endpoint, None), (StoreQuery, ReadHistory)
        )
        self.events = self._host.events
        self.network = network
        self.config = config
        self.name = name
        self.store = MemoryStore()
        self.skew = network.dice.random() * 10_000
        self.keys: Keys | None = None
        self.up = False
        self.frozen = False
        self.admin: deque[tuple[int, Any]] = deque()
        self.dialed: dict[str, int] = {}
        """By endpoint: the number of the connection, which the other end knows it by."""

    @property
    def now(self) -> Now:
        return Now(self.skew + self.network.time, WALL + self.network.time)

    @property
    def rank(self) -> tuple[int, str]:
        return self.broker.documents.version, self.broker.documents.hash

    def start(self) -> None:
        self.up, self.frozen = True, False
        self.store = self.store.crash()
        opened = self.store.open()
        now, effects = self.now, Effects()
        boot = max(int(now.wall * 1_000_000), opened.last_boot_us + 1)
        ends = {door: place_of(self.name, door) for door in ("frontend", "backend", "config_pub", "task_pub", "peer")}
        self.journal = Journal(self.name, boot, opened.next_seq, opened.last_time_us)
        self.broker: Broker = compose_broker(
            self.config, msgspec.convert(ends, Endpoints), opened, boot, self.network.dice, digest_of(TOKEN), self.keys
        )
        self._host.begin(self.broker, self.store, self.journal)
        start_broker(self.broker, opened, now, effects)
        self._host.finish(effects)

    def kill(self) -> None:
        """kill -9: what it dialed and what was dialed to it is gone, and nobody is told."""
        self.up = False
        self.dialed.clear()
        for number, guest in list(self.network.guests.items()):
            if guest.at is self:
                del self.network.guests[number]
                self.network.post(self.name, guest, None)
        for other in self.network.nodes.values():
            for endpoint in [one for one in other.dialed if self.network.aliases.get(one, one) == place_of(self.name)]:
                del other.dialed[endpoint]

    def receive(self, door: str, routing_id: bytes, frames: list[bytes]) -> None:
        effects = Effects()
        self.broker.receive(door, routing_id, frames, self.now, effects)
        self._host.finish(effects)

    def ring(self) -> None:
        self._host.finish(Effects())

    def _send(self, peer: Connection, frames: list[bytes]) -> Sent:
        if peer.door not in CLIENT_SOCKETS:
            return "sent" if self.network.carry(self, peer, frames) else "gone"
        guest = self.network.guests.get(int(peer.routing_id))
        if guest is None:
            self.admin.append((int(peer.routing_id), frames))
        else:
            self.network.post(self.name, guest, frames)
        return "sent"

    def manage(self, command: str, **words: Any) -> tuple[int, Any]:
        """MANAGEMENTREQ; the code and the body."""
        number = self.network.next_number()
        said = {"command": command, "auth_token": TOKEN, "id": number, **words}
        self.receive(FRONTEND, str(number).encode(), [b"SCALE0/1", b"MANAGEMENTREQ", msgspec.json.encode(said)])
        found = [frames for who, frames in self.admin if who == number]
        self.admin.clear()
        assert len(found) == 1, "management answers at once here"
        return msgspec.json.decode(found[0][2])["code"], msgspec.json.decode(found[0][3])

    def ask(self, door: str, *messages: tuple[str, dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
        """A client of our own says these, on a connection of its own; what it hears at once."""
        number = self.network.next_number()
        for command, said in messages:
            self.receive(door, str(number).encode(), [b"SCALE0/1", command.encode(), msgspec.json.encode(said)])
        found = [frames for who, frames in self.admin if who == number]
        self.admin.clear()
        return [(frames[1].decode(), msgspec.json.decode(frames[2])) for frames in found]

    def client(self, door: str) -> Client:
        """Somebody who stays."""
        return Client(self, door)

    def history(self) -> set[tuple[int, str]]:
        code, body = self.manage("config_history", limit=1_000)
        assert code == 200
        return {(row["version"], row["hash"]) for row in body["items"]}

    def kinds(self, kind: str) -> list[Any]:
        return [event for event in self.events if event.kind == kind]


class Client:
    """A connection of a client, typed by hand."""

    def __init__(self, node: Node, door: str) -> None:
        self.node, self.door = node, door
        self.number = node.network.next_number()

    def say(self, command: str, said: dict[str, Any], *bodies: bytes) -> None:
        frames = [b"SCALE0/1", command.encode(), msgspec.json.encode(said), *bodies]
        self.node.receive(self.door, str(self.number).encode(), frames)

    def hears(self) -> list[tuple[str, dict[str, Any], list[bytes]]]:
        """What came since it was last asked."""
        mine = [frames for who, frames in self.node.admin if who == self.number]
        self.node.admin = deque(one for one in self.node.admin if one[0] != self.number)
        return [(frames[1].decode(), msgspec.json.decode(frames[2]), frames[3:]) for frames in mine]

    def ready(self, identity: str, *services: str, slots: int = 1) -> None:
        """CHECKCONFIG and READY."""
        self.say("CHECKCONFIG", {"identity": identity})
        said = {"services": services, "slots": slots, "config_version": self.node.rank[0], "heartbeat_interval": 3600}
        self.say("READY", said)
        assert self.hears()[-1][0] == "READYOK"

    def request(self, service: str, body: bytes = b"", **said: Any) -> None:
        self.say("REQUEST", {"service": service, "id": "r", **said}, body)


class Guest:
    """A client of ours: a session, and its wire to one broker at a time."""

    def __init__(self, network: Network, name: str, door: str, session: Any) -> None:
        self.network, self.name, self.door, self.session = network, name, door, session
        self.skew = network.dice.random() * 10_000
        self.at: Node | None = None
        self.number = 0
        self.news: list[Any] = []
        network.crowd.append(self)
        self.act("start")

    @property
    def now(self) -> Now:
        return Now(self.skew + self.network.time, WALL + self.network.time)

    @property
    def place(self) -> str:
        """The broker that serves it; empty: none."""
        return self.at.name if self.at is not None and self.session.connection.state == UP else ""

    def act(self, name: str, *words: Any) -> None:
        out = SessionEffects()
        getattr(self.session, name)(*words, self.now, out)
        self._perform(out)

    def ring(self) -> None:
        self.act("tick")

    def take(self, sender: str, parcel: list[bytes] | None) -> None:
        if parcel is None:
            if self.at is None or self.at.name == sender:
                self.at = None
                self.act("closed", "the connection broke")
        elif self.at is not None and self.at.name == sender:
            self.act("receive", parcel)

    def told(self, kind: type[Any]) -> list[Any]:
        return [one for one in self.news if isinstance(one, kind)]

    def _perform(self, out: SessionEffects) -> None:
        self.news += out.notifications
        if out.close:
            if out.send_disconnect:
                self._say(encode(("DISCONNECT", {})))
            self.network.guests.pop(self.number, None)
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
            self._say(encode(message))

    def _connect(self, endpoint: str) -> None:
        network = self.network
        found = [node for node in network.nodes.values() if node.up and place_of(node.name, self.door) == endpoint]
        if not found:
            self.session.never_connected()
            network.post("", self, None)
            return
        self.at = found[0]
        self.number = network.next_number()
        network.guests[self.number] = self

    def _say(self, frames: list[bytes]) -> None:
        if self.at is not None:
            self.network.mail(self.name, self.at, self.door, str(self.number).encode(), frames)


class Network:
    """All of them, and time."""

    def __init__(self, seed: int = 1) -> None:
        self.dice = random.Random(seed)
        self.time = 0.0
        self.nodes: dict[str, Node] = {}
        self.cuts: set[tuple[str, str]] = set()
        """(from, to): nothing arrives."""
        self.aliases: dict[str, str] = {}
        """Other names of endpoints."""
        self._mail: deque[tuple[str, str, str, bytes, list[bytes]]] = deque()
        self.guests: dict[int, Guest] = {}
        """Clients of ours, by the number of their connection."""
        self.crowd: list[Guest] = []
        """All of them, connected or not."""
        self._post: deque[tuple[str, Guest, list[bytes] | None]] = deque()
        self.echo = 0.0
        """How likely it is that what one broker told another arrives again, a while later."""
        self._echoes: list[tuple[float, tuple[str, str, str, bytes, list[bytes]]]] = []
        self._numbers = 0
        self._ends: dict[int, tuple[str, str]] = {}

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def add(self, name: str, **config: Any) -> Node:
        """A broker that starts now, on a machine of that name."""
        own: dict[str, Any] = {"identity": name, "group": "east", "peers": (), **config}
        node = self.nodes[name] = Node(self, name, BrokerConfig(**own))
        node.start()
        return node

    def cut(self, *pairs: tuple[str, str], both: bool = True) -> None:
        for one, other in pairs:
            self.cuts.add((one, other))
            if both:
                self.cuts.add((other, one))

    def heal(self) -> None:
        self.cuts.clear()

    def carry(self, sender: Node, peer: Connection, frames: list[bytes]) -> bool:
        """Put a message on its way; False: the socket knows that nobody is there."""
        if peer.door == DIALED:
            endpoint = peer.routing_id.decode()
            place = self.aliases.get(endpoint, endpoint)
            there = next((one for one in self.nodes.values() if place_of(one.name) == place), None)
            if there is None or not there.up:
                return False
            number = sender.dialed.setdefault(endpoint, self.next_number())
            self._ends[number] = (sender.name, endpoint)
            self._carry(sender.name, there.name, PEER, str(number).encode(), frames)
            return True
        name, endpoint = self._ends[int(peer.routing_id)]
        there = self.nodes[name]
        if not there.up or there.dialed.get(endpoint) != int(peer.routing_id):
            return False
        self._carry(sender.name, name, DIALED, endpoint.encode(), frames)
        return True

    def _carry(self, *parcel: Any) -> None:
        self._mail.append(parcel)
        if self.echo and self.dice.random() < self.echo:
            self._echoes.append((self.time + self.dice.random() * 5, parcel))

    def mail(self, sender: str, node: Node, door: str, routing_id: bytes, frames: list[bytes]) -> None:
        """From a client of ours."""
        self._mail.append((sender, node.name, door, routing_id, frames))

    def post(self, sender: str, guest: Guest, frames: list[bytes] | None) -> None:
        """To a client of ours; None: the connection broke."""
        self._post.append((sender, guest, frames))

    def run(self, seconds: float) -> None:
        """Time goes by; whoever is frozen does nothing, and its mail waits."""
        end = self.time + seconds
        self._deliver()
        while True:
            due: list[tuple[float, str | int]] = [
                (deadline - node.skew, node.name)
                for node in self.nodes.values()
                if node.up and not node.frozen and (deadline := node.broker.deadline()) is not None
            ]
            for place, guest in enumerate(self.crowd):
                if (deadline := guest.session.deadline()) is not None:
                    due.append((deadline - guest.skew, place))
            if not due or min(due, key=lambda one: one[0])[0] > end:
                break
            when, name = min(due, key=lambda one: one[0])
            self.time = max(self.time, when + 1e-9)
            if isinstance(name, int):
                self.crowd[name].ring()
            else:
                self.nodes[name].ring()
            self._deliver()
        self.time = end

    def _deliver(self) -> None:
        waiting: list[Any] = []
        self._mail.extend(parcel for when, parcel in self._echoes if when <= self.time)
        self._echoes = [(when, parcel) for when, parcel in self._echoes if when > self.time]
        while self._mail or self._post:
            if not self._mail:
                name, guest, parcel = self._post.popleft()
                if (name, guest.name) not in self.cuts:
                    guest.take(name, parcel)
                continue
            sender, receiver, door, routing_id, frames = self._mail.popleft()
            node = self.nodes[receiver]
            if not node.up or (sender, receiver) in self.cuts:
                continue
            if node.frozen:
                waiting.append((sender, receiver, door, routing_id, frames))
            else:
                node.receive(door, routing_id, frames)
        self._mail.extend(waiting)

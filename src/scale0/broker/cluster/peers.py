"""Peers: the other brokers. Decides which to dial, exchanges HELLO and HEARTBEAT, and tracks liveness (PROTOCOL 7).

Invariants: a peer is one record, however many connections lead to it; it is alive while any of them was active within
the liveness time, by the monotonic clock; no message counts before HELLO.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from msgspec import structs

from scale0.broker.cluster.peer import UNKNOWN, Peer
from scale0.broker.cluster.topology import listed_of, neighbours_of
from scale0.broker.core.config_document import ConfigDocument
from scale0.broker.core.connections import Connection, Connections, ProtocolHandler
from scale0.broker.core.members import DOUBT_SECONDS, Members
from scale0.broker.core.state import BrokerState
from scale0.config import Endpoints
from scale0.config.value_types import is_curve_key, is_endpoint
from scale0.history.events.sources import PeerJoined, PeerLost
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.errors import Refusal
from scale0.kernel.names import MAX_IDENTITY_CHARS, is_identity, is_service_name
from scale0.transport.core import messages
from scale0.transport.core.address_book import SERVER_KEY
from scale0.transport.core.sockets import ACTIVE, DIALED, DISABLED, DRAINING, JOINING, PEER, STANDBY

MAX_PEERS: Final = 1_000
"""Known brokers; to add one more, the one that was lost longest ago is forgotten."""
MAX_SOUGHT: Final = 20
"""Distant brokers that one broker is connected to at a time."""
REST_SECONDS: Final = 60.0
"""How long an address is not dialed after it led to this broker, to a connected one, or to a duplicate name."""
STATES: Final = frozenset({JOINING, ACTIVE, DRAINING, STANDBY, DISABLED})

Heard = Callable[[Peer, Connection, Now, Effects], None]


class Peers:
    __slots__ = (
        "_connections",
        "_documents",
        "_lines",
        "_members",
        "_rests",
        "_sought",
        "_state",
        "by_name",
        "handler",
        "on_gone",
        "on_heard",
        "on_lost",
    )

    def __init__(
        self, state: BrokerState, connections: Connections, documents: ConfigDocument, members: Members
    ) -> None:
        self._state = state
        self._connections = connections
        self._documents = documents
        self._members = members
        self.by_name: dict[str, Peer] = {}
        self._lines: dict[str, Connection] = {}
        """The connections that we dialed, by endpoint."""
        self._rests: dict[str, float] = {}
        """Endpoints that are not dialed, and until when."""
        self._sought: dict[str, float] = {}
        """Distant brokers that are dialed nevertheless, and until when."""
        self.handler: ProtocolHandler | None = None
        """Packs messages; set by the composition root."""
        self.on_gone: Callable[[Connection, Now, Effects], None] = lambda *_: None
        self.on_lost: Callable[[Peer, Now, Effects], None] = lambda *_: None
        self.on_heard: Sequence[Heard] = ()
        """Called in this order when a peer reports its state."""

    # Dialing.

    def start(self, now: Now, effects: Effects) -> None:
        self._beat(None, now, effects)

    def dial(self, now: Now, effects: Effects) -> None:
        """Dial every broker that we should know, and close the connections to all others."""
        self._rests = {endpoint: until for endpoint, until in self._rests.items() if now.mono < until}
        self._sought = {identity: until for identity, until in self._sought.items() if now.mono < until}
        wanted = self._wanted()
        for endpoint in sorted(wanted - self._lines.keys()):
            assert self.handler is not None
            line = self._connections.open(DIALED, endpoint.encode(), self.handler, now)
            if line is None:
                return
            self._lines[endpoint] = line
            effects.dial(endpoint)
        for endpoint in sorted(self._lines.keys() - wanted):
            self._hang_up(endpoint, now, effects)

    def seek(self, identity: str, until: float) -> None:
        """Dial this broker for a while, at any distance: a request waits for its services."""
        if identity in self._sought or len(self._sought) < MAX_SOUGHT:
            self._sought[identity] = until

    def _wanted(self) -> set[str]:
        """The peers of the configuration file, and those from the document that are not connected otherwise."""
        out = set(self._state.config.peers)
        reached = {line.peer.identity for at, line in self._lines.items() if line.peer is not None and at in out}
        if self._state.state != JOINING:
            document = self._documents.document
            for broker in (
                *neighbours_of(document, self._state.group, self._state.identity),
                *listed_of(document, self._sought),
            ):
                if broker.endpoints.peer and broker.identity not in reached | {self._state.identity}:
                    out.add(broker.endpoints.peer)
        return out - self._rests.keys() - {self._state.endpoints.get(PEER, "")}

    def _hang_up(self, endpoint: str, now: Now, effects: Effects) -> None:
        line = self._lines.pop(endpoint)
        self._detach(line, now, effects)
        self._connections.forget(line)
        effects.hang_up(endpoint)

    def _rest(self, line: Connection, now: Now, effects: Effects) -> None:
        endpoint = line.routing_id.decode()
        self._rests[endpoint] = now.mono + REST_SECONDS
        if endpoint in self._lines:
            self._hang_up(endpoint, now, effects)

    # Messages.

    def hello(
        self, connection: Connection, said: messages.Hello, _: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        """HELLO: the peer's identity. A peer that dialed us gets our HELLO in return."""
        self._check(said)
        if self._state.keys is not None:
            self._state.keys.check(connection.door, connection.user_id, said.identity)
        if said.identity == self._state.identity:
            self._met_ourselves(connection, now, effects)
            return
        if connection.door == PEER and connection.peer is not None and connection.peer.identity != said.identity:
            raise Refusal(codes.IN_USE, f"this is the connection of {connection.peer.identity}")
        peer = self.by_name.get(said.identity) or self._new(said.identity)
        self._attach(peer, connection, now, effects)
        # HELLO resets what we sent and received before.
        peer.asked, peer.tabled, peer.keyed, peer.back = None, False, False, False
        peer.table.renew()
        connection.batch = said.batch
        peer.group = said.group
        peer.endpoints = {name: said.endpoints[name] for name in Endpoints.__struct_fields__ if name in said.endpoints}
        peer.services = said.services if isinstance(said.services, str) else tuple(said.services)
        peer.standby_for = said.standby_for[:MAX_IDENTITY_CHARS]
        self._note(peer, said.state, said.config_version, said.config_hash, now)
        if peer.lost:
            peer.lost = False
            effects.record(PeerJoined(identity=peer.identity, group=peer.group, state=peer.state))
        if connection.door == PEER:
            self.greet(connection, now, effects)
        self._tell(peer, connection, now, effects)

    def heartbeat(
        self, connection: Connection, said: messages.PeerHeartbeat, _: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        peer = connection.peer
        if peer is None or peer.lost:
            effects.send(connection, ("FORCENEGOTIATE", messages.ForceNegotiate(reason="say HELLO first")))
            return
        self._note(peer, said.state, said.config_version, said.config_hash or peer.config_hash, now)
        peer.load = said.load if math.isfinite(said.load) and said.load > 0 else 0.0
        self._tell(peer, connection, now, effects)

    def _tell(self, peer: Peer, connection: Connection, now: Now, effects: Effects) -> None:
        for heard in self.on_heard:
            heard(peer, connection, now, effects)

    def force(
        self, connection: Connection, _said: messages.ForceNegotiate, _: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        """FORCENEGOTIATE: the peer does not know us, or no longer."""
        self.greet(connection, now, effects)

    def refused(
        self, connection: Connection, said: messages.DisconnectError, _: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        """DISCONNECTERROR: the peer refuses us. The next heartbeat tries again, unless our name is taken there."""
        self._state.count("peers_refused_us")
        if said.code == codes.IN_USE and connection.door == DIALED:
            self._rest(connection, now, effects)
        else:
            self._detach(connection, now, effects)

    def greet(self, connection: Connection, now: Now, effects: Effects) -> None:
        state = self._state
        said = messages.Hello(
            identity=state.identity,
            group=state.config.group,
            state=state.shown,
            services=state.config.services if isinstance(state.config.services, str) else list(state.config.services),
            endpoints=state.endpoints,
            config_version=0 if state.state == JOINING else self._documents.version,
            config_hash="" if state.state == JOINING else self._documents.hash,
            time=now.wall,
            batch=True,
            standby_for=state.config.standby_for,
        )
        effects.send(connection, ("HELLO", said))

    def greet_all(self, now: Now, effects: Effects) -> None:
        """Our own HELLO has changed: send it to every peer."""
        for peer in self.by_name.values():
            if peer.link is not None:
                self.greet(peer.link, now, effects)

    def tell_version(self, now: Now, effects: Effects) -> None:
        """Announce a newer network document, once it is stored: brokers with an older one request it at once."""
        for peer in self.by_name.values():
            if peer.link is not None and peer.config_version < self._documents.version:
                effects.promise(peer.link, ("HEARTBEAT", self._alive_words(now)))

    def tell_state(self, now: Now, effects: Effects) -> None:
        """Announce a change of our state: brokers that redirect clients here need it at once."""
        for peer in self.by_name.values():
            if peer.link is not None:
                self._say_alive(peer.link, now, effects)

    def server_key(self, endpoint: str) -> str:
        """The public key of the broker at an endpoint, from its HELLO or from the document; blank if unknown."""
        said = [peer.endpoints for peer in self.by_name.values()]
        for group in self._documents.document.group_config:
            said += [structs.asdict(broker.endpoints) for broker in group.brokers if broker.endpoints.server_key]
        return next((one.get(SERVER_KEY, "") for one in said if endpoint in one.values()), "")

    def gone(self, connection: Connection, now: Now, effects: Effects) -> None:
        """The socket reports a lost connection. A connection that we dialed is dialed again."""
        self.ignore(connection, now, effects)
        if connection.door == PEER:
            self._connections.forget(connection)

    def ignore(self, connection: Connection, now: Now, effects: Effects) -> None:
        """Messages of this connection are ignored for now, so its silence does not count either."""
        self._detach(connection, now, effects)

    def alive(self) -> Iterator[Peer]:
        return (peer for peer in self.by_name.values() if not peer.lost)

    def rows(self, now: Now) -> list[dict[str, Any]]:
        """All brokers that we know or should know, for views."""
        out = [
            {
                "broker": peer.identity,
                "group": peer.group,
                "state": peer.shown,
                "standby_for": peer.standby_for,
                "services": peer.services if isinstance(peer.services, str) else list(peer.services),
                "endpoints": peer.endpoints,
                "endpoint": peer.line.routing_id.decode() if peer.line is not None else peer.endpoints.get(PEER, ""),
                "config_version": peer.config_version,
                "config_hash": peer.config_hash,
                "load": peer.load,
                "age": now.mono - peer.heard if peer.heard else None,
            }
            for peer in sorted(self.by_name.values(), key=lambda peer: peer.identity)
        ]
        silent = sorted(endpoint for endpoint, line in self._lines.items() if line.peer is None)
        return out + [{"broker": "", "state": UNKNOWN, "endpoint": endpoint} for endpoint in silent]

    # Liveness.

    def _beat(self, _: None, now: Now, effects: Effects) -> None:
        """Every interval: check for silent peers, and send a heartbeat to all."""
        for peer in list(self.alive()):
            self.look(peer, now)
        if self._state.state != DISABLED:
            self.dial(now, effects)
            for line in self._lines.values():
                if line.peer is None:
                    self.greet(line, now, effects)
                elif line.peer.link is line:
                    self._say_alive(line, now, effects)
            for peer in self.by_name.values():
                if peer.calls is not None and peer.link is peer.calls:
                    self._say_alive(peer.calls, now, effects)
        self._state.timers.add((self._beat, None), now.mono + self._state.interval)

    def look(self, peer: Peer, now: Now) -> None:
        """The peer was silent for too long: check again a moment later, in case this broker was suspended."""
        if not self._overdue(peer, now):
            peer.doubted = None
        elif peer.doubted is None or now.mono - peer.doubted > 2 * DOUBT_SECONDS:
            peer.doubted = now.mono
            self._state.timers.add((self._doubt, peer), now.mono + DOUBT_SECONDS)

    def _doubt(self, peer: Peer, now: Now, effects: Effects) -> None:
        if peer.lost or not self._overdue(peer, now):
            return
        peer.lost, peer.back, peer.asked = True, False, None
        for link in (peer.line, peer.calls):
            if link is not None:
                self._detach(link, now, effects)
                if link.door == PEER:
                    self._connections.let_go(link)
        effects.record(PeerLost(identity=peer.identity, last_heard_wall=peer.heard_wall, group=peer.group))
        self.on_lost(peer, now, effects)

    def _overdue(self, peer: Peer, now: Now) -> bool:
        return now.mono - peer.heard > self._state.interval * self._state.liveness

    def _say_alive(self, connection: Connection, now: Now, effects: Effects) -> None:
        effects.send(connection, ("HEARTBEAT", self._alive_words(now)))

    def _alive_words(self, now: Now) -> messages.PeerHeartbeat:
        return messages.PeerHeartbeat(
            time=now.wall,
            state=self._state.shown,
            config_version=0 if self._state.state == JOINING else self._documents.version,
            config_hash="" if self._state.state == JOINING else self._documents.hash,
            load=float(len(self._members.by_name)),
        )

    # Records.

    def _note(self, peer: Peer, state: str, version: int, hash_: str, now: Now) -> None:
        peer.state = state if state in STATES else UNKNOWN
        peer.config_version, peer.config_hash = version, hash_[:64]
        peer.vain.clear()
        peer.heard, peer.heard_wall = now.mono, now.wall

    def _new(self, identity: str) -> Peer:
        if len(self.by_name) >= MAX_PEERS:
            lost = [peer for peer in self.by_name.values() if peer.lost]
            if not lost:
                raise Refusal(codes.TOO_MANY, f"a broker knows at most {MAX_PEERS} others")
            del self.by_name[min(lost, key=lambda peer: peer.heard).identity]
        peer = self.by_name[identity] = Peer(identity)
        peer.lost = True
        return peer

    def _attach(self, peer: Peer, connection: Connection, now: Now, effects: Effects) -> None:
        """Attach this connection in place of the previous one of its direction: on both sides the newest one counts."""
        if connection.peer is not None and connection.peer is not peer:
            self._detach(connection, now, effects)
        connection.peer = peer
        old = peer.line if connection.door == DIALED else peer.calls
        if old is not None and old is not connection:
            self._replace(old, now, effects)
        if connection.door == DIALED:
            peer.line = connection
        else:
            peer.calls = connection

    def _replace(self, old: Connection, now: Now, effects: Effects) -> None:
        """Another connection has the same identity. If it is a different broker, one of the two is refused."""
        self._detach(old, now, effects)
        if old.door == DIALED:
            self._rest(old, now, effects)
            return
        self._state.count("peers_replaced")
        message = "another connection came with this identity"
        effects.send(old, ("DISCONNECTERROR", messages.DisconnectError(codes.IN_USE, message)))

    def _detach(self, connection: Connection, now: Now, effects: Effects) -> None:
        """Detach a connection; only silence decides whether the peer is alive."""
        peer, connection.peer = connection.peer, None
        if peer is not None:
            self.on_gone(connection, now, effects)
        if peer is not None and peer.line is connection:
            peer.line = None
        elif peer is not None and peer.calls is connection:
            peer.calls = None

    def _met_ourselves(self, connection: Connection, now: Now, effects: Effects) -> None:
        """We dialed ourselves, or another broker has our name."""
        self._state.count("peers_with_our_name")
        if connection.door == DIALED:
            self._rest(connection, now, effects)
            return
        raise Refusal(codes.IN_USE, f"{self._state.identity} is my own identity")

    def _check(self, said: messages.Hello) -> None:
        limits = self._state.limits
        if not is_identity(said.identity) or (said.group and not is_identity(said.group)):
            raise Refusal(codes.MALFORMED, "an identity is 1 to 128 characters of A-Z a-z 0-9 . _ : -")
        names = () if isinstance(said.services, str) else said.services
        if isinstance(said.services, str) and said.services != "all":
            raise Refusal(codes.MALFORMED, "services is a list, or all")
        if len(names) > limits.max_services or not all(is_service_name(n, limits.max_service_bytes) for n in names):
            raise Refusal(codes.MALFORMED, f"services are at most {limits.max_services} printable names")
        places = (said.endpoints.get(name) for name in Endpoints.__struct_fields__ if name != SERVER_KEY)
        if not all(not place or (place.startswith("tcp://") and is_endpoint(place)) for place in places):
            raise Refusal(codes.MALFORMED, "an endpoint is such as tcp://127.0.0.1:5702")
        if not is_curve_key(said.endpoints.get(SERVER_KEY, "")):
            raise Refusal(codes.MALFORMED, "server_key is a key of CURVE, in Z85")

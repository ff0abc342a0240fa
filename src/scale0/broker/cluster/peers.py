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
from scale0.broker.core.enrolment import peer_key_news
from scale0.broker.core.members import Members
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
from scale0.transport.core.session import RECHECK_SECONDS
from scale0.transport.core.sockets import ACTIVE, DIALED, DISABLED, DRAINING, JOINING, PEER, STANDBY

MAX_PEERS: Final = 1_000
"""Known brokers; to add one more, the one that was lost longest ago is forgotten."""
MAX_SOUGHT: Final = 20
"""Distant brokers that one broker is connected to at a time."""
REST_SECONDS: Final = 60.0
"""How long an address is not dialed after it led to this broker, to a connected one, or to a duplicate name."""
STATES: Final = frozenset({JOINING, ACTIVE, DRAINING, STANDBY, DISABLED})

PeerReported = Callable[[Peer, Connection, Now, Effects], None]


class Peers:
    def __init__(
        self, state: BrokerState, connections: Connections, documents: ConfigDocument, members: Members
    ) -> None:
        self._state = state
        self._connections = connections
        self._documents = documents
        self._members = members
        self.by_name: dict[str, Peer] = {}
        self._dialed: dict[str, Connection] = {}
        """The connections that we dialed, by endpoint."""
        self._rests: dict[str, float] = {}
        """Endpoints that are not dialed, and until when."""
        self._sought: dict[str, float] = {}
        """Distant brokers that are dialed nevertheless, and until when."""
        self.handler: ProtocolHandler | None = None
        """Packs messages; set by the composition root."""
        self.on_gone: Callable[[Connection, Now, Effects], None] = lambda *_: None
        self.on_lost: Callable[[Peer, Now, Effects], None] = lambda *_: None
        self.on_report: Sequence[PeerReported] = ()
        """Called in this order when a peer reports its state."""

    # Dialing.

    def start(self, now: Now, effects: Effects) -> None:
        self._every_interval(None, now, effects)

    def dial(self, now: Now, effects: Effects) -> None:
        """Dial every broker that we should know, and close the connections to all others."""
        self._rests = {endpoint: until for endpoint, until in self._rests.items() if now.mono < until}
        self._sought = {identity: until for identity, until in self._sought.items() if now.mono < until}
        wanted = self._wanted()
        for endpoint in sorted(wanted - self._dialed.keys()):
            assert self.handler is not None
            connection = self._connections.open(DIALED, endpoint.encode(), self.handler, now)
            if connection is None:
                return
            self._dialed[endpoint] = connection
            effects.dial(endpoint)
        for endpoint in sorted(self._dialed.keys() - wanted):
            self._disconnect(endpoint, now, effects)

    def seek(self, identity: str, until: float) -> None:
        """Dial this broker for a while, at any distance: a request waits for its services."""
        if identity in self._sought or len(self._sought) < MAX_SOUGHT:
            self._sought[identity] = until

    def _wanted(self) -> set[str]:
        """The peers of the configuration file, and those from the document that are not connected otherwise."""
        out = set(self._state.config.peers)
        reached = {
            connection.peer.identity
            for at, connection in self._dialed.items()
            if connection.peer is not None and at in out
        }
        if self._state.state != JOINING:
            document = self._documents.document
            for broker in (
                *neighbours_of(document, self._state.group, self._state.identity),
                *listed_of(document, self._sought),
            ):
                if broker.endpoints.peer and broker.identity not in reached | {self._state.identity}:
                    out.add(broker.endpoints.peer)
        return out - self._rests.keys() - {self._state.endpoints.get(PEER, "")}

    def _disconnect(self, endpoint: str, now: Now, effects: Effects) -> None:
        connection = self._dialed.pop(endpoint)
        self._detach(connection, now, effects)
        self._connections.forget(connection)
        effects.disconnect(endpoint)

    def _rest(self, connection: Connection, now: Now, effects: Effects) -> None:
        endpoint = connection.routing_id.decode()
        self._rests[endpoint] = now.mono + REST_SECONDS
        if endpoint in self._dialed:
            self._disconnect(endpoint, now, effects)

    # Messages.

    def hello(
        self, connection: Connection, message: messages.Hello, _: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        """HELLO: the peer's identity. A peer that dialed us gets our HELLO in return."""
        self._check(message)
        if self._state.keys is not None:
            self._state.keys.check(connection.socket, connection.user_id, message.identity)
        if message.identity == self._state.identity:
            self._refuse_own_identity(connection, now, effects)
            return
        if connection.socket == PEER and connection.peer is not None and connection.peer.identity != message.identity:
            raise Refusal(codes.IN_USE, f"this is the connection of {connection.peer.identity}")
        peer = self.by_name.get(message.identity) or self._new(message.identity)
        self._attach(peer, connection, now, effects)
        # HELLO resets what we sent and received before.
        peer.asked, peer.tabled, peer.keyed, peer.back = None, False, False, False
        peer.table.renew()
        connection.batch = message.batch
        peer.group = message.group
        peer.endpoints = {
            name: message.endpoints[name] for name in Endpoints.__struct_fields__ if name in message.endpoints
        }
        peer.services = message.services if isinstance(message.services, str) else tuple(message.services)
        peer.standby_for = message.standby_for[:MAX_IDENTITY_CHARS]
        self._update(peer, message.state, message.config_version, message.config_hash, now)
        if peer.lost:
            peer.lost = False
            effects.record(PeerJoined(identity=peer.identity, group=peer.group, state=peer.state))
        if connection.socket == PEER:
            self.send_hello(connection, now, effects)
        if self._state.keys is not None:
            known = self._state.keys.by_user.get(connection.user_id)
            news = peer_key_news(known, peer.endpoints.get(SERVER_KEY, ""), message.previous_key)
            if news is not None:
                effects.ask(news)
        self._report(peer, connection, now, effects)

    def heartbeat(
        self, connection: Connection, message: messages.PeerHeartbeat, _: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        peer = connection.peer
        if peer is None or peer.lost:
            effects.send(connection, ("FORCENEGOTIATE", messages.ForceNegotiate(reason="HELLO must come first")))
            return
        self._update(peer, message.state, message.config_version, message.config_hash or peer.config_hash, now)
        peer.load = message.load if math.isfinite(message.load) and message.load > 0 else 0.0
        self._report(peer, connection, now, effects)

    def _report(self, peer: Peer, connection: Connection, now: Now, effects: Effects) -> None:
        for report in self.on_report:
            report(peer, connection, now, effects)

    def force(
        self, connection: Connection, _message: messages.ForceNegotiate, _: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        """FORCENEGOTIATE: the peer does not know us, or no longer."""
        self.send_hello(connection, now, effects)

    def refused(
        self, connection: Connection, message: messages.DisconnectError, _: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        """DISCONNECTERROR: the peer refuses us. The next heartbeat tries again, unless our name is taken there."""
        self._state.count("peers_refused_us")
        if message.code == codes.IN_USE and connection.socket == DIALED:
            self._rest(connection, now, effects)
        else:
            self._detach(connection, now, effects)

    def send_hello(self, connection: Connection, now: Now, effects: Effects) -> None:
        state = self._state
        message = messages.Hello(
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
            previous_key=state.keys.server[1] if state.keys is not None else "",
        )
        effects.send(connection, ("HELLO", message))

    def send_hello_to_all(self, now: Now, effects: Effects) -> None:
        """Our own HELLO has changed: send it to every peer."""
        for peer in self.by_name.values():
            if peer.link is not None:
                self.send_hello(peer.link, now, effects)

    def announce_version(self, now: Now, effects: Effects) -> None:
        """Announce a newer network document, once it is stored: brokers with an older one request it at once."""
        for peer in self.by_name.values():
            if peer.link is not None and peer.config_version < self._documents.version:
                effects.promise(peer.link, ("HEARTBEAT", self._heartbeat(now)))

    def announce_state(self, now: Now, effects: Effects) -> None:
        """Announce a change of our state: brokers that redirect clients here need it at once."""
        for peer in self.by_name.values():
            if peer.link is not None:
                self._send_heartbeat(peer.link, now, effects)

    def server_key(self, endpoint: str) -> str:
        """The public key of the broker at an endpoint, from its HELLO or from the document; blank if unknown."""
        endpoints = [peer.endpoints for peer in self.by_name.values()]
        for group in self._documents.document.group_config:
            endpoints += [structs.asdict(broker.endpoints) for broker in group.brokers if broker.endpoints.server_key]
        return next((one.get(SERVER_KEY, "") for one in endpoints if endpoint in one.values()), "")

    def gone(self, connection: Connection, now: Now, effects: Effects) -> None:
        """The socket reports a lost connection. A connection that we dialed is dialed again."""
        self.ignore(connection, now, effects)
        if connection.socket == PEER:
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
                "endpoint": peer.dialed.routing_id.decode()
                if peer.dialed is not None
                else peer.endpoints.get(PEER, ""),
                "config_version": peer.config_version,
                "config_hash": peer.config_hash,
                "load": peer.load,
                "age": now.mono - peer.last_received if peer.last_received else None,
            }
            for peer in sorted(self.by_name.values(), key=lambda peer: peer.identity)
        ]
        silent = sorted(endpoint for endpoint, connection in self._dialed.items() if connection.peer is None)
        return out + [{"broker": "", "state": UNKNOWN, "endpoint": endpoint} for endpoint in silent]

    # Liveness.

    def _every_interval(self, _: None, now: Now, effects: Effects) -> None:
        """Every interval: check for silent peers, and send a heartbeat to all."""
        for peer in list(self.alive()):
            self.check_silence(peer, now)
        if self._state.state != DISABLED:
            self.dial(now, effects)
            for connection in self._dialed.values():
                if connection.peer is None:
                    self.send_hello(connection, now, effects)
                elif connection.peer.link is connection:
                    self._send_heartbeat(connection, now, effects)
            for peer in self.by_name.values():
                if peer.accepted is not None and peer.link is peer.accepted:
                    self._send_heartbeat(peer.accepted, now, effects)
        self._state.timers.add((self._every_interval, None), now.mono + self._state.interval)

    def check_silence(self, peer: Peer, now: Now) -> None:
        """The peer was silent for too long: check again a moment later, in case this broker was suspended."""
        if not self._overdue(peer, now):
            peer.doubted = None
        elif peer.doubted is None or now.mono - peer.doubted > 2 * RECHECK_SECONDS:
            peer.doubted = now.mono
            self._state.timers.add((self._confirm_lost, peer), now.mono + RECHECK_SECONDS)

    def _confirm_lost(self, peer: Peer, now: Now, effects: Effects) -> None:
        if peer.lost or not self._overdue(peer, now):
            return
        peer.lost, peer.back, peer.asked = True, False, None
        for link in (peer.dialed, peer.accepted):
            if link is not None:
                self._detach(link, now, effects)
                if link.socket == PEER:
                    self._connections.forget_unless_bad(link)
        effects.record(PeerLost(identity=peer.identity, last_received_wall=peer.last_received_wall, group=peer.group))
        self.on_lost(peer, now, effects)

    def _overdue(self, peer: Peer, now: Now) -> bool:
        return now.mono - peer.last_received > self._state.interval * self._state.liveness

    def _send_heartbeat(self, connection: Connection, now: Now, effects: Effects) -> None:
        effects.send(connection, ("HEARTBEAT", self._heartbeat(now)))

    def _heartbeat(self, now: Now) -> messages.PeerHeartbeat:
        return messages.PeerHeartbeat(
            time=now.wall,
            state=self._state.shown,
            config_version=0 if self._state.state == JOINING else self._documents.version,
            config_hash="" if self._state.state == JOINING else self._documents.hash,
            load=float(len(self._members.by_name)),
        )

    # Records.

    def _update(self, peer: Peer, state: str, version: int, hash_: str, now: Now) -> None:
        peer.state = state if state in STATES else UNKNOWN
        peer.config_version, peer.config_hash = version, hash_[:64]
        peer.vain.clear()
        peer.last_received, peer.last_received_wall = now.mono, now.wall

    def _new(self, identity: str) -> Peer:
        if len(self.by_name) >= MAX_PEERS:
            lost = [peer for peer in self.by_name.values() if peer.lost]
            if not lost:
                raise Refusal(codes.TOO_MANY, f"a broker knows at most {MAX_PEERS} others")
            del self.by_name[min(lost, key=lambda peer: peer.last_received).identity]
        peer = self.by_name[identity] = Peer(identity)
        peer.lost = True
        return peer

    def _attach(self, peer: Peer, connection: Connection, now: Now, effects: Effects) -> None:
        """Attach this connection in place of the previous one of its direction: on both sides the newest one counts."""
        if connection.peer is not None and connection.peer is not peer:
            self._detach(connection, now, effects)
        connection.peer = peer
        old = peer.dialed if connection.socket == DIALED else peer.accepted
        if old is not None and old is not connection:
            self._replace(old, now, effects)
        if connection.socket == DIALED:
            peer.dialed = connection
        else:
            peer.accepted = connection

    def _replace(self, old: Connection, now: Now, effects: Effects) -> None:
        """Another connection has the same identity. If it is a different broker, one of the two is refused."""
        self._detach(old, now, effects)
        if old.socket == DIALED:
            self._rest(old, now, effects)
            return
        self._state.count("peers_replaced")
        message = "another broker connected with this identity"
        effects.send(old, ("DISCONNECTERROR", messages.DisconnectError(codes.IN_USE, message)))

    def _detach(self, connection: Connection, now: Now, effects: Effects) -> None:
        """Detach a connection; only silence decides whether the peer is alive."""
        peer, connection.peer = connection.peer, None
        if peer is not None:
            self.on_gone(connection, now, effects)
        if peer is not None and peer.dialed is connection:
            peer.dialed = None
        elif peer is not None and peer.accepted is connection:
            peer.accepted = None

    def _refuse_own_identity(self, connection: Connection, now: Now, effects: Effects) -> None:
        """We dialed ourselves, or another broker has our name."""
        self._state.count("peers_with_our_name")
        if connection.socket == DIALED:
            self._rest(connection, now, effects)
            return
        raise Refusal(
            codes.IN_USE,
            f"{self._state.identity} is the identity of the receiving broker: two brokers need different identities",
        )

    def _check(self, message: messages.Hello) -> None:
        limits = self._state.limits
        if not is_identity(message.identity) or (message.group and not is_identity(message.group)):
            raise Refusal(codes.MALFORMED, "an identity is 1 to 128 characters of A-Z a-z 0-9 . _ : -")
        names = () if isinstance(message.services, str) else message.services
        if isinstance(message.services, str) and message.services != "all":
            raise Refusal(codes.MALFORMED, 'services must be a list of names, or "all"')
        if len(names) > limits.max_services or not all(is_service_name(n, limits.max_service_bytes) for n in names):
            raise Refusal(codes.MALFORMED, f"services must be at most {limits.max_services} printable names")
        places = (message.endpoints.get(name) for name in Endpoints.__struct_fields__ if name != SERVER_KEY)
        if not all(not place or (place.startswith("tcp://") and is_endpoint(place)) for place in places):
            raise Refusal(codes.MALFORMED, "an endpoint has the form tcp://127.0.0.1:5702")
        if not is_curve_key(message.endpoints.get(SERVER_KEY, "")):
            raise Refusal(codes.MALFORMED, "server_key must be a CURVE public key in Z85")

"""Forwarding: requests for services without a local backend go to another broker (PROTOCOL 2.2, 7).

To `requests`, another broker is a backend without slots. Invariants: a request passes at most `max_hops` brokers; the
own group comes first, then its fallback groups in order, then any other broker; a request goes only to a broker that is
alive and active; a distant broker is dialed only while a request waits for its services.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from scale0.broker.cluster.catalog import Catalog
from scale0.broker.cluster.peer import Peer
from scale0.broker.cluster.peers import Peers
from scale0.broker.core.config_document import ConfigDocument
from scale0.broker.core.connections import Connection, Connections
from scale0.broker.core.rate_limits import RateLimits
from scale0.broker.core.request import RoutedRequest
from scale0.broker.core.requests import Requests
from scale0.broker.core.scheduler import Backend
from scale0.broker.core.state import BrokerState
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.names import is_reserved, is_service_name
from scale0.transport.core import messages

MAX_SENDER_CHARS: Final = 255
FORWARDED_SHARE: Final = 2
"""How much of the rate a client may use by way of other brokers: their windows begin at other times than ours."""
SOUGHT_AT_ONCE: Final = 2
"""Distant brokers that are dialed for one service."""


class RemoteService(Backend):
    """Another broker as a backend; one for each connection to it."""

    __slots__ = ()
    remote = True


class Forwarding:
    def __init__(
        self,
        state: BrokerState,
        documents: ConfigDocument,
        peers: Peers,
        requests: Requests,
        catalog: Catalog,
        connections: Connections,
        rate_limits: RateLimits,
    ) -> None:
        self._state = state
        self._connections = connections
        self._rate_limits = rate_limits
        self._catalog = catalog
        self._used: set[str] = set()
        """Distant brokers that received a request since the last check."""
        self._documents = documents
        self._peers = peers
        self._requests = requests
        self._remotes: dict[Connection, RemoteService] = {}
        self._stamp = 0

    def start(self, now: Now) -> None:
        self._state.timers.add((self._review, None), now.mono + self._state.interval)

    def _review(self, _: None, now: Now, effects: Effects) -> None:
        self._state.timers.add((self._review, None), now.mono + self._state.interval)
        self.forward_waiting(now, effects)
        self._dial_distant(now, effects)

    def _dial_distant(self, now: Now, effects: Effects) -> None:
        """Dial distant brokers for waiting requests, and keep the connections to those that work for us."""
        used, self._used = self._used, set()
        sought = set(used)
        for service in self._requests.queues:
            there = sorted(set(self._catalog.where(service)) - self._peers.by_name.keys() - {self._state.identity})
            sought.update(self._state.rng.sample(there, min(SOUGHT_AT_ONCE, len(there))))
        # No request lives longer: a broker that got none for this time holds none of ours.
        until = now.mono + self._state.limits.max_request_timeout + self._state.interval
        for identity in sorted(sought):
            self._peers.seek(identity, until)
        if sought - used:
            self._peers.dial(now, effects)

    def forward_waiting(self, now: Now, effects: Effects) -> None:
        """Forward waiting requests whose services have become available at another broker."""
        waiting = set(self._requests.queues)
        if waiting:
            self._requests.give_back(waiting, now, effects)
            peers = [peer for peer in self._peers.alive() if peer.takes_requests]
            self._requests.serve_elsewhere(
                [service for service in sorted(waiting) if any(service in peer.table.offered for peer in peers)],
                now,
                effects,
            )

    def elsewhere(self, request: RoutedRequest) -> Backend | None:
        """The broker for this request, if any: of those with the service, the least recently used."""
        if request.hops >= self._state.limits.max_hops:
            return None
        able = [peer for peer in self._peers.alive() if self._may(peer, request)]
        if not able:
            return None
        groups = {group.name: group for group in self._documents.document.group_config}
        own = groups.get(self._state.group)
        for name in (self._state.group, *(own.fallback_groups if own is not None else ())):
            found = [peer for peer in able if peer.group == name]
            if found:
                return self._hand(min(found, key=lambda one: one.forwarded))
        peer = min(able, key=lambda one: one.forwarded)
        self._used.add(peer.identity)
        return self._hand(peer)

    def _hand(self, peer: Peer) -> RemoteService:
        self._stamp += 1
        peer.forwarded = self._stamp
        return self._remote(peer)

    def _may(self, peer: Peer, request: RoutedRequest) -> bool:
        return (
            peer.takes_requests
            and request.service in peer.table.offered
            and request.service not in peer.vain
            and peer.link is not None
            and request.origin.peer is not peer  # the request would only come back
        )

    def _remote(self, peer: Peer) -> RemoteService:
        link = peer.link
        assert link is not None
        remote = self._remotes.get(link)
        if remote is None:
            self._remotes[link] = remote = RemoteService(peer.identity, link, 0)
        return remote

    def forward(
        self, connection: Connection, request: messages.Forward, bodies: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        limits = self._state.limits
        wrong = not is_service_name(request.service, limits.max_service_bytes) or is_reserved(request.service)
        if wrong or not 0 < request.timeout <= limits.max_request_timeout or request.hops < 1:
            message = "FORWARD needs a service, a timeout and hops, the number of brokers that it has passed"
            effects.send(connection, ("ERROR", {"id": request.id, "code": codes.MALFORMED, "message": message}))
        elif self._state.drain_requested and not connection.awaits_id(request.id):
            # A standby that gives way still serves what its backends can.
            message = "this broker is draining"
            error = {"id": request.id, "code": codes.NOT_SERVING, "message": message, "unrun": True}
            effects.send(connection, ("ERROR", error))
        elif self._allows(connection, request, now):
            sender = request.sender[:MAX_SENDER_CHARS]
            self._requests.submit(
                *(connection, request.id, request.service, bodies, request.timeout, False, now, effects),
                hops=request.hops,
                sender=sender,
            )
        elif not connection.awaits_id(request.id):
            message = f"more than {limits.max_requests_per_second} requests in a second: try again later"
            effects.send(connection, ("ERROR", {"id": request.id, "code": codes.TOO_MANY, "message": message}))

    def _allows(self, connection: Connection, request: messages.Forward, now: Now) -> bool:
        """Count the request for the client that sent it, whichever broker it is connected to."""
        account = self._connections.account_of(request.sender[:MAX_SENDER_CHARS], connection.account)
        return self._rate_limits.allows_request(account, now, FORWARDED_SHARE)

    def not_there(self, backend: Backend, service: str) -> None:
        """A broker returned a request: skip it for this service until its next message."""
        peer = self._peers.by_name.get(backend.identity)
        if peer is not None:
            peer.vain.add(service)

    def gone(self, connection: Connection, now: Now, effects: Effects) -> None:
        """The connection to a broker ended: retry or fail the requests that it held, and drop those that it sent."""
        remote = self._remotes.pop(connection, None)
        if remote is not None:
            self._requests.lose(remote, (), now, effects)
        self._requests.origin_gone(connection, now)

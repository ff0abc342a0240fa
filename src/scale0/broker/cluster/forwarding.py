"""Requests for what nobody here offers: handed to another broker, and taken from others (PROTOCOL 2.2, 7).

Lives here: which broker, and FORWARD. Never here: deadlines, retries and answers: to `requests` another broker is a
backend like any, without slots. Invariants: what has passed `max_hops` brokers goes no further; the own group comes
first, then its fallback groups in order, then whoever else offers it; nothing goes to a broker that is not heard and
active; a broker far away is dialed only when something waits for what it offers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from scale0.broker.cluster.catalog import Catalog
from scale0.broker.cluster.peer import Peer
from scale0.broker.cluster.peers import Peers
from scale0.broker.core.config_document import ConfigDocument
from scale0.broker.core.connections import Connection
from scale0.broker.core.request import RoutedRequest
from scale0.broker.core.requests import Requests
from scale0.broker.core.scheduler import Backend
from scale0.broker.core.state import BrokerState
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.names import is_reserved, is_service_name
from scale0.transport.core import messages

SOUGHT_AT_ONCE: Final = 2
"""Brokers far away that are dialed for one service."""


class RemoteService(Backend):
    """Another broker, as somebody who does requests; one for each connection to it."""

    __slots__ = ()
    remote = True


class Forwarding:
    """To other brokers, and from them."""

    __slots__ = ("_directory", "_documents", "_peers", "_remotes", "_requests", "_stamp", "_state", "_used")

    def __init__(
        self, state: BrokerState, documents: ConfigDocument, peers: Peers, requests: Requests, directory: Catalog
    ) -> None:
        self._state = state
        self._directory = directory
        self._used: set[str] = set()
        """Brokers far away that were handed something since the last look."""
        self._documents = documents
        self._peers = peers
        self._requests = requests
        self._remotes: dict[Connection, RemoteService] = {}
        self._stamp = 0

    def start(self, now: Now) -> None:
        """Begin to look for those who wait."""
        self._state.timers.add((self._look, None), now.mono + self._state.interval)

    def _look(self, _: None, now: Now, effects: Effects) -> None:
        self._state.timers.add((self._look, None), now.mono + self._state.interval)
        self.look(now, effects)
        self._seek(now, effects)

    def _seek(self, now: Now, effects: Effects) -> None:
        """What waits here may be offered far away; and whoever does something for us there stays connected."""
        used, self._used = self._used, set()
        sought = set(used)
        for service in self._requests.queues:
            there = sorted(set(self._directory.where(service)) - self._peers.by_name.keys() - {self._state.identity})
            sought.update(self._state.rng.sample(there, min(SOUGHT_AT_ONCE, len(there))))
        # No request lives longer: whoever was handed nothing for so long has nothing of ours.
        until = now.mono + self._state.limits.max_request_timeout + self._state.interval
        for identity in sorted(sought):
            self._peers.seek(identity, until)
        if sought - used:
            self._peers.dial(now, effects)

    def look(self, now: Now, effects: Effects) -> None:
        """What waits here in vain may be offered elsewhere by now."""
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
        """The broker that this may go to, if there is one: of those whose backends offer it, that asked longest ago."""
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
            and request.origin.peer is not peer  # it would only come back
        )

    def _remote(self, peer: Peer) -> RemoteService:
        link = peer.link
        assert link is not None
        remote = self._remotes.get(link)
        if remote is None:
            self._remotes[link] = remote = RemoteService(peer.identity, link, 0)
        return remote

    def forward(
        self, connection: Connection, said: messages.Forward, bodies: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        """FORWARD: a request of another broker's client."""
        limits = self._state.limits
        wrong = not is_service_name(said.service, limits.max_service_bytes) or is_reserved(said.service)
        if wrong or not 0 < said.timeout <= limits.max_request_timeout or said.hops < 1:
            message = "a FORWARD names a service, a timeout and how many brokers it has passed"
            effects.send(connection, ("ERROR", {"id": said.id, "code": codes.MALFORMED, "message": message}))
        elif self._state.told_to_drain:  # a standby that gives way still does what its backends can
            message = "this broker is draining"
            error = {"id": said.id, "code": codes.NOT_SERVING, "message": message, "unrun": True}
            effects.send(connection, ("ERROR", error))
        else:
            self._requests.submit(
                connection, said.id, said.service, bodies, said.timeout, False, now, effects, hops=said.hops
            )

    def not_there(self, backend: Backend, service: str) -> None:
        """A broker gave a request back: until it is heard again, nobody there offers this."""
        peer = self._peers.by_name.get(backend.identity)
        if peer is not None:
            peer.vain.add(service)

    def gone(self, connection: Connection, now: Now, effects: Effects) -> None:
        """A connection to a broker ended: what it had is tried elsewhere, or failed; what came from it is over."""
        remote = self._remotes.pop(connection, None)
        if remote is not None:
            self._requests.lose(remote, (), now, effects)
        self._requests.origin_gone(connection, now)

"""Registration: a broker that joins is written into the network document, so that clients and brokers can find it.

Invariants: only a broker with `config_service` registers others; a broker's services and a group's fallback groups that
an administrator wrote are kept; a broker is never removed, because it may come back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from scale0.broker.cluster.peer import Peer
from scale0.broker.core.config_document import ConfigDocument
from scale0.broker.core.connections import Connection
from scale0.broker.core.members import Members
from scale0.broker.core.state import BrokerState
from scale0.config import BrokerEntry, Endpoints, GroupConfig, NetworkDocument, check_document
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.transport.core.address_book import SERVER_KEY
from scale0.transport.core.sockets import ACTIVE

WAIT_INTERVALS: Final = 1.0
"""In heartbeat intervals, times a random number: one of several brokers acts first, and the others see the result."""
OWN: Final = ""
RELIST_SECONDS: Final = 10.0
"""The shortest time between two registrations of a broker whose data alternates, as when two brokers share a name."""


class Registration:
    def __init__(self, state: BrokerState, documents: ConfigDocument, members: Members) -> None:
        self._state = state
        self._documents = documents
        self._members = members
        self._waiting: set[str] = set()

    def peer_reported(self, peer: Peer, _connection: Connection, now: Now, _step: Effects) -> None:
        """A peer reported its address: shortly, register it and our group's fallback groups."""
        if not self._state.config.config_service or self._state.state != ACTIVE:
            return
        relisted = peer.listed is not None and now.mono - peer.listed < RELIST_SECONDS
        if peer.identity not in self._waiting and not relisted and listed(self._documents.document, peer) is not None:
            self._waiting.add(peer.identity)
            self._later(self._list, peer, now)
        if OWN not in self._waiting and self._with_fallbacks() is not None:
            self._waiting.add(OWN)
            self._later(self._list_own, None, now)

    def list_own_key(self, now: Now, effects: Effects) -> None:
        """Our own key has changed: write it into the document, unless another broker does so after our HELLO."""
        document = self._documents.document
        brokers = sum(len(group.brokers) for group in document.group_config)
        wanted = with_server_key(document, self._state.identity, self._state.endpoints.get(SERVER_KEY, ""))
        if wanted is not None and (self._state.config.config_service or brokers == 1):
            self._change(wanted, now, effects)

    def _later(self, do: Callable[[Any, Now, Effects], None], whom: Peer | None, now: Now) -> None:
        wait = self._state.rng.random() * WAIT_INTERVALS * self._state.interval
        self._state.timers.add((do, whom), now.mono + wait)

    def _list(self, peer: Peer, now: Now, effects: Effects) -> None:
        self._waiting.discard(peer.identity)
        current = self._documents.document
        if peer.lost or peer.config_version > current.version:
            return  # the document is about to be replaced
        wanted = listed(current, peer)
        if wanted is not None and self._change(wanted, now, effects):
            peer.listed = now.mono

    def _list_own(self, _: None, now: Now, effects: Effects) -> None:
        self._waiting.discard(OWN)
        wanted = self._with_fallbacks()
        if wanted is not None:
            self._change(wanted, now, effects)

    def _with_fallbacks(self) -> NetworkDocument | None:
        """The document with the fallback groups of our configuration file; None if an administrator wrote some."""
        document, config = self._documents.document, self._state.config
        groups = {group.name: group for group in document.group_config}
        own = groups.get(config.group)
        known = tuple(name for name in config.fallback_groups if name in groups and name != config.group)
        if own is None or own.fallback_groups or not known:
            return None
        groups[config.group] = msgspec.structs.replace(own, fallback_groups=known)
        return msgspec.structs.replace(document, group_config=tuple(groups.values()))

    def _change(self, wanted: NetworkDocument, now: Now, effects: Effects) -> bool:
        if self._state.state != ACTIVE or self._state.full:
            return False
        document = msgspec.structs.replace(wanted, version=self._documents.version + 1, parent=self._documents.hash)
        if check_document(document):
            self._state.count("peers_not_listed")
            return False
        self._documents.change(document, self._state.identity, list(self._members.by_name.values()), now, effects)
        return True


def with_server_key(document: NetworkDocument, identity: str, key: str) -> NetworkDocument | None:
    """The document with this key of a broker; None if it is current, or the broker has none there."""
    groups = list(document.group_config)
    for at, group in enumerate(groups):
        for broker in group.brokers:
            if broker.identity == identity and broker.endpoints.server_key not in ("", key):
                endpoints = msgspec.structs.replace(broker.endpoints, server_key=key)
                changed = msgspec.structs.replace(broker, endpoints=endpoints)
                brokers = tuple(changed if one is broker else one for one in group.brokers)
                groups[at] = msgspec.structs.replace(group, brokers=brokers)
                return msgspec.structs.replace(document, group_config=tuple(groups))
    return None


def listed(document: NetworkDocument, peer: Peer) -> NetworkDocument | None:
    """The document with this broker's own data; None if it is current, or if the data is incomplete."""
    endpoints = Endpoints(**peer.endpoints)
    if endpoints == Endpoints():
        return None
    groups = {group.name: group for group in document.group_config}
    known = {broker.identity: group.name for group in document.group_config for broker in group.brokers}
    home = known.get(peer.identity, peer.group)
    group = groups.get(home, GroupConfig(name=home))
    brokers = {broker.identity: broker for broker in group.brokers}
    services = peer.services if isinstance(peer.services, str) else tuple(peer.services)
    entry = brokers.get(peer.identity, BrokerEntry(identity=peer.identity, services=services))  # type: ignore[arg-type]
    entry = msgspec.structs.replace(entry, endpoints=endpoints)
    if brokers.get(peer.identity) == entry:
        return None
    brokers[peer.identity] = entry
    groups[home] = msgspec.structs.replace(group, brokers=tuple(brokers.values()))
    return msgspec.structs.replace(document, group_config=tuple(groups.values()))

"""Brokers in the network document: whoever joins is listed, so that clients and brokers learn where it is.

Lives here: what a HELLO makes of the document. Never here: how the document spreads. Invariants: only a broker with
`config_service` lists anybody; what an administrator wrote of a broker's services stays; a broker is never taken out,
because one that is away may come back.
"""

from __future__ import annotations

from typing import Final

import msgspec

from scale0.base.now import Now
from scale0.base.step import Step
from scale0.broker.connection import Connection
from scale0.broker.documents import Documents
from scale0.broker.members import Members
from scale0.broker.peers import Peer
from scale0.broker.state import ACTIVE, BrokerState
from scale0.config import BrokerEntry, Endpoints, GroupConfig, NetworkDocument, check_document

WAIT_INTERVALS: Final = 1.0
"""Of heartbeats, times chance: of several brokers that could do it one is first, and the others see it done."""
RELIST_SECONDS: Final = 10.0
"""A broker that tells of itself now this and now that (there may be two of one name) is written down this often."""


class Listing:
    """Writes newcomers down."""

    __slots__ = ("_documents", "_members", "_state", "_waiting")

    def __init__(self, state: BrokerState, documents: Documents, members: Members) -> None:
        self._state = state
        self._documents = documents
        self._members = members
        self._waiting: set[str] = set()

    def heard(self, peer: Peer, _connection: Connection, now: Now, _step: Step) -> None:
        """Somebody told where it is: in a moment, see that it is written down."""
        if not self._state.config.config_service or self._state.state != ACTIVE or peer.identity in self._waiting:
            return
        if peer.listed is not None and now.mono - peer.listed < RELIST_SECONDS:
            return
        if listed(self._documents.document, peer) is not None:
            self._waiting.add(peer.identity)
            wait = self._state.chance.random() * WAIT_INTERVALS * self._state.interval
            self._state.timers.add((self._list, peer), now.mono + wait)

    def _list(self, peer: Peer, now: Now, step: Step) -> None:
        self._waiting.discard(peer.identity)
        if self._state.state != ACTIVE or self._state.full or peer.lost:
            return
        current = self._documents.document
        if peer.config_version > current.version:
            return  # it is about to be ours
        wanted = listed(current, peer)
        if wanted is None:
            return
        document = msgspec.structs.replace(wanted, version=current.version + 1, parent=self._documents.hash)
        if check_document(document):
            self._state.count("peers_not_listed")
            return
        peer.listed = now.mono
        self._documents.change(document, self._state.identity, list(self._members.by_name.values()), now, step)


def listed(document: NetworkDocument, peer: Peer) -> NetworkDocument | None:
    """The document with this broker as it says that it is; None: it is there already, or tells too little."""
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

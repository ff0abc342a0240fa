"""Replication of the client catalog between brokers: which clients a broker has, and their services (PROTOCOL 7).

Invariants: a receiver detects a missed message by its number, and requests the whole table; messages are bounded,
whatever the number of clients; a broker of a distant group receives services only, not clients.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Final

import msgspec

from scale0.broker.cluster.catalog import Catalog, OfferedServices
from scale0.broker.cluster.key_replication import KeyReplication
from scale0.broker.cluster.peer import Peer
from scale0.broker.cluster.peer_catalog import ClientRow, Key, Work
from scale0.broker.cluster.peers import Peers
from scale0.broker.cluster.replicated_keys import KeyUpdate
from scale0.broker.cluster.topology import are_near
from scale0.broker.core.config_document import ConfigDocument
from scale0.broker.core.connections import Connection
from scale0.broker.core.members import Member, Members
from scale0.broker.core.scheduler import Offering
from scale0.broker.core.state import BrokerState
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.errors import Refusal
from scale0.transport.core import messages
from scale0.transport.core.sockets import BACKEND, DISABLED, JOINING, PEER

CHUNK_ROWS: Final = 2_000
MAX_METHODS: Final = 1_000
"""Methods whose tasks are counted in one message: those with the most."""
DELTAS: Final = 4
"""How often changes are sent in one heartbeat interval."""
FULL_INTERVALS: Final = 60
"""In intervals: how often the whole table is sent without a request. The load of clients is sent only then."""
PULL_INTERVALS: Final = 5
"""In intervals: how often a peer that does not push is asked."""
KIND: Final = "kind"
"""The identity prefix of a row that summarises all backends with the same services."""
PUSH: Final = "push"
PULL: Final = "pull"
OFF: Final = "off"


class CatalogBody(msgspec.Struct, frozen=True):
    clients: tuple[ClientRow, ...] = ()
    work: Work = {}
    offers: tuple[OfferedServices, ...] | msgspec.UnsetType = msgspec.UNSET
    """A Scale0 extension: the services of the sender and of other brokers that it knows of."""
    keys: KeyUpdate | msgspec.UnsetType = msgspec.UNSET
    """A Scale0 extension: the keys that the sender's own files admit."""


class CatalogReplication:
    def __init__(
        self,
        state: BrokerState,
        documents: ConfigDocument,
        members: Members,
        peers: Peers,
        catalog: Catalog,
        work: Callable[[int], Work],
    ) -> None:
        self._state = state
        self._catalog = catalog
        self._documents = documents
        self._kinds: dict[tuple[str, ...], tuple[int, ...]] = {}
        """What distant brokers last received: by set of services, the slots in all and of each."""
        self._members = members
        self._peers = peers
        # The version increases over restarts, too.
        self._version = state.boot
        self._rounds = 0
        self.keys: KeyReplication | None = None
        """Set by the composition root. None: keys are not replicated."""
        self.on_table: Callable[[Now, Effects], None] = lambda *_: None
        """Called after a table was received."""
        self._work = work

    def start(self, now: Now) -> None:
        self._state.timers.add((self._round, None), now.mono + self._state.interval)

    # Sending.

    def _round(self, _: None, now: Now, effects: Effects) -> None:
        """Send changes to peers that get them pushed; send the whole table to new peers, and periodically to all."""
        self._state.timers.add((self._round, None), now.mono + self._state.interval / DELTAS)
        changed, self._members.changed = self._members.changed, {}
        if self._state.state in (JOINING, DISABLED):
            return
        self._rounds += 1
        again = self._rounds % (FULL_INTERVALS * DELTAS) == 0
        base = self._version
        rows = [self._row(key, now) for key in changed]
        offers_changed = bool(rows) and self._offers_changed()
        self._catalog.remove_lost(self._is_near)
        changes = self._catalog.changes()
        keys = self.keys.changes() if self.keys is not None else []
        for peer in self._peers.by_name.values():
            link = peer.link
            if peer.lost or link is None:
                continue
            if self._share(peer) == PULL and self._rounds % (PULL_INTERVALS * DELTAS) == 0:
                effects.send(link, ("TABLEREQ", messages.TableReq()))
            elif self._share(peer) == PUSH and not peer.tabled:
                self._send_all(peer, link, (), self._catalog.all(), now, effects)
            elif self._share(peer) == PUSH:
                offers = tuple(entry for entry, source in changes if source != peer.identity)
                near = self._is_near(peer)
                if again or (offers_changed and not near):
                    self._send_all(peer, link, (), offers, now, effects)
                elif offers or (rows and near):
                    self._send_rows(peer, link, rows if near else (), False, base, effects, offers)
            self._send_keys(peer, link, keys, effects)

    def _send_keys(self, peer: Peer, link: Connection, changes: Sequence[KeyUpdate], effects: Effects) -> None:
        """Keys are sent whatever `heartbeat_share` says: admission does not depend on it."""
        if self.keys is None:
            return
        if not peer.keyed:
            peer.keyed, changes = True, self.keys.all()
        work = {} if self._share(peer) == OFF else self._work(MAX_METHODS)
        for keys in changes:
            peer.table_seq += 1
            message = messages.Table(seq=peer.table_seq, version=self._version)
            effects.send(link, ("TABLE", message, msgspec.json.encode(CatalogBody(work=work, keys=keys))))

    def _is_near(self, peer: Peer) -> bool:
        return are_near(self._documents.document, self._state.group, peer.group)

    def _offers_changed(self) -> bool:
        """True if the services that distant brokers last received have changed."""
        kinds: dict[tuple[str, ...], tuple[int, ...]] = {}
        for member in self._members.by_name.values():
            if member.joined and (services := services_of(member)):
                slots = (member.slots, *(offering.slots for offering in offerings_of(member)))
                kinds[services] = added(kinds.get(services, ()), slots)
        before, self._kinds = self._kinds, kinds
        if kinds.keys() != before.keys():
            self._catalog.offer({service for services in kinds for service in services})
        return kinds != before

    def _kind_rows(self, now: Now) -> list[ClientRow]:
        merged: dict[tuple[str, ...], ClientRow] = {}
        for key in self._members.by_name:
            row = self._row(key, now)
            if row.services:
                one = merged.get(row.services) or ClientRow(identity="", role=BACKEND, version=0)
                name = f"{KIND}-{zlib.crc32(chr(0).join(row.services).encode()):08x}"
                merged[row.services] = ClientRow(
                    identity=name,
                    role=BACKEND,
                    version=row.version,
                    services=row.services,
                    slots=one.slots + row.slots,
                    busy=one.busy + row.busy,
                    service_slots=added(one.service_slots, row.service_slots),
                    service_busy=added(one.service_busy, row.service_busy),
                )
        return list(merged.values())

    def _share(self, peer: Peer) -> str:
        if peer.standby_for == self._state.identity:
            return PUSH  # the standby needs a current table when it takes over
        place = peer.dialed.routing_id.decode() if peer.dialed is not None else peer.endpoints.get(PEER, "")
        return self._state.config.share_with(place)

    def _send_all(
        self,
        peer: Peer,
        link: Connection,
        services: Sequence[str],
        offers: tuple[OfferedServices, ...],
        now: Now,
        effects: Effects,
    ) -> None:
        """Send all rows. The catalog grows with the network, so only new peers and requests get it whole."""
        base = self._version
        near = self._is_near(peer)
        rows = [self._row(key, now) for key in self._members.by_name] if near else self._kind_rows(now)
        if services:
            rows = [row for row in rows if set(services) & set(row.services)]
        peer.tabled = peer.tabled or not services
        self._send_rows(peer, link, rows, not services, base, effects, offers)

    def _send_rows(
        self,
        peer: Peer,
        link: Connection,
        rows: Sequence[ClientRow],
        full: bool,
        base: int,
        effects: Effects,
        offers: tuple[OfferedServices, ...] = (),
    ) -> None:
        work = self._work(MAX_METHODS)
        for first in range(0, max(1, len(rows), len(offers)), CHUNK_ROWS):
            peer.table_seq += 1
            some = offers[first : first + CHUNK_ROWS] or msgspec.UNSET
            body = CatalogBody(clients=tuple(rows[first : first + CHUNK_ROWS]), work=work, offers=some)
            message = messages.Table(seq=peer.table_seq, full=full and not first, version=base)
            effects.send(link, ("TABLE", message, msgspec.json.encode(body)))

    def _row(self, key: Key, now: Now) -> ClientRow:
        """The client's current row, with a version of its own."""
        self._version += 1
        role, identity = key
        member = self._members.by_name.get(key)
        if member is None or not member.joined:
            return ClientRow(identity=identity, role=role, version=self._version, gone=True)
        offerings = offerings_of(member)
        several = len(offerings) > 1
        return ClientRow(
            identity=identity,
            role=role,
            version=self._version,
            services=services_of(member),
            slots=member.slots,
            busy=member.backend.busy if member.backend is not None else 0,
            service_slots=tuple(offering.slots for offering in offerings) if several else (),
            service_busy=tuple(offering.busy for offering in offerings) if several else (),
            age=max(0.0, now.mono - member.connection.last_received),
        )

    def table_req(
        self, connection: Connection, message: messages.TableReq, _: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        """TABLEREQ: send everything, or all clients with these services; send nothing if we share nothing."""
        peer = known(connection)
        if self._state.state != JOINING and self._share(peer) != OFF:
            offers = () if message.services else self._catalog.all()
            self._send_all(peer, connection, message.services, offers, now, effects)
        if message.keys and self._state.state != JOINING:
            peer.keyed = False
            self._send_keys(peer, connection, (), effects)

    # Receiving.

    def table(
        self, connection: Connection, message: messages.Table, bodies: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        """TABLE: merge newer rows; request the whole table if a message was missed."""
        peer = known(connection)
        try:
            body = msgspec.json.decode(bodies[0] if bodies else b"{}", type=CatalogBody)
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise Refusal(codes.MALFORMED, f"TABLE: {error}") from error
        table, before = peer.table, peer.table.seq
        table.merge(body.clients)
        self._catalog.merge(body.offers or (), peer.identity)
        peer.vain.clear()
        if self.keys is not None and self._state.keys is not None and isinstance(body.keys, KeyUpdate):
            self.keys.take(peer.identity, self._state.keys.key_of(connection.user_id), body.keys, now)
        if table.take(message.seq, message.version):
            if message.full:
                # More messages of a large table may follow; their rows are merged like any others.
                table.keep_only(body.clients, message.version)
            elif message.seq != before + 1:
                effects.send(connection, ("TABLEREQ", messages.TableReq(keys=self.keys is not None)))
        self.on_table(now, effects)


def known(connection: Connection) -> Peer:
    """The peer at the other end of a connection that has sent HELLO."""
    assert connection.peer is not None
    return connection.peer


def services_of(member: Member) -> tuple[str, ...]:
    """Its current services: none while it is suspended."""
    return () if member.suspended or member.backend is None else member.services


def offerings_of(member: Member) -> list[Offering]:
    """Its current services, with their slots."""
    return [member.backend.offerings[name] for name in services_of(member)] if member.backend is not None else []


def added(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """The sum of two rows of numbers; one of them may be empty."""
    return tuple(a + b for a, b in zip_longest(one, other, fillvalue=0))

"""Tables of clients, from broker to broker: who is where, and what they offer (PROTOCOL 7).

Lives here: our own table going out, whole or in parts, and those of others coming in. Never here: what is done with
them (`forwarding`), or how rows are merged (`peer_table`). Invariants: what was missed is noticed by the numbers, and
asked for; a message is bounded, however many clients there are; a broker of a group that is not near is told what is
offered here, and nothing of each client.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
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
from scale0.broker.core.state import BrokerState
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.errors import Refusal
from scale0.transport.core import messages
from scale0.transport.core.sockets import BACKEND, DISABLED, JOINING, PEER

CHUNK_ROWS: Final = 2_000
"""Rows in one TABLE."""
DELTAS: Final = 4
"""In one interval: how often it is told what changed."""
FULL_INTERVALS: Final = 60
"""How often everything is sent although nothing was missed: how busy clients are, for one, is told only then."""
PULL_INTERVALS: Final = 5
"""How often somebody is asked who does not push."""
KIND: Final = "kind"
"""How a row is named that stands for all who offer the same."""
PUSH: Final = "push"
PULL: Final = "pull"
OFF: Final = "off"


class CatalogBody(msgspec.Struct, frozen=True):
    """What a TABLE carries."""

    clients: tuple[ClientRow, ...] = ()
    work: Work = {}
    offers: tuple[OfferedServices, ...] | msgspec.UnsetType = msgspec.UNSET
    """Ours to add: what brokers offer, the sender or others whom it heard of."""
    keys: KeyUpdate | msgspec.UnsetType = msgspec.UNSET
    """Ours to add: whom the sender's own files let in."""


class CatalogReplication:
    """Ours goes out, theirs come in."""

    __slots__ = (
        "_directory",
        "_documents",
        "_kinds",
        "_members",
        "_peers",
        "_rounds",
        "_state",
        "_version",
        "keys",
        "on_told",
        "work",
    )

    def __init__(
        self, state: BrokerState, documents: ConfigDocument, members: Members, peers: Peers, directory: Catalog
    ) -> None:
        self._state = state
        self._directory = directory
        self._documents = documents
        self._kinds: dict[tuple[str, ...], int] = {}
        """What those far away were told last: slots by what somebody offers."""
        self._members = members
        self._peers = peers
        # Over restarts, too, what is told later has a larger version.
        self._version = state.boot
        self._rounds = 0
        self.keys: KeyReplication | None = None
        """Whose keys are told and believed; the composition root says. None: nobody's."""
        self.on_told: Callable[[Now, Effects], None] = lambda *_: None
        """Told that others told something."""
        self.work: Callable[[], dict[str, dict[str, int]]] = dict
        """Per method, how many tasks are queued and running; the composition root says who counts."""

    def start(self, now: Now) -> None:
        """Begin to tell."""
        self._state.timers.add((self._round, None), now.mono + self._state.interval)

    # Going out.

    def _round(self, _: None, now: Now, effects: Effects) -> None:
        """What changed, to those who get it pushed; all of it to the new ones, and now and then."""
        self._state.timers.add((self._round, None), now.mono + self._state.interval / DELTAS)
        changed, self._members.changed = self._members.changed, {}
        if self._state.state in (JOINING, DISABLED):
            return
        self._rounds += 1
        again = self._rounds % (FULL_INTERVALS * DELTAS) == 0
        base = self._version
        rows = [self._row(key, now) for key in changed]
        anew = bool(rows) and self._offers_changed()
        self._directory.mourn(self._is_near)
        news = self._directory.news()
        keys = self.keys.news() if self.keys is not None else []
        for peer in self._peers.by_name.values():
            link = peer.link
            if peer.lost or link is None:
                continue
            if self._share(peer) == PULL and self._rounds % (PULL_INTERVALS * DELTAS) == 0:
                effects.send(link, ("TABLEREQ", messages.TableReq()))
            elif self._share(peer) == PUSH and not peer.tabled:
                self._tell_all(peer, link, (), self._directory.all(), now, effects)
            elif self._share(peer) == PUSH:
                offers = tuple(entry for entry, teller in news if teller != peer.identity)
                near = self._is_near(peer)
                if again or (anew and not near):
                    self._tell_all(peer, link, (), offers, now, effects)
                elif offers or (rows and near):
                    self._tell(peer, link, rows if near else (), False, base, effects, offers)
            self._tell_keys(peer, link, keys, effects)

    def _tell_keys(self, peer: Peer, link: Connection, news: Sequence[KeyUpdate], effects: Effects) -> None:
        """Whatever `heartbeat_share` says: who may come in is another matter than who is there."""
        if self.keys is None:
            return
        if not peer.keyed:
            peer.keyed, news = True, self.keys.all()
        work = {} if self._share(peer) == OFF else self.work()
        for keys in news:
            peer.told += 1
            said = messages.Table(seq=peer.told, version=self._version)
            effects.send(link, ("TABLE", said, msgspec.json.encode(CatalogBody(work=work, keys=keys))))

    def _is_near(self, peer: Peer) -> bool:
        return are_near(self._documents.document, self._state.group, peer.group)

    def _offers_changed(self) -> bool:
        """True if somebody far away knows something that is not so any more."""
        kinds: dict[tuple[str, ...], int] = {}
        for member in self._members.by_name.values():
            if member.joined and (services := services_of(member)):
                kinds[services] = kinds.get(services, 0) + member.slots
        before, self._kinds = self._kinds, kinds
        if kinds.keys() != before.keys():
            self._directory.offer({service for services in kinds for service in services})
        return kinds != before

    def _kind_rows(self, now: Now) -> list[ClientRow]:
        """All who offer the same as one row."""
        merged: dict[tuple[str, ...], ClientRow] = {}
        for key in self._members.by_name:
            row = self._row(key, now)
            if row.services:
                one = merged.get(row.services)
                slots, busy = (0, 0) if one is None else (one.slots, one.busy)
                name = f"{KIND}-{zlib.crc32(chr(0).join(row.services).encode()):08x}"
                merged[row.services] = ClientRow(
                    identity=name,
                    role=BACKEND,
                    version=row.version,
                    services=row.services,
                    slots=slots + row.slots,
                    busy=busy + row.busy,
                )
        return list(merged.values())

    def _share(self, peer: Peer) -> str:
        if peer.standby_for == self._state.identity:
            return PUSH  # so that it takes over with the table warm
        place = peer.line.routing_id.decode() if peer.line is not None else peer.endpoints.get(PEER, "")
        return self._state.config.share_with(place)

    def _tell_all(
        self,
        peer: Peer,
        link: Connection,
        services: Sequence[str],
        offers: tuple[OfferedServices, ...],
        now: Now,
        effects: Effects,
    ) -> None:
        """All rows; the directory grows with the network, so all of it goes to newcomers and to those who ask only."""
        base = self._version
        near = self._is_near(peer)
        rows = [self._row(key, now) for key in self._members.by_name] if near else self._kind_rows(now)
        if services:
            rows = [row for row in rows if set(services) & set(row.services)]
        peer.tabled = peer.tabled or not services
        self._tell(peer, link, rows, not services, base, effects, offers)

    def _tell(
        self,
        peer: Peer,
        link: Connection,
        rows: Sequence[ClientRow],
        full: bool,
        base: int,
        effects: Effects,
        offers: tuple[OfferedServices, ...] = (),
    ) -> None:
        for first in range(0, max(1, len(rows), len(offers)), CHUNK_ROWS):
            peer.told += 1
            some = offers[first : first + CHUNK_ROWS] or msgspec.UNSET
            body = CatalogBody(clients=tuple(rows[first : first + CHUNK_ROWS]), work=self.work(), offers=some)
            said = messages.Table(seq=peer.told, full=full and not first, version=base)
            effects.send(link, ("TABLE", said, msgspec.json.encode(body)))

    def _row(self, key: Key, now: Now) -> ClientRow:
        """As it is now, with a version of its own."""
        self._version += 1
        role, identity = key
        member = self._members.by_name.get(key)
        if member is None or not member.joined:
            return ClientRow(identity=identity, role=role, version=self._version, gone=True)
        return ClientRow(
            identity=identity,
            role=role,
            version=self._version,
            services=services_of(member),
            slots=member.slots,
            busy=member.backend.busy if member.backend is not None else 0,
            age=max(0.0, now.mono - member.connection.heard),
        )

    def table_req(
        self, connection: Connection, said: messages.TableReq, _: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        """TABLEREQ: everything, or all who offer these; nothing, if nothing is shared: they cannot know."""
        peer = known(connection)
        if self._state.state != JOINING and self._share(peer) != OFF:
            offers = () if said.services else self._directory.all()
            self._tell_all(peer, connection, said.services, offers, now, effects)
        if said.keys and self._state.state != JOINING:
            peer.keyed = False
            self._tell_keys(peer, connection, (), effects)

    # Coming in.

    def table(
        self, connection: Connection, said: messages.Table, bodies: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        """TABLE: newer rows count; what was missed is asked for."""
        peer = known(connection)
        try:
            body = msgspec.json.decode(bodies[0] if bodies else b"{}", type=CatalogBody)
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise Refusal(codes.MALFORMED, f"TABLE: {error}") from error
        table, before = peer.table, peer.table.seq
        table.merge(body.clients)
        self._directory.merge(body.offers or (), peer.identity)
        peer.vain.clear()
        if self.keys is not None and self._state.keys is not None and isinstance(body.keys, KeyUpdate):
            self.keys.take(peer.identity, self._state.keys.key_of(connection.user_id), body.keys, now)
        if table.take(said.seq, said.version):
            table.work = body.work
            if said.full:
                # More of a large table may follow: its rows are merged like any others.
                table.keep_only(body.clients, said.version)
            elif said.seq != before + 1:
                effects.send(connection, ("TABLEREQ", messages.TableReq(keys=self.keys is not None)))
        self.on_told(now, effects)


def known(connection: Connection) -> Peer:
    """The peer at the other end, which said HELLO."""
    assert connection.peer is not None
    return connection.peer


def services_of(member: Member) -> tuple[str, ...]:
    """What it offers now: nothing while it is suspended."""
    return () if member.suspended or member.backend is None else member.services

"""The directory: which broker of the whole network offers which services, however far away it is.

Lives here: one entry per broker, passed on from neighbour to neighbour. Never here: clients, slots, or a connection
(`peers`), or where a request goes (`forwarding`). Invariants: an entry replaces only an older one, so that order and
repetition do not matter; nothing is said while nothing changes; the directory is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Final

import msgspec

from scale0.broker.cluster.peer import Peer
from scale0.broker.cluster.peer_catalog import MAX_SERVICES, Service
from scale0.broker.cluster.peers import Peers
from scale0.broker.core.state import BrokerState
from scale0.kernel.names import MAX_IDENTITY_CHARS, is_identity

MAX_BROKERS: Final = 10_000
"""Brokers that are remembered."""


class OfferedServices(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the backends of one broker offer."""

    broker: Annotated[str, msgspec.Meta(max_length=MAX_IDENTITY_CHARS)]
    version: int
    services: Annotated[tuple[Service, ...], msgspec.Meta(max_length=MAX_SERVICES)] = ()


class Catalog:
    """Who offers what, as far as it was told."""

    __slots__ = ("_fresh", "_peers", "_state", "_where", "entries")

    def __init__(self, state: BrokerState, peers: Peers) -> None:
        self._state = state
        self._peers = peers
        # Over restarts, too, what is told later has a larger version.
        self.entries: dict[str, OfferedServices] = {
            state.identity: OfferedServices(broker=state.identity, version=state.boot)
        }
        self._where: dict[str, set[str]] = {}
        self._fresh: dict[str, str] = {}
        """Whose entry others have to hear of, and who told us."""

    @property
    def services(self) -> Iterable[str]:
        """All that somebody offers."""
        return self._where

    def where(self, service: str) -> Iterable[str]:
        """The brokers whose backends offer this."""
        return self._where.get(service, ())

    def offer(self, services: Iterable[str]) -> None:
        """What our own backends offer now."""
        offered, own = tuple(sorted(services)), self.entries[self._state.identity]
        if own.services != offered:
            self._put(OfferedServices(broker=own.broker, version=own.version + 1, services=offered), "")

    def merge(self, entries: Iterable[OfferedServices], teller: str) -> None:
        """What a neighbour passed on."""
        for entry in entries:
            known = self.entries.get(entry.broker)
            if known is not None and entry.version <= known.version:
                continue
            if entry.broker == self._state.identity and known is not None:
                # They believe that we are gone, or what an earlier life of ours said: we know better.
                self._put(OfferedServices(broker=known.broker, version=entry.version + 1, services=known.services), "")
            elif is_identity(entry.broker) and (known is not None or len(self.entries) < MAX_BROKERS):
                self._put(entry, teller)

    def mourn(self, is_near: Callable[[Peer], bool]) -> None:
        """A neighbour that is lost offers nothing. All its neighbours say the same of it, so that it counts once.

        Of those far away we may only have hung up."""
        for peer in self._peers.by_name.values():
            entry = self.entries.get(peer.identity)
            if peer.lost and entry is not None and entry.services and is_near(peer):
                self._put(OfferedServices(broker=entry.broker, version=entry.version + 1), "")

    def all(self) -> tuple[OfferedServices, ...]:
        """Every entry, for a newcomer."""
        return tuple(self.entries.values())

    def news(self) -> list[tuple[OfferedServices, str]]:
        """What changed since this was asked last, each with who told us."""
        fresh, self._fresh = self._fresh, {}
        return [(self.entries[broker], teller) for broker, teller in fresh.items()]

    def _put(self, entry: OfferedServices, teller: str) -> None:
        known = self.entries.get(entry.broker)
        for service in set(known.services) if known is not None else ():
            brokers = self._where[service]
            brokers.discard(entry.broker)
            if not brokers:
                del self._where[service]
        self.entries[entry.broker] = entry
        for service in set(entry.services):
            self._where.setdefault(service, set()).add(entry.broker)
        self._fresh[entry.broker] = teller

"""The catalog: which broker of the network has which services, at any distance.

Each broker has one entry, and neighbours forward entries to each other. Invariants: an entry replaces only an older
one, so order and repetition do not matter; nothing is sent while nothing changes; the catalog is bounded.
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
MAX_VERSION: Final = 2**63 - 1


class OfferedServices(msgspec.Struct, frozen=True, omit_defaults=True):
    broker: Annotated[str, msgspec.Meta(max_length=MAX_IDENTITY_CHARS)]
    version: Annotated[int, msgspec.Meta(ge=0, le=MAX_VERSION)]
    services: Annotated[tuple[Service, ...], msgspec.Meta(max_length=MAX_SERVICES)] = ()


class Catalog:
    def __init__(self, state: BrokerState, peers: Peers) -> None:
        self._state = state
        self._peers = peers
        # The version increases over restarts, too.
        self.entries: dict[str, OfferedServices] = {
            state.identity: OfferedServices(broker=state.identity, version=state.boot)
        }
        self._where: dict[str, tuple[str, ...]] = {}
        """By service: its brokers, in order. Most services have one; a tuple needs a fifth of the memory of a set."""
        self._fresh: dict[str, str] = {}
        """Entries to forward, and the broker that each came from."""

    @property
    def services(self) -> Iterable[str]:
        return self._where

    def where(self, service: str) -> Iterable[str]:
        return self._where.get(service, ())

    def offer(self, services: Iterable[str]) -> None:
        offered, own = tuple(sorted(services)), self.entries[self._state.identity]
        if own.services != offered:
            self._put(OfferedServices(broker=own.broker, version=own.version + 1, services=offered), "")

    def merge(self, entries: Iterable[OfferedServices], teller: str) -> None:
        for entry in entries:
            known = self.entries.get(entry.broker)
            if known is not None and entry.version <= known.version:
                continue
            if entry.broker == self._state.identity and known is not None:
                # A peer has an entry about us that is out of date, perhaps from before our restart: override it.
                version = min(entry.version + 1, MAX_VERSION)
                self._put(OfferedServices(broker=known.broker, version=version, services=known.services), "")
            elif is_identity(entry.broker) and (known is not None or len(self.entries) < MAX_BROKERS):
                self._put(entry, teller)

    def remove_lost(self, is_near: Callable[[Peer], bool]) -> None:
        """Remove the services of lost neighbours. All neighbours write the same entry for a lost broker, so it counts
        once.

        The loss of a distant broker proves nothing: we may have closed that connection ourselves.
        """
        for peer in self._peers.by_name.values():
            entry = self.entries.get(peer.identity)
            if peer.lost and entry is not None and entry.services and is_near(peer):
                self._put(OfferedServices(broker=entry.broker, version=entry.version + 1), "")

    def all(self) -> tuple[OfferedServices, ...]:
        return tuple(self.entries.values())

    def changes(self) -> list[tuple[OfferedServices, str]]:
        """The entries that changed since the last call, each with the broker that it came from."""
        fresh, self._fresh = self._fresh, {}
        return [(self.entries[broker], teller) for broker, teller in fresh.items()]

    def _put(self, entry: OfferedServices, teller: str) -> None:
        known = self.entries.get(entry.broker)
        before, after = set(() if known is None else known.services), set(entry.services)
        for service in before - after:
            brokers = tuple(one for one in self._where[service] if one != entry.broker)
            if brokers:
                self._where[service] = brokers
            else:
                del self._where[service]
        self.entries[entry.broker] = entry
        for service in after - before:
            self._where[service] = tuple(sorted((*self._where.get(service, ()), entry.broker)))
        self._fresh[entry.broker] = teller

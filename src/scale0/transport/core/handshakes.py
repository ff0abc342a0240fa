"""Handshakes that are not finished: which one ends when there are too many.

Anybody can connect, and a client that knows our key has sent a valid HELLO. Invariants: each call takes constant time;
such a client loses its handshake only if no other is left; the network with the most loses the one that is oldest.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

NETWORK_BYTES: Final = 8
"""Of an IPv6 address: a host chooses the others itself."""

Holder = TypeVar("Holder", bound=Hashable)


class Handshakes(Generic[Holder]):
    def __init__(self) -> None:
        self._strangers = _ByNetwork[Holder]()
        self._acquainted = _ByNetwork[Holder]()
        """Those whose client knows our key."""

    def __len__(self) -> int:
        return len(self._strangers) + len(self._acquainted)

    def __iter__(self) -> Iterator[Holder]:
        yield from self._strangers
        yield from self._acquainted

    def add(self, holder: Holder, address: str) -> None:
        self._strangers.add(holder, network_of(address))

    def acquaint(self, holder: Holder) -> None:
        """Its client knows our key."""
        network = self._strangers.remove(holder)
        if network is not None:
            self._acquainted.add(holder, network)

    def remove(self, holder: Holder) -> None:
        if self._strangers.remove(holder) is None:
            self._acquainted.remove(holder)

    def excess(self) -> Holder | None:
        """The one that ends if there are too many."""
        return (self._strangers or self._acquainted).oldest_of_largest()


class _ByNetwork(Generic[Holder]):
    def __init__(self) -> None:
        self._network_of: dict[Holder, str | bytes] = {}
        self._of: dict[str | bytes, dict[Holder, None]] = {}
        """By network: its handshakes, the oldest first."""
        self._by_count: dict[int, dict[str | bytes, None]] = {}
        """By number of handshakes: the networks that have so many."""
        self._most = 0

    def __len__(self) -> int:
        return len(self._network_of)

    def __iter__(self) -> Iterator[Holder]:
        return iter(self._network_of)

    def add(self, holder: Holder, network: str | bytes) -> None:
        own = self._of.setdefault(network, {})
        own[holder] = None
        self._network_of[holder] = network
        self._count(network, len(own) - 1, len(own))

    def remove(self, holder: Holder) -> str | bytes | None:
        """Returns its network; None: it is not there."""
        network = self._network_of.pop(holder, None)
        if network is None:
            return None
        own = self._of[network]
        del own[holder]
        self._count(network, len(own) + 1, len(own))
        if not own:
            del self._of[network]
        return network

    def oldest_of_largest(self) -> Holder | None:
        if not self._most:
            return None
        return next(iter(self._of[next(iter(self._by_count[self._most]))]))

    def _count(self, network: str | bytes, before: int, after: int) -> None:
        """A number changes by one, so the maximum changes by at most one."""
        if before:
            del self._by_count[before][network]
            if not self._by_count[before]:
                del self._by_count[before]
        if after:
            self._by_count.setdefault(after, {})[network] = None
        if after > self._most or (before == self._most and before not in self._by_count):
            self._most = after


def network_of(address: str) -> str | bytes:
    """An IPv4 address, or the network of an IPv6 address."""
    if ":" not in address:
        return address
    return ipaddress.IPv6Address(address).packed[:NETWORK_BYTES]

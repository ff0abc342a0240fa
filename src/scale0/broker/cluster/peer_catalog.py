"""The clients of another broker, as it reported them (PROTOCOL 7).

Invariants: a row replaces only an older one, so order and repetition do not matter; a removed row stays removed until a
newer row arrives; the number of rows is bounded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import repeat
from typing import Annotated, Final, NamedTuple

import msgspec

from scale0.kernel.names import MAX_IDENTITY_CHARS

MAX_ROWS: Final = 100_000
MAX_SERVICES: Final = 10_000
MAX_SERVICE_CHARS: Final = 1_024
"""Limits for one row and for one of its names: larger rows exceed any broker's own limits and are invalid."""

Key = tuple[str, str]
"""Role and identity."""


Work = dict[str, dict[str, int]]
"""By method: queued and running tasks."""
Name = Annotated[str, msgspec.Meta(max_length=MAX_IDENTITY_CHARS)]
Service = Annotated[str, msgspec.Meta(max_length=MAX_SERVICE_CHARS)]


class ClientRow(msgspec.Struct, frozen=True, omit_defaults=True):
    identity: Name
    role: Name
    version: int
    services: Annotated[tuple[Service, ...], msgspec.Meta(max_length=MAX_SERVICES)] = ()
    slots: int = 0
    busy: int = 0
    service_slots: Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_SERVICES)] = ()
    service_busy: Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_SERVICES)] = ()
    """A Scale0 extension: the same for each of `services`, in their order; none: the totals count for each."""
    age: float = 0.0
    gone: bool = False
    """A Scale0 extension: it is no longer a client; other implementations see a client without services."""

    def each_service(self) -> Iterable[tuple[str, int, int]]:
        """Each service with its slots and its busy slots."""
        count = len(self.services)
        slots = self.service_slots if len(self.service_slots) == count else repeat(self.slots)
        busy = self.service_busy if len(self.service_busy) == count else repeat(self.busy)
        return zip(self.services, slots, busy, strict=False)


class ServiceOffer(NamedTuple):
    """The capacity of all backends of one broker for one service."""

    backends: int = 0
    slots: int = 0
    busy: int = 0


class PeerCatalog:
    __slots__ = ("_base", "_last_version", "offered", "rows", "seq")

    def __init__(self) -> None:
        self.rows: dict[Key, ClientRow] = {}
        self.seq = 0
        self.offered: dict[str, ServiceOffer] = {}
        """By service: the capacity of its backends."""
        self._base = 0
        """Rows up to this version were sent again since, or are gone."""
        self._last_version = 0

    def renew(self) -> None:
        """The sender restarts its numbering, perhaps after a restart."""
        self.seq = self._last_version = 0

    def take(self, seq: int, version: int) -> bool:
        """True for a message that is newer than all before it; otherwise it is late or a duplicate.

        Numbers restart with the sender's process, versions do not: a late message of an earlier run must not hide
        current ones.
        """
        if seq <= self.seq if version in (0, self._last_version) else version < self._last_version:
            return False
        self.seq, self._last_version = seq, version
        return True

    def merge(self, rows: Iterable[ClientRow]) -> None:
        for row in rows:
            known = self.rows.get((row.role, row.identity))
            if row.version <= self._base or (known is not None and known.version >= row.version):
                continue
            if known is None and len(self.rows) >= MAX_ROWS:
                continue
            self._count(known, -1)
            self._count(row, 1)
            self.rows[row.role, row.identity] = row

    def keep_only(self, rows: Collection[ClientRow], base: int) -> None:
        """The whole table was sent, after this version: discard rows that are not in it."""
        self._base = max(self._base, base or min((row.version for row in rows), default=1) - 1)
        named = {(row.role, row.identity) for row in rows}
        for key in [key for key in self.rows if key not in named]:
            self._count(self.rows.pop(key), -1)

    def _count(self, row: ClientRow | None, sign: int) -> None:
        if row is None or row.role != "backend" or row.gone:
            return
        for service, slots, busy in row.each_service():
            known = self.offered.get(service, ServiceOffer())
            offer = ServiceOffer(known.backends + sign, known.slots + sign * slots, known.busy + sign * busy)
            if offer.backends > 0:
                self.offered[service] = offer
            else:
                self.offered.pop(service, None)

"""The clients of another broker, as it told of them (PROTOCOL 7).

Lives here: rows, and how they are merged. Never here: when they are sent or asked for. Invariants: a row replaces only
an older one, so that order and repetition do not matter; a row that is gone stays gone until somebody newer says
otherwise; the number of rows is bounded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Annotated, Final, NamedTuple

import msgspec

from scale0.kernel.names import MAX_IDENTITY_CHARS

MAX_ROWS: Final = 100_000
"""Clients of one peer that are remembered."""
MAX_SERVICES: Final = 10_000
MAX_SERVICE_CHARS: Final = 1_024
"""Of one row, and of one of its names: more than any broker's own limits allow is no row."""

Key = tuple[str, str]
"""Role and identity."""


Work = dict[str, dict[str, int]]
"""Per method: how many tasks are queued, and running."""
Name = Annotated[str, msgspec.Meta(max_length=MAX_IDENTITY_CHARS)]
Service = Annotated[str, msgspec.Meta(max_length=MAX_SERVICE_CHARS)]


class ClientRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One client of a broker."""

    identity: Name
    role: Name
    version: int
    services: Annotated[tuple[Service, ...], msgspec.Meta(max_length=MAX_SERVICES)] = ()
    slots: int = 0
    busy: int = 0
    age: float = 0.0
    gone: bool = False
    """It is a client no more; ours to add, others see that it offers nothing."""


class ServiceOffer(NamedTuple):
    """What all backends of one broker have for one service."""

    backends: int = 0
    slots: int = 0
    busy: int = 0


class PeerCatalog:
    """What one peer told of its clients."""

    __slots__ = ("_base", "_told", "offered", "rows", "seq", "work")

    def __init__(self) -> None:
        self.rows: dict[Key, ClientRow] = {}
        self.seq = 0
        """Of the newest message."""
        self.offered: dict[str, ServiceOffer] = {}
        """By service: what its backends have."""
        self.work: Work = {}
        self._base = 0
        """Rows up to this version were told anew, or are gone."""
        self._told = 0
        """The largest version of a message."""

    def renew(self) -> None:
        """Its broker begins to count anew, perhaps in another life."""
        self.seq = self._told = 0

    def take(self, seq: int, version: int) -> bool:
        """True for a message that is newer than all before it; otherwise it came late, or twice.

        Numbers begin anew with a life of the sender's, versions do not: something late of a former life must not hide
        what is told now.
        """
        if seq <= self.seq if version in (0, self._told) else version < self._told:
            return False
        self.seq, self._told = seq, version
        return True

    def merge(self, rows: Iterable[ClientRow]) -> None:
        """Newer rows take the place of older ones."""
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
        """Everything was told, after this version: what is not in it is gone, and need not be remembered as such."""
        self._base = max(self._base, base or min((row.version for row in rows), default=1) - 1)
        named = {(row.role, row.identity) for row in rows}
        for key in [key for key in self.rows if key not in named]:
            self._count(self.rows.pop(key), -1)

    def _count(self, row: ClientRow | None, sign: int) -> None:
        if row is None or row.role != "backend" or row.gone:
            return
        for service in row.services:
            known = self.offered.get(service, ServiceOffer())
            offer = ServiceOffer(known.backends + sign, known.slots + sign * row.slots, known.busy + sign * row.busy)
            if offer.backends > 0:
                self.offered[service] = offer
            else:
                self.offered.pop(service, None)

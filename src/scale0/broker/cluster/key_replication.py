"""Key replication: a broker sends the keys of its own files to other brokers, and accepts theirs (PROTOCOL 15).

Invariants: nothing is sent while nothing changes; keys of other brokers are never forwarded, only their removal; no
other broker can change the keys of our own files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
from typing import Final

from msgspec import structs

from scale0.broker.cluster.replicated_keys import MAX_TELLERS, MAX_TOLD, KeyRow, KeySource, KeyUpdate, place_of
from scale0.broker.core.keys import Key
from scale0.broker.core.state import BrokerState
from scale0.kernel.clock import Now
from scale0.kernel.names import is_identity

CHUNK_ROWS: Final = 2_000
FUTURE_US: Final = 3_600_000_000
"""Versions count from the start time in microseconds: one that is further in the future is forged."""

Snapshot = Mapping[str, KeySource]


def places_of(keys: Iterable[Key], programs: Collection[str] = ()) -> dict[str, str]:
    """Keys that are replicated: not tokens, and not the keys of programs on this machine."""
    told = (key for key in keys if not key.expires and key.public not in programs)
    return {f"{key.role}/{key.name}": key.public for key in islice(told, MAX_TOLD)}


class KeyReplication:
    __slots__ = ("_dirty", "_fresh", "_mine", "_own", "_seen", "_state", "_version", "on_told", "tellers")

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._mine: Mapping[str, str] = {}
        self._own: dict[str, KeyRow] = {}
        # The version increases over restarts, too.
        self._version = state.boot
        self._fresh: dict[tuple[str, str], KeyRow] = {}
        """Rows to send, by broker and place."""
        self.tellers: dict[str, KeySource] = {}
        self._seen: dict[str, KeySource] = {}
        self._dirty: set[str] = set()
        self.on_told: Callable[[], None] = lambda: None
        """Called after rows were received."""

    # Our keys.

    def know(self, mine: Mapping[str, str]) -> None:
        """Set what our own files admit: public keys by role and name, as `places_of` returns them."""
        before, self._mine = self._mine, mine
        for at in sorted(before.keys() - mine.keys()):
            self._say(structs.replace(self._own.pop(at), public_key="", gone=True))
        for at, public_key in sorted(mine.items() - before.items()):
            role, _, name = at.partition("/")
            self._say(KeyRow(role=role, name=name, version=0, public_key=public_key))

    def _say(self, row: KeyRow) -> None:
        self._version += 1
        row = structs.replace(row, version=self._version)
        at = place_of(row)
        if not row.gone:
            self._own[at] = row
        self._fresh["", at] = row

    def news(self) -> list[KeyUpdate]:
        rows, self._fresh = tuple(self._fresh.values()), {}
        return [KeyUpdate(rows=rows[first : first + CHUNK_ROWS]) for first in range(0, len(rows), CHUNK_ROWS)]

    def all(self) -> list[KeyUpdate]:
        """All keys of our files, and removed keys of other brokers, for a new peer. The last message has the count."""
        base = self._version
        for at, row in self._own.items():
            self._version += 1
            self._own[at] = structs.replace(row, version=self._version)
        rows = (*self._own.values(), *self._buried())
        chunks = [rows[first : first + CHUNK_ROWS] for first in range(0, len(rows), CHUNK_ROWS)] or [()]
        news = [KeyUpdate(rows=some) for some in chunks]
        return [*news[:-1], structs.replace(news[-1], base=base, count=len(self._own))]

    def _buried(self) -> Iterable[KeyRow]:
        for broker, teller in self.tellers.items():
            for row in teller.gone.values():
                yield structs.replace(row, broker=broker)

    # Keys of other brokers.

    def load(self, tellers: Mapping[str, KeySource]) -> None:
        self.tellers = dict(tellers)

    def take(self, broker: str, public_key: str, news: KeyUpdate, now: Now) -> None:
        """Merge rows from the broker with this public key."""
        teller = self.tellers.get(broker)
        if teller is None or teller.public_key != public_key:
            if not public_key or (teller is None and len(self.tellers) >= MAX_TELLERS):
                return
            # Another key is another broker: discard the rows of the former one.
            teller = self.tellers[broker] = KeySource(public_key=public_key)
        gone = [(broker, row) for row in teller.merge(news)]
        for row in news.rows:
            if row.broker and row.version < now.wall * 1_000_000 + FUTURE_US:
                gone += self._take_away(row)
        for whose, row in gone:
            self._fresh[whose, place_of(row)] = structs.replace(row, broker=whose)
        self._dirty |= {broker, *(whose for whose, _ in gone)}
        self.on_told()

    def _take_away(self, row: KeyRow) -> list[tuple[str, KeyRow]]:
        if row.broker == self._state.identity:
            # A peer believes that a key of ours is gone, because of an earlier run: send it again.
            own = self._own.get(place_of(row))
            if row.gone and own is not None and own.version <= row.version:
                self._version = max(self._version, row.version)
                self._say(own)
            return []
        teller = self.tellers.get(row.broker) if is_identity(row.broker) else None
        return [] if teller is None else [(row.broker, gone) for gone in teller.take_away(row)]

    def keep(self, public_keys: Collection[str]) -> None:
        """Accept only brokers with these keys; discard the rows of all others."""
        for broker in [broker for broker, teller in self.tellers.items() if teller.public_key not in public_keys]:
            del self.tellers[broker]
            self._dirty.add(broker)
        if self._dirty:
            self.on_told()

    def snapshot(self) -> tuple[Snapshot, frozenset[str]]:
        """All rows, for another thread: the same object while nothing changes; and the brokers whose rows changed."""
        dirty, self._dirty = frozenset(self._dirty), set()
        if dirty or self._seen.keys() != self.tellers.keys():
            self._seen = {
                name: structs.replace(teller, rows=dict(teller.rows), gone=dict(teller.gone))
                if name in dirty or name not in self._seen
                else self._seen[name]
                for name, teller in self.tellers.items()
            }
        return self._seen, dirty

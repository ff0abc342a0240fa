"""Key replication: a broker sends the keys of its own files to other brokers, and accepts theirs (PROTOCOL 15).

Invariants: nothing is sent while nothing changes; keys of other brokers are never forwarded, only their removal; no
other broker can change the keys of our own files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
from typing import Final, NamedTuple

from msgspec import structs

from scale0.broker.cluster.replicated_keys import MAX_SHARED, MAX_SOURCES, KeyRow, KeySource, KeyUpdate, place_of
from scale0.broker.core.keys import Key
from scale0.broker.core.permissions import KeyRules
from scale0.broker.core.state import BrokerState
from scale0.kernel.clock import Now
from scale0.kernel.names import is_identity

CHUNK_ROWS: Final = 2_000
FUTURE_US: Final = 3_600_000_000
"""Versions count from the start time in microseconds: one that is further in the future is forged."""

Snapshot = Mapping[str, KeySource]


class SharedKey(NamedTuple):
    """What is sent of a key."""

    public: str
    rules: KeyRules
    expires: float
    previous: str


def places_of(keys: Iterable[Key], programs: Collection[str] = ()) -> dict[str, SharedKey]:
    """Keys that are replicated: not tokens, and not the keys of programs on this machine."""
    shared = (key for key in keys if not key.is_token and key.public not in programs)
    return {
        f"{key.role}/{key.name}": SharedKey(key.public, key.rules, key.expires, key.previous)
        for key in islice(shared, MAX_SHARED)
    }


class KeyReplication:
    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._mine: Mapping[str, SharedKey] = {}
        self._own: dict[str, KeyRow] = {}
        # The version increases over restarts, too.
        self._version = state.boot
        self._fresh: dict[tuple[str, str], KeyRow] = {}
        """Rows to send, by broker and place."""
        self.sources: dict[str, KeySource] = {}
        self._seen: dict[str, KeySource] = {}
        self._dirty: set[str] = set()
        self.on_change: Callable[[], None] = lambda: None
        """Called after rows were received."""

    # Our keys.

    def set_own_keys(self, mine: Mapping[str, SharedKey]) -> None:
        """Set what our own files admit: keys by role and name, as `places_of` returns them."""
        before, self._mine = self._mine, mine
        for at in sorted(before.keys() - mine.keys()):
            gone = self._own.pop(at)
            self._send(KeyRow(role=gone.role, name=gone.name, version=0, gone=True))
        for at, key in sorted(mine.items() - before.items()):
            role, _, name = at.partition("/")
            row = KeyRow(role=role, name=name, version=0, public_key=key.public, previous_key=key.previous)
            self._send(structs.replace(row, allow=key.rules.allow, deny=key.rules.deny, expires=key.expires))

    def _send(self, row: KeyRow) -> None:
        self._version += 1
        row = structs.replace(row, version=self._version)
        at = place_of(row)
        if not row.gone:
            self._own[at] = row
        self._fresh["", at] = row

    def changes(self) -> list[KeyUpdate]:
        rows, self._fresh = tuple(self._fresh.values()), {}
        return [KeyUpdate(rows=rows[first : first + CHUNK_ROWS]) for first in range(0, len(rows), CHUNK_ROWS)]

    def all(self) -> list[KeyUpdate]:
        """All keys of our files, and removed keys of other brokers, for a new peer. The last message has the count."""
        base = self._version
        for at, row in self._own.items():
            self._version += 1
            self._own[at] = structs.replace(row, version=self._version)
        rows = (*self._own.values(), *self._removed())
        chunks = [rows[first : first + CHUNK_ROWS] for first in range(0, len(rows), CHUNK_ROWS)] or [()]
        changes = [KeyUpdate(rows=some) for some in chunks]
        return [*changes[:-1], structs.replace(changes[-1], base=base, count=len(self._own))]

    def _removed(self) -> Iterable[KeyRow]:
        for broker, source in self.sources.items():
            for row in source.gone.values():
                yield structs.replace(row, broker=broker)

    # Keys of other brokers.

    def load(self, sources: Mapping[str, KeySource]) -> None:
        self.sources = dict(sources)

    def take(self, broker: str, public_key: str, changes: KeyUpdate, now: Now) -> None:
        """Merge rows from the broker with this public key."""
        source = self.sources.get(broker)
        if source is None or source.public_key != public_key:
            if not public_key or (source is None and len(self.sources) >= MAX_SOURCES):
                return
            # Another key is another broker: discard the rows of the former one.
            source = self.sources[broker] = KeySource(public_key=public_key)
        gone = [(broker, row) for row in source.merge(changes)]
        for row in changes.rows:
            if row.broker and row.version < now.wall * 1_000_000 + FUTURE_US:
                gone += self._take_away(row)
        for whose, row in gone:
            self._fresh[whose, place_of(row)] = structs.replace(row, broker=whose)
        self._dirty |= {broker, *(whose for whose, _ in gone)}
        self.on_change()

    def _take_away(self, row: KeyRow) -> list[tuple[str, KeyRow]]:
        if row.broker == self._state.identity:
            # A peer believes that a key of ours is gone, because of an earlier run: send it again.
            own = self._own.get(place_of(row))
            if row.gone and own is not None and own.version <= row.version:
                self._version = max(self._version, row.version)
                self._send(own)
            return []
        source = self.sources.get(row.broker) if is_identity(row.broker) else None
        return [] if source is None else [(row.broker, gone) for gone in source.take_away(row)]

    def rename(self, keys: Iterable[Key]) -> None:
        """Brokers that rotate their key keep their rows."""
        renamed = {key.previous: key.public for key in keys if key.previous}
        for broker, source in self.sources.items():
            if source.public_key in renamed:
                source.public_key = renamed[source.public_key]
                self._dirty.add(broker)

    def keep(self, public_keys: Collection[str]) -> None:
        """Accept only brokers with these keys; discard the rows of all others."""
        for broker in [broker for broker, source in self.sources.items() if source.public_key not in public_keys]:
            del self.sources[broker]
            self._dirty.add(broker)
        if self._dirty:
            self.on_change()

    def snapshot(self) -> tuple[Snapshot, frozenset[str]]:
        """All rows, for another thread: the same object while nothing changes; and the brokers whose rows changed."""
        dirty, self._dirty = frozenset(self._dirty), set()
        if dirty or self._seen.keys() != self.sources.keys():
            self._seen = {
                name: structs.replace(source, rows=dict(source.rows), gone=dict(source.gone))
                if name in dirty or name not in self._seen
                else self._seen[name]
                for name, source in self.sources.items()
            }
        return self._seen, dirty

"""Keys of other brokers: how rows are merged, and which keys are admitted (PROTOCOL 15).

Invariants: only the broker whose files hold a key can add it, so a broker that was away restores nothing; any trusted
broker can report a removal; a row replaces only an older one, so order and repetition do not matter; a key is admitted
only through a chain of brokers that starts at our own files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Annotated, Final, NamedTuple

import msgspec

from scale0.broker.core.keys import MAX_EXPIRES, MAX_NAME_CHARS, Key, is_name
from scale0.broker.core.permissions import MAX_RULES, KeyRules, rules_error
from scale0.config.value_types import is_curve_key
from scale0.kernel.names import MAX_IDENTITY_CHARS
from scale0.transport.core.sockets import PEER, ROLES

MAX_SHARED: Final = 100_000
MAX_GONE: Final = 1_000
"""Removed keys of one broker that are remembered, newest first."""
MAX_SOURCES: Final = 1_000
"""Brokers whose keys are remembered: as many as are known at all."""

Name = tuple[str, str]
Rules = Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_RULES)]
Version = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class KeyRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One key, as reported by the broker that stores it."""

    role: Annotated[str, msgspec.Meta(max_length=16)]
    name: Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARS)]
    version: Version
    public_key: Annotated[str, msgspec.Meta(max_length=40)] = ""
    gone: bool = False
    broker: Annotated[str, msgspec.Meta(max_length=MAX_IDENTITY_CHARS)] = ""
    """The broker whose files hold, or held, the key; blank: the sender."""
    allow: Rules = ()
    deny: Rules = ()
    expires: Annotated[float, msgspec.Meta(ge=0, le=MAX_EXPIRES)] = 0.0
    """Wall clock; 0: never."""
    previous_key: Annotated[str, msgspec.Meta(max_length=40)] = ""
    """The previous key of a broker that rotates its key; it is accepted as well."""

    @property
    def is_valid(self) -> bool:
        named = self.role in ROLES and is_name(self.name) and not rules_error(self.role, self.rules)
        return named and (self.gone or bool(self.public_key)) and self.is_key

    @property
    def rules(self) -> KeyRules:
        return KeyRules(self.allow, self.deny)

    @property
    def is_key(self) -> bool:
        return is_curve_key(self.public_key) and is_curve_key(self.previous_key)


class KeyUpdate(msgspec.Struct, frozen=True, omit_defaults=True):
    rows: tuple[KeyRow, ...] = ()
    base: Version = 0
    """Not 0: with this message, all keys of the sender's files have been sent after this version."""
    count: int = 0
    """The number of those keys: if some were lost on the way, nothing is removed."""


class KeySource(msgspec.Struct):
    """The keys that one broker reported; also the format on disk."""

    public_key: str
    """The broker's own key: reports belong to a key, not to a name."""
    base: int = 0
    """Rows up to this version were sent again since, or are gone."""
    rows: dict[str, KeyRow] = {}
    gone: dict[str, KeyRow] = {}

    def merge(self, news: KeyUpdate) -> list[KeyRow]:
        """Merge a report of the broker itself; return the rows that it removes."""
        out = []
        for row in news.rows:
            if row.broker or not row.is_valid or row.version <= self.base:
                continue
            at = place_of(row)
            known = self.rows.get(at) or self.gone.get(at)
            if known is not None and known.version >= row.version:
                continue
            if row.gone:
                out += self._remove(at, row.version)
            elif at in self.rows or len(self.rows) < MAX_SHARED:
                self.gone.pop(at, None)
                self.rows[at] = row
        fresh = sum(row.version > news.base for row in self.rows.values()) if news.base > self.base else -1
        if fresh == news.count:
            for at in [at for at, row in self.rows.items() if row.version <= news.base]:
                out += self._remove(at, news.base)
            self.base = news.base
        return out

    def take_away(self, row: KeyRow) -> list[KeyRow]:
        """Another broker's report about this one's keys: it can only remove one."""
        at = place_of(row)
        known = self.rows.get(at)
        if not row.gone or not row.is_valid or known is None or row.version <= known.version:
            return []
        return self._remove(at, row.version)

    def _remove(self, at: str, version: int) -> list[KeyRow]:
        """Mark a key as removed; return it if it was there."""
        known = self.rows.pop(at, None)
        role, _, name = at.partition("/")
        gone = KeyRow(role=role, name=name, version=version, gone=True)
        self.gone.pop(at, None)
        self.gone[at] = gone
        for old in list(islice(self.gone, max(0, len(self.gone) - MAX_GONE))):
            del self.gone[old]
        return [gone] if known is not None else []


class AdmittedKey(NamedTuple):
    """An admitted key, and the broker whose files hold it; blank: this one."""

    key: Key
    broker: str


def place_of(row: KeyRow) -> str:
    return f"{row.role}/{row.name}"


def admitted_keys(
    own: Sequence[Key], sources: Mapping[str, KeySource], identity: str, public_key: str, time: float = 0.0
) -> list[AdmittedKey]:
    """The keys that a broker with this identity and key admits: first those of its own files, then those of the brokers
    that these admit, and so on. The first one found has the name and the key. Keys that have expired are included, and
    nothing follows from them.
    """
    out = [AdmittedKey(key, "") for key in own]
    names: set[Name] = {(key.role, key.name) for key in own if not key.is_token} | {(PEER, identity)}
    publics: set[Name] = {(key.role, each) for key in own if not key.is_token for each in key.publics} | {
        (PEER, public_key)
    }
    own_names = frozenset(names)
    brokers: set[str] = set()
    for key in own:
        if key.role == PEER and not key.is_token and not key.is_expired(time):
            brokers.update(key.publics)
    waiting = dict(sorted(sources.items()))
    while level := [name for name, source in waiting.items() if source.public_key in brokers]:
        for name in level:
            for _, row in sorted(waiting.pop(name).rows.items()):
                called, proved = (row.role, row.name), (row.role, row.public_key)
                if called in names or proved in publics or _is_beneath(called, own_names):
                    continue
                names.add(called)
                key = Key(row.public_key, row.role, row.name, row.expires, rules=row.rules, previous=row.previous_key)
                key = key._replace(broker=name)
                publics.update((row.role, each) for each in key.publics)
                out.append(AdmittedKey(key, name))
                if row.role == PEER and not key.is_expired(time):
                    brokers.update(key.publics)
    return out


def _is_beneath(called: Name, names: frozenset[Name]) -> bool:
    """True for `n.x` where our own files have `n`: the name already belongs to that key."""
    role, part = called
    while "." in part:
        part = part.rpartition(".")[0]
        if (role, part) in names:
            return True
    return False


def clash(role: str, name: str, public_key: str, stored: Iterable[AdmittedKey]) -> AdmittedKey | None:
    """The key of another broker that has this name, or is this key under another name, if there is one."""
    for one in stored:
        key = one.key
        if one.broker and key.role == role and (key.name == name) != (key.public == public_key):
            return one
    return None


def other_use(users: Collection[tuple[str, str]], public_key: str, stored: Iterable[AdmittedKey]) -> AdmittedKey | None:
    """The key of another broker that is this public key in another role or under another name, if there is one."""
    for one in stored:
        if one.broker and public_key in one.key.publics and (one.key.role, one.key.name) not in users:
            return one
    return None

"""Keys that other brokers told of, and who is let in for it (PROTOCOL 15).

Lives here: rows of keys, how they are merged, and whom a broker lets in by its own files and by what it was told. Never
here: a file, a socket, or when anything is said (`key_share`). Invariants: only the broker whose files hold a key says
that it is let in, so a broker that was away brings nothing back; that a key is gone may be said by anybody who is
believed; a row replaces only an older one, so that order and repetition do not matter; whom nobody lets in whose own
key leads back to our own files is not let in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Annotated, Final, NamedTuple

import msgspec

from scale0.broker.core.keys import MAX_NAME_CHARS, Key, is_name
from scale0.config.value_types import is_curve_key
from scale0.kernel.names import MAX_IDENTITY_CHARS
from scale0.transport.core.sockets import PEER, ROLES

MAX_TOLD: Final = 100_000
"""Keys of one broker that others are told of, and remember."""
MAX_GONE: Final = 1_000
"""Keys of one broker of which it is remembered that they are gone; the newest ones."""
MAX_TELLERS: Final = 1_000
"""Brokers whose keys are remembered: as many as are known at all."""

Name = tuple[str, str]
"""Role and name."""
Version = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class KeyRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One key, as the broker says that stores it."""

    role: Annotated[str, msgspec.Meta(max_length=16)]
    name: Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARS)]
    version: Version
    public_key: Annotated[str, msgspec.Meta(max_length=40)] = ""
    gone: bool = False
    broker: Annotated[str, msgspec.Meta(max_length=MAX_IDENTITY_CHARS)] = ""
    """Whose files it is, or was, in; blank: the sender's."""

    @property
    def is_sound(self) -> bool:
        """True for one that can be a key of ours."""
        return self.role in ROLES and is_name(self.name) and (self.gone or bool(self.public_key)) and self.is_key

    @property
    def is_key(self) -> bool:
        """True for a key of CURVE, and for none."""
        return is_curve_key(self.public_key)


class KeyUpdate(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a TABLE carries of keys."""

    rows: tuple[KeyRow, ...] = ()
    base: Version = 0
    """Not 0: with this message all that the sender's files let in has been told after this version."""
    count: int = 0
    """How many that are: if some got lost on the way, nothing is taken away."""


class KeySource(msgspec.Struct):
    """What one broker told of its keys; also as it is kept on disk."""

    public_key: str
    """The broker's own: what is told belongs to a key, not to a name."""
    base: int = 0
    """What is as old as this was told anew since, or is gone."""
    rows: dict[str, KeyRow] = {}
    gone: dict[str, KeyRow] = {}

    def merge(self, news: KeyUpdate) -> list[KeyRow]:
        """What the broker itself says; the rows that are gone by it."""
        out = []
        for row in news.rows:
            if row.broker or not row.is_sound or row.version <= self.base:
                continue
            at = place_of(row)
            known = self.rows.get(at) or self.gone.get(at)
            if known is not None and known.version >= row.version:
                continue
            if row.gone:
                out += self._bury(at, row.version)
            elif at in self.rows or len(self.rows) < MAX_TOLD:
                self.gone.pop(at, None)
                self.rows[at] = row
        fresh = sum(row.version > news.base for row in self.rows.values()) if news.base > self.base else -1
        if fresh == news.count:
            for at in [at for at, row in self.rows.items() if row.version <= news.base]:
                out += self._bury(at, news.base)
            self.base = news.base
        return out

    def take_away(self, row: KeyRow) -> list[KeyRow]:
        """What another broker says of this one's keys: that one is gone, and nothing else."""
        at = place_of(row)
        known = self.rows.get(at)
        if not row.gone or not row.is_sound or known is None or row.version <= known.version:
            return []
        return self._bury(at, row.version)

    def _bury(self, at: str, version: int) -> list[KeyRow]:
        """It is gone; those are named that were there."""
        known = self.rows.pop(at, None)
        role, _, name = at.partition("/")
        gone = KeyRow(role=role, name=name, version=version, gone=True)
        self.gone.pop(at, None)
        self.gone[at] = gone
        for old in list(islice(self.gone, max(0, len(self.gone) - MAX_GONE))):
            del self.gone[old]
        return [gone] if known is not None else []


class AdmittedKey(NamedTuple):
    """A key that is let in, and the broker in whose files it is; blank: ours."""

    key: Key
    broker: str


def place_of(row: KeyRow) -> str:
    """What a row is about: one role and name."""
    return f"{row.role}/{row.name}"


def let_in(own: Sequence[Key], tellers: Mapping[str, KeySource], identity: str, public_key: str) -> list[AdmittedKey]:
    """Whom a broker of this identity and key lets in: its own files first, then those of brokers whom these let in,
    then of brokers whom those let in, and so on. Whoever comes first has the name, and the key."""
    out = [AdmittedKey(key, "") for key in own]
    names: set[Name] = {(key.role, key.name) for key in own if not key.expires} | {(PEER, identity)}
    publics: set[Name] = {(key.role, key.public) for key in own if not key.expires} | {(PEER, public_key)}
    own_names = frozenset(names)
    brokers = {key.public for key in own if key.role == PEER and not key.expires}
    waiting = dict(sorted(tellers.items()))
    while level := [name for name, teller in waiting.items() if teller.public_key in brokers]:
        for name in level:
            for _, row in sorted(waiting.pop(name).rows.items()):
                called, proved = (row.role, row.name), (row.role, row.public_key)
                if called in names or proved in publics or _is_beneath(called, own_names):
                    continue
                names.add(called)
                publics.add(proved)
                out.append(AdmittedKey(Key(row.public_key, row.role, row.name), name))
                if row.role == PEER:
                    brokers.add(row.public_key)
    return out


def _is_beneath(called: Name, names: frozenset[Name]) -> bool:
    """True for `n.x` where our own files have `n`: that name is given to another already."""
    role, part = called
    while "." in part:
        part = part.rpartition(".")[0]
        if (role, part) in names:
            return True
    return False


def clash(role: str, name: str, public_key: str, stored: Iterable[AdmittedKey]) -> AdmittedKey | None:
    """The key of another broker's that has this name, or is this key under another name, if there is one."""
    for one in stored:
        key = one.key
        if one.broker and key.role == role and (key.name == name) != (key.public == public_key):
            return one
    return None

"""Keys, as the machines of a broker see them: whose connection is this, and what may it call itself (PROTOCOL 2, 11)?

Lives here: names of keys by role, users, and the rule of identities. Never here: a key, a file or a socket. A user is
`role/name` of the key that a connection proved to have, or `token:role/name` of one that may only enrol. Invariant: an
identity is given to the key whose stored name is the longest that it begins with, and to no other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from scale0.kernel import codes
from scale0.kernel.errors import Refusal
from scale0.transport.core.sockets import BACKEND, CONFIG_PUB, DIALED, FRONTEND, PEER, ROLES, TASK_PUB

ROLES_OF: Final[Mapping[str, tuple[str, ...]]] = {
    FRONTEND: (FRONTEND,),
    BACKEND: (BACKEND,),
    PEER: (PEER,),
    CONFIG_PUB: (FRONTEND, BACKEND, PEER),
    TASK_PUB: (FRONTEND, BACKEND),
}
"""Whose keys each socket takes."""
GUEST: Final = "token:"
MAX_NAME_CHARS: Final = 64
"""Of a key: half of an identity, so that there is room behind it."""
_NAME: Final = re.compile(r"[A-Za-z0-9_:-][A-Za-z0-9._:-]{0,63}", re.ASCII)
_ROLE_OF_DOOR: Final = {DIALED: PEER}

UserOf = Callable[[str, bytes], str]
"""Socket and routing id of a message: who sent it."""


class Key(NamedTuple):
    """A stored key."""

    public: str
    role: str
    name: str
    expires: float = 0.0
    """Wall clock; only a token's has an end."""
    endpoint: str = ""
    """Of a broker: where it is, if its certificate says so."""

    @property
    def user(self) -> str:
        """What its connections are called."""
        return f"{GUEST if self.expires else ''}{self.role}/{self.name}"


def is_name(text: str) -> bool:
    """True for what a key may be stored as: an identity that is short and begins with no dot."""
    return _NAME.fullmatch(text) is not None


def is_guest(user: str) -> bool:
    """True for one that may only enrol."""
    return user.startswith(GUEST)


class KeyTable:
    """All stored keys at one moment."""

    __slots__ = ("_by_door", "brokers", "keys", "names")

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self.keys = tuple(keys)
        self.names: dict[str, frozenset[str]] = {
            role: frozenset(key.name for key in self.keys if key.role == role and not key.expires) for role in ROLES
        }
        self.brokers = {key.user: key.public for key in self.keys if key.role == PEER and not key.expires}
        """The keys of other brokers, by user."""
        self._by_door: dict[str, dict[str, Key]] = {door: {} for door in ROLES_OF}
        # If a key is stored twice, the first name is its name, whatever the order of files.
        for key in sorted(self.keys, key=lambda key: key.name):
            for door, roles in ROLES_OF.items():
                # A token's key is for the socket on which it is traded in, and for nothing else.
                if key.role in roles and (not key.expires or key.role == door):
                    self._by_door[door].setdefault(key.public, key)

    def find(self, door: str, public: str) -> Key | None:
        """The key with which this socket may be used, if it may."""
        return self._by_door.get(door, {}).get(public)

    def users(self, door: str) -> dict[str, str]:
        """Who may use this socket, by public key."""
        return {public: key.user for public, key in self._by_door[door].items()}

    def lost_users(self, newer: KeyTable) -> frozenset[str]:
        """Users whose key is not there any more, or is another one."""
        left = {(key.user, key.public) for key in newer.keys}
        return frozenset(key.user for key in self.keys if (key.user, key.public) not in left)


class Keys:
    """What the machines ask about users."""

    __slots__ = ("_brokers", "_names", "user_of")

    def __init__(self, user_of: UserOf, table: KeyTable) -> None:
        self.user_of = user_of
        self.know(table)

    def know(self, table: KeyTable) -> None:
        """These are let in from now on."""
        self._names: Mapping[str, frozenset[str]] = table.names
        self._brokers: Mapping[str, str] = table.brokers

    def key_of(self, user: str) -> str:
        """The public key of a user that is a broker; blank: it is none, or none any more."""
        return self._brokers.get(user, "")

    def owner_of(self, role: str, identity: str) -> str:
        """The longest stored name that an identity is, or begins with up to a dot; blank: nobody's."""
        names, part = self._names[role], identity
        while part not in names:
            part, dot, _ = part.rpartition(".")
            if not dot:
                return ""
        return part

    def check(self, door: str, user: str, identity: str) -> None:
        """Refusal 403 unless this user may call itself so."""
        role, _, name = user.partition("/")
        if role != _ROLE_OF_DOOR.get(door, door):
            raise Refusal(codes.NOT_ALLOWED, "this key is not one of those who may have an identity here")
        if self.owner_of(role, identity) != name:
            raise Refusal(codes.NOT_ALLOWED, f"your key is stored as {name}: call yourself {name}, or {name}.…")

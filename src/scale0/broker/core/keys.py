"""Users and identities (PROTOCOL 2, 11): which user a connection belongs to, and which identities that user may have.

A user is `role/name` of the key that a connection authenticated with, or `token:role/name` of a key that may only
enrol. Invariant: an identity belongs to the key with the longest stored name that is a prefix of it, and to no other.
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
"""The roles whose keys each socket accepts."""
GUEST: Final = "token:"
MAX_NAME_CHARS: Final = 64
"""For the name of a key: half of an identity, so that a suffix fits."""
_NAME: Final = re.compile(r"[A-Za-z0-9_:-][A-Za-z0-9._:-]{0,63}", re.ASCII)
_ROLE_OF_SOCKET: Final = {DIALED: PEER}

UserOf = Callable[[str, bytes], str]
"""Returns the user of a message, by socket and routing id."""


class Key(NamedTuple):
    public: str
    role: str
    name: str
    expires: float = 0.0
    """Wall clock; only tokens expire."""
    endpoint: str = ""
    """For a broker: its address, if the certificate contains it."""

    @property
    def user(self) -> str:
        return f"{GUEST if self.expires else ''}{self.role}/{self.name}"


def is_name(text: str) -> bool:
    """True for a valid name of a key: a short identity that does not start with a dot."""
    return _NAME.fullmatch(text) is not None


def is_enrolment_key(user: str) -> bool:
    """True for a user that may only enrol."""
    return user.startswith(GUEST)


class KeyTable:
    """All stored keys at one moment."""

    __slots__ = ("_by_socket", "brokers", "keys", "names")

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self.keys = tuple(keys)
        self.names: dict[str, frozenset[str]] = {
            role: frozenset(key.name for key in self.keys if key.role == role and not key.expires) for role in ROLES
        }
        self.brokers = {key.user: key.public for key in self.keys if key.role == PEER and not key.expires}
        self._by_socket: dict[str, dict[str, Key]] = {socket: {} for socket in ROLES_OF}
        # If a key is stored twice, the first name in sort order is used, whatever the order of files.
        for key in sorted(self.keys, key=lambda key: key.name):
            for socket, roles in ROLES_OF.items():
                # A token's key is valid only on the socket where it is exchanged.
                if key.role in roles and (not key.expires or key.role == socket):
                    self._by_socket[socket].setdefault(key.public, key)

    def find(self, socket: str, public: str) -> Key | None:
        """Return the key, if it may use this socket."""
        return self._by_socket.get(socket, {}).get(public)

    def users(self, socket: str) -> dict[str, str]:
        return {public: key.user for public, key in self._by_socket[socket].items()}

    def lost_users(self, newer: KeyTable) -> frozenset[str]:
        """Users whose key was removed or replaced."""
        left = {(key.user, key.public) for key in newer.keys}
        return frozenset(key.user for key in self.keys if (key.user, key.public) not in left)


class Keys:
    """The current key table, for the broker core."""

    def __init__(self, user_of: UserOf, table: KeyTable) -> None:
        self.user_of = user_of
        self.know(table)

    def know(self, table: KeyTable) -> None:
        self._names: Mapping[str, frozenset[str]] = table.names
        self._brokers: Mapping[str, str] = table.brokers
        self.by_user = {key.user: key.public for key in table.keys}

    def key_of(self, user: str) -> str:
        """The public key of a broker's user; blank if there is none."""
        return self._brokers.get(user, "")

    def owner_of(self, role: str, identity: str) -> str:
        """The longest stored name that equals the identity, or is a prefix of it up to a dot; blank if none is."""
        names, part = self._names[role], identity
        while part not in names:
            part, dot, _ = part.rpartition(".")
            if not dot:
                return ""
        return part

    def check(self, socket: str, user: str, identity: str) -> None:
        """Raise Refusal 403 unless this user may use this identity."""
        role, _, name = user.partition("/")
        if role != _ROLE_OF_SOCKET.get(socket, socket):
            raise Refusal(codes.NOT_ALLOWED, "the role of this key does not permit this socket")
        if self.owner_of(role, identity) != name:
            raise Refusal(
                codes.NOT_ALLOWED,
                f"your key is stored as {name}: use the identity {name}, or one that begins with {name}.",
            )

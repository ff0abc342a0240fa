"""Users and identities (PROTOCOL 2, 11): which user a connection belongs to, and which identities that user may have.

A user is `role/name` of the key that a connection authenticated with, or `token:role/name` of a key that may only
enrol. Invariant: an identity belongs to the key with the longest stored name that is a prefix of it, and to no other;
one that belongs to no key may be used by programs on the broker's machine, which can read all of its files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from scale0.broker.core.permissions import NO_RULES, TAKE, KeyRules, Permissions
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
MAX_EXPIRES: Final = 253_402_300_800.0
"""The year 10000."""
_NAME: Final = re.compile(r"[A-Za-z0-9_:-][A-Za-z0-9._:-]{0,63}", re.ASCII)
_ROLE_OF_SOCKET: Final = {DIALED: PEER}

UserOf = Callable[[str, bytes], str]
"""Returns the user of a message, by socket and routing id."""


class Key(NamedTuple):
    public: str
    role: str
    name: str
    expires: float = 0.0
    """Wall clock; 0: never. `is_expired` tells it."""
    endpoint: str = ""
    """For a broker: its address, if the certificate contains it."""
    rules: KeyRules = NO_RULES
    """What it may do; those of a token are for the key that it will admit."""
    is_program: bool = False
    """It is the key of programs on this broker's machine."""
    is_token: bool = False
    """It may only enrol."""
    previous: str = ""
    """For a broker that rotates its key: the previous public key, which is accepted as well."""
    is_helens: bool = False
    """A token of a Helen: the key that it admits is stored in both roles."""
    broker: str = ""
    """The broker whose files hold the key; blank: this one."""

    @property
    def user(self) -> str:
        return f"{GUEST if self.is_token else ''}{self.role}/{self.name}"

    @property
    def publics(self) -> tuple[str, ...]:
        return (self.public, self.previous) if self.previous else (self.public,)

    def is_expired(self, time: float) -> bool:
        return bool(self.expires) and time >= self.expires


def is_name(text: str) -> bool:
    """True for a valid name of a key: a short identity that does not start with a dot."""
    return _NAME.fullmatch(text) is not None


def is_enrolment_key(user: str) -> bool:
    """True for a user that may only enrol."""
    return user.startswith(GUEST)


class KeyTable:
    """All stored keys at one moment. Keys that have expired are not accepted, but their names remain theirs."""

    __slots__ = ("_by_socket", "_expired", "brokers", "expired", "keys", "names")

    def __init__(self, keys: Iterable[Key] = (), expired: Iterable[Key] = ()) -> None:
        self.keys = tuple(keys)
        self.expired = tuple(expired)
        self._expired = {(key.role, key.public): key for key in self.expired}
        named = [key for key in (*self.keys, *self.expired) if not key.is_token]
        self.names: dict[str, frozenset[str]] = {
            role: frozenset(key.name for key in named if key.role == role) for role in ROLES
        }
        self.brokers = {key.user: key.public for key in self.keys if key.role == PEER and not key.is_token}
        self._by_socket: dict[str, dict[str, Key]] = {socket: {} for socket in ROLES_OF}
        # If a key is stored twice, the first name in sort order is used, whatever the order of files.
        for key in sorted(self.keys, key=lambda key: key.name):
            for socket, roles in ROLES_OF.items():
                # A token's key is valid only on the socket where it is exchanged.
                if key.role in roles and (not key.is_token or key.role == socket):
                    for public in key.publics:
                        self._by_socket[socket].setdefault(public, key)

    def find(self, socket: str, public: str) -> Key | None:
        """Return the key, if it may use this socket."""
        return self._by_socket.get(socket, {}).get(public)

    def changes_at(self, time: float) -> bool:
        """True if a key has expired since, or one that had expired is valid at this time."""
        return any(not key.is_token and key.is_expired(time) for key in self.keys) or not all(
            key.is_expired(time) for key in self.expired
        )

    def find_expired(self, socket: str, public: str) -> Key | None:
        """Return the key that could use this socket until it expired."""
        found = (self._expired.get((role, public)) for role in ROLES_OF[socket])
        return next((key for key in found if key is not None), None)

    def users(self, socket: str) -> dict[str, str]:
        return {public: key.user for public, key in self._by_socket[socket].items()}

    def lost_users(self, newer: KeyTable) -> frozenset[str]:
        """Users whose key was removed or replaced."""
        left = {(key.user, public) for key in newer.keys for public in key.publics}
        return frozenset(key.user for key in self.keys if (key.user, key.public) not in left)


def table_at(keys: Iterable[Key], time: float) -> KeyTable:
    """The table at this time; tokens are not examined, because they end by the wall clock."""
    valid, expired = list[Key](), list[Key]()
    for key in keys:
        (expired if not key.is_token and key.is_expired(time) else valid).append(key)
    return KeyTable(valid, expired)


class Keys:
    """The current key table, for the broker core."""

    def __init__(self, user_of: UserOf, table: KeyTable) -> None:
        self.user_of = user_of
        self.server: tuple[str, str] = ("", "")
        """Our own public key, and the previous one while a rotation is under way."""
        self.permissions = Permissions()
        self.know(table)

    def know(self, table: KeyTable) -> None:
        self._names: Mapping[str, frozenset[str]] = table.names
        self._brokers: Mapping[str, str] = table.brokers
        self.by_user = {key.user: key for key in table.keys}
        self.expired = frozenset(key.user for key in table.expired)
        backends = {(k.name, k.public, k.broker) for k in table.keys if k.role == BACKEND and not k.is_token}
        self._backends, self._frontends = table.users(BACKEND), table.users(FRONTEND)
        # A pair in both directories of one broker is a Helen's: an administrator stored it, or a token of a Helen did.
        pairs = {(k.name, k.public, k.broker) for k in table.keys if k.role == FRONTEND and not k.is_token} & backends
        trusted = {key for key in table.keys if key.is_program or (key.name, key.public, key.broker) in pairs}
        granted = {
            key.user: (key.rules, key in trusted) for key in table.keys if key.rules != NO_RULES or key in trusted
        }
        self.permissions.know(granted)
        peers = {public for public, user in table.users(PEER).items() if not is_enrolment_key(user)}
        limited = {key.public for key in table.keys if key.rules != NO_RULES and key not in trusted}
        self._without_document = frozenset(limited - peers)

    def key_of(self, user: str) -> str:
        """The public key of a broker's user; blank if there is none."""
        return self._brokers.get(user, "")

    def public_key_of(self, user: str) -> str:
        """The public key of a user; blank if there is none."""
        key = self.by_user.get(user)
        return "" if key is None else key.public

    def frontend_of(self, public_key: str) -> str:
        """The user of the frontend with this key; blank if there is none any more."""
        return self._frontends.get(public_key, "")

    def may_take(self, method: str, public_key: str) -> bool:
        """True for the key of a backend that may take tasks of this method."""
        user = self._backends.get(public_key)
        return user is not None and not self.permissions.why_not(user, TAKE, method)

    def may_read_document(self, public_key: str) -> bool:
        """True for a key that may receive the whole network document: not for one with rules, which gets its part by
        negotiation."""
        return public_key not in self._without_document

    def owner_of(self, role: str, identity: str) -> str:
        """The longest stored name that equals the identity, or is a prefix of it up to a dot; blank if none is."""
        names, part = self._names[role], identity
        while part not in names:
            part, dot, _ = part.rpartition(".")
            if not dot:
                return ""
        return part

    def is_program(self, user: str) -> bool:
        """True for the key of programs on this broker's machine."""
        key = self.by_user.get(user)
        return key is not None and key.is_program

    def check(self, socket: str, user: str, identity: str) -> None:
        """Raise Refusal 403 unless this user may use this identity."""
        role, _, name = user.partition("/")
        if role != _ROLE_OF_SOCKET.get(socket, socket):
            raise Refusal(codes.NOT_ALLOWED, "the role of this key does not permit this socket")
        owner = self.owner_of(role, identity)
        if owner != name and (owner or not self.is_program(user)):
            raise Refusal(
                codes.NOT_ALLOWED,
                f"your key is stored as {name}: use the identity {name}, or one that begins with {name}.",
            )

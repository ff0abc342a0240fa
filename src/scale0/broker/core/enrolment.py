"""Enrolment: a client exchanges a token for a key of its own (PROTOCOL 11).

Invariants: a new name never takes an identity away from a stored key; a public key that has another use is not stored.
Only the answer to `StoreKey` decides, because the key folder can use each token once. ENROL does not prove that its
sender has the private key: every handshake does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from scale0.broker.core.connections import Connection
from scale0.broker.core.keys import GUEST, Key, is_name
from scale0.broker.core.state import BrokerState
from scale0.history.events.changes import ManagementCommanded
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.errors import Refusal
from scale0.transport.core import messages
from scale0.transport.core.sockets import HELEN, PEER, ROLES_OF_HELEN

ENROL: Final = "enrol"
"""The command name in the journal: the audit log shows who admitted whom."""

KEY_IN_USE: Final = "this public key is in use already: make a new key pair"


class StoreKey(msgspec.Struct, frozen=True):
    """An Ask: consume this token and store this key. The answer is None or a Refusal."""

    token: str
    role: str
    name: str
    public_key: str
    connection: Any
    is_helens: bool = False
    """Store it in both roles of a Helen."""

    @property
    def roles(self) -> tuple[str, ...]:
        return ROLES_OF_HELEN if self.is_helens else (self.role,)


class LearnPeerKey(msgspec.Struct, frozen=True):
    """An Ask: a peer announced this key as its own; it is connected by a key that is stored. No answer is needed."""

    name: str
    known: str
    """The public key that is stored."""
    server_key: str
    previous_key: str
    """The one that the peer accepts as well; blank: none."""


def peer_key_news(key: Key | None, server_key: str, previous_key: str) -> LearnPeerKey | None:
    """What is new about the key of a peer by its HELLO; None: nothing."""
    if key is None or key.is_token or not server_key:
        return None
    is_current = key.public == server_key
    if (is_current and key.previous in ("", previous_key)) or (not is_current and key.previous):
        return None
    return LearnPeerKey(key.name, key.public, server_key, previous_key)


class Enrolment:
    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def enrol(self, connection: Connection, message: messages.Enrol, effects: Effects) -> None:
        role, _, token = connection.user_id.removeprefix(GUEST).partition("/")
        keys = self._state.keys
        if keys is None:
            raise AssertionError("without keys nobody is a guest")
        if not is_name(message.name):
            raise Refusal(codes.MALFORMED, "a key's name is 1 to 64 characters of A-Z a-z 0-9 . _ : -")
        issued = keys.by_user.get(connection.user_id)
        ask = StoreKey(
            *(token, role, message.name, message.public_key, connection),
            is_helens=issued is not None and issued.is_helens,
        )
        for each in ask.roles:
            owner = keys.owner_of(each, message.name)
            if owner not in ("", message.name):
                raise Refusal(codes.NOT_ALLOWED, f"{message.name} belongs to the key {owner}: choose another name")
        if role == PEER and message.name == self._state.identity:
            raise Refusal(codes.IN_USE, f"{message.name} is the identity of this broker: choose another name")
        if self._state.is_reserved(message.name):
            raise Refusal(codes.IN_USE, f"{message.name} is the name of an administrator: choose another name")
        if message.public_key and message.public_key in keys.server:
            raise Refusal(codes.IN_USE, KEY_IN_USE)
        effects.ask(ask)

    def answer(self, ask: StoreKey, value: Refusal | None, effects: Effects) -> None:
        if value is None:
            self._state.count("keys_enrolled")
            effects.record(event_of(ask))
            effects.send(ask.connection, ("ENROLLED", messages.Enrolled(ask.name, self._state.identity)))
        else:
            effects.send(ask.connection, ("DISCONNECTERROR", messages.DisconnectError(value.code, value.message)))


def event_of(ask: StoreKey) -> ManagementCommanded:
    """The audit event. A token represents the person who created it; its name is not secret."""
    key = {"role": HELEN if ask.is_helens else ask.role, "name": ask.name, "public_key": ask.public_key}
    who = f"{GUEST}{ask.role}/{ask.token}"
    return ManagementCommanded(identity=who, command=ENROL, code=codes.OK, origin=ask.connection.socket, after=key)


def no_token(
    _connection: Connection, _message: messages.Enrol, _bodies: Sequence[bytes], _now: Now, _step: Effects
) -> None:
    raise Refusal(codes.NOT_ALLOWED, "ENROL is for the key of a token")

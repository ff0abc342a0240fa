"""Enrolment: a client exchanges a token for a key of its own (PROTOCOL 11).

Invariant: a new name never takes an identity away from a stored key. Only the answer to `StoreKey` decides, because the
key folder can use each token once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from scale0.broker.core.connections import Connection
from scale0.broker.core.keys import GUEST, is_name
from scale0.broker.core.state import BrokerState
from scale0.history.events.changes import ManagementCommanded
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.errors import Refusal
from scale0.transport.core import messages
from scale0.transport.core.sockets import PEER

ENROL: Final = "enrol"
"""The command name in the journal: the audit log shows who admitted whom."""


class StoreKey(msgspec.Struct, frozen=True):
    """An Ask: consume this token and store this key. The answer is None or a Refusal."""

    token: str
    role: str
    name: str
    public_key: str
    connection: Any


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
        owner = keys.owner_of(role, message.name)
        if owner not in ("", message.name):
            raise Refusal(codes.NOT_ALLOWED, f"{message.name} belongs to the key {owner}: choose another name")
        if role == PEER and message.name == self._state.identity:
            raise Refusal(codes.IN_USE, f"{message.name} is the identity of this broker: choose another name")
        if self._state.is_reserved(message.name):
            raise Refusal(codes.IN_USE, f"{message.name} is the name of an administrator: choose another name")
        effects.ask(StoreKey(token, role, message.name, message.public_key, connection))

    def answer(self, ask: StoreKey, value: Refusal | None, effects: Effects) -> None:
        if value is None:
            self._state.count("keys_enrolled")
            effects.record(event_of(ask))
            effects.send(ask.connection, ("ENROLLED", messages.Enrolled(ask.name, self._state.identity)))
        else:
            effects.send(ask.connection, ("DISCONNECTERROR", messages.DisconnectError(value.code, value.message)))


def event_of(ask: StoreKey) -> ManagementCommanded:
    """The audit event. A token represents the person who created it; its name is not secret."""
    key = {"role": ask.role, "name": ask.name, "public_key": ask.public_key}
    who = f"{GUEST}{ask.role}/{ask.token}"
    return ManagementCommanded(identity=who, command=ENROL, code=codes.OK, origin=ask.connection.socket, after=key)


def no_token(
    _connection: Connection, _message: messages.Enrol, _bodies: Sequence[bytes], _now: Now, _step: Effects
) -> None:
    raise Refusal(codes.NOT_ALLOWED, "ENROL is for the key of a token")

"""A gate: whose key a message of a ROUTER socket came with.

Lives here: from ZAP's user id, which is the public key, to the user whom the machines know. Never here: what a user may
do. Invariants: no message of a key that is not stored passes, whenever its connection was made; what is remembered of a
routing id that libzmq made is right until the keys change, and one that a client chose is looked at each time, because
another client may have it next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import zmq

USER_ID: Final = "User-Id"
MADE: Final = b"\0"
"""How routing ids begin that libzmq made; a client's own cannot."""
MAX_REMEMBERED: Final = 200_000
"""Routing ids; more are looked at again."""


class Gate:
    """Who may speak at one socket."""

    __slots__ = ("_remembered", "_users", "refused")

    def __init__(self) -> None:
        self._users: Mapping[str, str] = {}
        self._remembered: dict[bytes, str] = {}
        self.refused = 0
        """Messages of keys that are not stored any more."""

    def know(self, users: Mapping[str, str]) -> None:
        """These may speak from now on, by public key."""
        self._users = users
        self._remembered.clear()

    def admits(self, frame: zmq.Frame) -> bool:
        """True if whoever sent this, its routing id, may speak."""
        routing_id = frame.bytes
        if routing_id in self._remembered and routing_id[:1] == MADE:
            return True
        try:
            user = self._users.get(str(frame.get(USER_ID)))
        except zmq.ZMQError:
            user = None
        if user is None:
            self._remembered.pop(routing_id, None)
            self.refused += 1
            return False
        if len(self._remembered) >= MAX_REMEMBERED:
            self._remembered.clear()
        self._remembered[routing_id] = user
        return True

    def user_of(self, routing_id: bytes) -> str:
        """Who sent the message that passed last with this routing id."""
        return self._remembered.get(routing_id, "")

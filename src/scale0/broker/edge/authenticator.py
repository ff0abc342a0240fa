"""A gate: whose key a message of a ROUTER socket came with.

Lives here: from ZAP's user id, which is the public key, to the user whom the machines know. Never here: what a user may
do. Nothing is remembered by routing id: a client may choose one, also one that looks as if libzmq had made it, and that
another client had a moment ago. Reading the user id costs half a microsecond for each message, which may be a BATCH.
Invariant: no message of a key that is not stored passes, whenever its connection was made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import zmq

USER_ID: Final = "User-Id"


class Authenticator:
    """Who may speak at one socket."""

    __slots__ = ("_users", "refused", "user")

    def __init__(self) -> None:
        self._users: Mapping[str, str] = {}
        self.user = ""
        """Who sent the message that passed last."""
        self.refused = 0
        """Messages of keys that are not stored any more."""

    def know(self, users: Mapping[str, str]) -> None:
        """These may speak from now on, by public key."""
        self._users = users

    def admits(self, frame: zmq.Frame) -> bool:
        """True if whoever sent this frame may speak."""
        try:
            user = self._users.get(str(frame.get(USER_ID)))
        except zmq.ZMQError:
            user = None
        if user is None:
            self.refused += 1
            return False
        self.user = user
        return True

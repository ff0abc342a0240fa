"""The user of each message on a ROUTER socket, from ZAP's user id, which is the public key.

Nothing is cached by routing id, because a client can choose one that another client used a moment ago. Reading the user
id costs half a microsecond for each message, which may be a BATCH. Invariant: no message of a key that is not stored
passes, whatever the age of its connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import zmq

USER_ID: Final = "User-Id"


class Authenticator:
    def __init__(self) -> None:
        self._users: Mapping[str, str] = {}
        self.user = ""
        """The user of the last admitted message."""
        self.refused = 0
        """Messages of keys that are no longer stored."""

    def set_users(self, users: Mapping[str, str]) -> None:
        """Set the admitted users, by public key."""
        self._users = users

    def admits(self, frame: zmq.Frame) -> bool:
        try:
            user = self._users.get(str(frame.get(USER_ID)))
        except zmq.ZMQError:
            user = None
        if user is None:
            self.refused += 1
            return False
        self.user = user
        return True

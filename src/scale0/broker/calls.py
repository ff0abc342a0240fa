"""What a frontend has asked for.

Lives here: the record of one call, until it is answered. Never here: when it is sent, or sent again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

GRACE_SECONDS: Final = 1.0
"""How much later than the broker the client gives up: the broker's own answer says more."""


class Call:
    """One outstanding request. `tag` is the owner's own."""

    __slots__ = ("bodies", "bucket", "deadline", "ended", "id", "retry", "said", "sent", "service", "spoke", "tag")

    def __init__(self, id_: str, service: str, bodies: Sequence[bytes], timeout: float, retry: bool, tag: Any) -> None:
        self.id = id_
        self.service = service
        self.bodies = bodies
        self.retry = retry
        self.tag = tag
        self.deadline = timeout + GRACE_SECONDS
        """When the client itself gives up: a grace after the broker should have."""
        self.bucket = 0
        self.ended = False
        self.said: dict[str, Any] | None = None
        """Of a management command: its options."""
        self.sent = 0
        """The connection that it last left on, by number; 0: it never left."""
        self.spoke = False


class Pong(msgspec.Struct, frozen=True):
    """What `scale0.ping` tells."""

    broker: str = ""
    boot: str = ""
    owner: str = ""

"""What a frontend asks for, and what becomes of it.

Lives here: the record of one call, until it is answered; what may not be asked; and the news of its end. Never here:
when it is sent, or sent again (`frontend`). Invariant: what no broker takes is refused here, with the code that one
would say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from scale0.kernel import codes
from scale0.kernel.errors import Refusal
from scale0.kernel.limits import Limits

GRACE_SECONDS: Final = 1.0
"""How much later than the broker the client gives up: the broker's own answer says more."""

HEAD_PARTS: Final = 3
"""Frames of a message before its bodies: SCALE0/1, command and options."""


class PendingCall:
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


class PingReply(msgspec.Struct, frozen=True):
    """What `scale0.ping` tells."""

    broker: str = ""
    boot: str = ""
    owner: str = ""


class PartialReply(msgspec.Struct, frozen=True, gc=False):
    """News: a part of an answer."""

    tag: Any
    bodies: Sequence[bytes]


class CallAnswered(msgspec.Struct, frozen=True, gc=False):
    """News: the answer."""

    tag: Any
    bodies: Sequence[bytes]


class CallFailed(msgspec.Struct, frozen=True, gc=False):
    """News: it will not be answered."""

    tag: Any
    code: int
    message: str


class ManagementAnswered(msgspec.Struct, frozen=True, gc=False):
    """News: what came of a management command."""

    tag: Any
    code: int
    message: str
    body: bytes


def why_not(service: str, bodies: Sequence[bytes], limits: Limits) -> Refusal | None:
    """What no broker takes is not sent: other requests travel in the same BATCH, and by the same connection."""
    if len(service) > limits.max_service_bytes:
        return Refusal(codes.MALFORMED, f"a service's name is 1 to {limits.max_service_bytes} printable bytes")
    if len(bodies) > limits.max_parts - HEAD_PARTS:
        return Refusal(codes.TOO_BIG, f"a request has at most {limits.max_parts - HEAD_PARTS} bodies")
    # Up to twice the limit the broker itself says that it is too big; libzmq takes no larger frame, and hangs up.
    cut_bytes = 2 * limits.max_message_bytes
    for body in bodies:
        if len(body) > cut_bytes:
            return Refusal(codes.TOO_BIG, f"a body of {len(body)} bytes would cut the connection")
    return None

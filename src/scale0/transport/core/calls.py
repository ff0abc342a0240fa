"""The calls of a frontend: the record of one call until it is answered, and the notifications about its end."""

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
    """One outstanding call. `tag` belongs to the caller."""

    __slots__ = (
        *("bodies", "bucket", "deadline", "ended", "has_parts", "id", "options", "retry", "sent", "service"),
        "tag",
    )

    def __init__(self, id_: str, service: str, bodies: Sequence[bytes], timeout: float, retry: bool, tag: Any) -> None:
        self.id = id_
        self.service = service
        self.bodies = bodies
        self.retry = retry
        self.tag = tag
        self.deadline = timeout + GRACE_SECONDS
        """When the client gives up."""
        self.bucket = 0
        self.ended = False
        self.options: dict[str, Any] | None = None
        """The options of a management command; None for a request."""
        self.sent = 0
        """The number of the connection on which it was last sent; 0 if it was never sent."""
        self.has_parts = False


class PingReply(msgspec.Struct, frozen=True):
    """The answer to `scale0.ping`."""

    broker: str = ""
    boot: str = ""
    owner: str = ""


class PartialReply(msgspec.Struct, frozen=True, gc=False):
    """Notification: a part of an answer."""

    tag: Any
    bodies: Sequence[bytes]


class CallAnswered(msgspec.Struct, frozen=True, gc=False):
    """Notification: the answer."""

    tag: Any
    bodies: Sequence[bytes]


class CallFailed(msgspec.Struct, frozen=True, gc=False):
    """Notification: there will be no answer."""

    tag: Any
    code: int
    message: str


class ManagementAnswered(msgspec.Struct, frozen=True, gc=False):
    """Notification: the answer to a management command."""

    tag: Any
    code: int
    message: str
    body: bytes


def refusal_of(service: str, bodies: Sequence[bytes], limits: Limits) -> Refusal | None:
    """Why no broker would accept this request. It is not sent: other requests share its BATCH and connection."""
    if len(service) > limits.max_service_bytes:
        return Refusal(codes.MALFORMED, f"a service name has 1 to {limits.max_service_bytes} printable bytes")
    if len(bodies) > limits.max_parts - HEAD_PARTS:
        return Refusal(codes.TOO_BIG, f"a request has at most {limits.max_parts - HEAD_PARTS} bodies")
    # Up to twice the limit the broker itself answers TOO_BIG; a larger frame ends the connection.
    max_frame_bytes = 2 * limits.max_message_bytes
    for body in bodies:
        if len(body) > max_frame_bytes:
            return Refusal(codes.TOO_BIG, f"a body has at most {max_frame_bytes} bytes, not {len(body)}")
    return None

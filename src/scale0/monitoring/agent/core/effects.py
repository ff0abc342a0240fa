"""What an agent's session wants done: the effects on its connection, and the updates for its owner.

The effects of a step are executed in the order close, open, send: the data to send belongs to the connection that is
opened.
"""

from __future__ import annotations

from typing import Any

import msgspec

Address = tuple[str, int]
"""Host and port; an IPv6 address has no brackets."""


class AgentEffects:
    """What a session wants done, in this order: close, open, send, and then report the updates to its owner."""

    __slots__ = ("close", "open", "sends", "updates")

    def __init__(self) -> None:
        self.close = False
        self.open: Address | None = None
        self.sends: list[bytes] = []
        self.updates: list[SessionUpdate] = []


class RunCheck(msgspec.Struct, frozen=True, gc=False):
    """Helen requests a check. `run_id` is for `finished`: message ids on the wire restart with each connection."""

    run_id: int
    name: str
    args: bytes


class TakeSchedule(msgspec.Struct, frozen=True, gc=False):
    """Helen sent a new schedule; the body is JSON that has not been validated."""

    body: bytes


class ReloadNow(msgspec.Struct, frozen=True, gc=False):
    """Helen requests a restart of the agent."""


class SessionAccepted(msgspec.Struct, frozen=True, gc=False):
    """Helen accepted the session: it uses version 2 from now on, and reports may be offered."""

    heartbeat_seconds: int


class SessionRefused(msgspec.Struct, frozen=True, gc=False):
    """Helen sent `error`; the connection is closed."""

    message: str


class Redirected(msgspec.Struct, frozen=True, gc=False):
    """Helen redirected the session to another address; the session follows."""

    address: Address


class HelenLost(msgspec.Struct, frozen=True, gc=False):
    """The connection was lost or could not be made. `retry_at` is monotonic."""

    reason: str
    retry_at: float


class Logged(msgspec.Struct, frozen=True, gc=False):
    """A warning for the log."""

    text: str


class Delivered(msgspec.Struct, frozen=True):
    """Helen has stored these reports."""

    tokens: tuple[Any, ...]


class Undelivered(msgspec.Struct, frozen=True):
    """It is unknown whether Helen has these reports; they must be offered again."""

    tokens: tuple[Any, ...]


SessionUpdate = (
    RunCheck
    | TakeSchedule
    | ReloadNow
    | SessionAccepted
    | SessionRefused
    | Redirected
    | HelenLost
    | Logged
    | Delivered
    | Undelivered
)

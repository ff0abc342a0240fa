"""What an agent's session wants done, and what it tells its owner.

Lives here: frozen data, and the step that collects it. Never here: a decision (`agent_line`). Invariant: whoever does a
step closes first, then opens, then sends: what is to be sent belongs to the connection that is opened.
"""

from __future__ import annotations

from typing import Any

import msgspec

Place = tuple[str, int]
"""Host and port; an IPv6 address stands without its brackets."""


class AgentEffects:
    """What a session wants done, in this order: close, open, send; and what it tells its owner."""

    __slots__ = ("close", "news", "open", "sends")

    def __init__(self) -> None:
        self.close = False
        self.open: Place | None = None
        self.sends: list[bytes] = []
        self.news: list[News] = []


class RunCheck(msgspec.Struct, frozen=True, gc=False):
    """News: Helen asks for a check. `ticket` is for `finished`; ids of the wire begin anew with each connection."""

    ticket: int
    name: str
    args: bytes


class TakeSchedule(msgspec.Struct, frozen=True, gc=False):
    """News: run these checks from now on; the body is JSON that nobody has looked at."""

    body: bytes


class ReloadNow(msgspec.Struct, frozen=True, gc=False):
    """News: begin again, with nothing old."""


class SessionAccepted(msgspec.Struct, frozen=True, gc=False):
    """News: version 2 is spoken from here; reports may be offered."""

    heartbeat_seconds: int


class SessionRefused(msgspec.Struct, frozen=True, gc=False):
    """News: Helen said `error`; the connection is closed."""

    message: str


class Redirected(msgspec.Struct, frozen=True, gc=False):
    """News: Helen sends us there, and we go."""

    place: Place


class HelenLost(msgspec.Struct, frozen=True, gc=False):
    """News: the connection is gone, or did not come to be; why, and when the next attempt is made (monotonic)."""

    reason: str
    retry_at: float


class Logged(msgspec.Struct, frozen=True, gc=False):
    """News: something to be noted, and no more."""

    text: str


class Delivered(msgspec.Struct, frozen=True):
    """News: Helen has these on disk."""

    tokens: tuple[Any, ...]


class Undelivered(msgspec.Struct, frozen=True):
    """News: it is not known whether Helen has these: offer them again when there is room."""

    tokens: tuple[Any, ...]


News = (
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

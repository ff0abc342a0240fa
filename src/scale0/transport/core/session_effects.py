"""What a client's line wants done, and what it tells its owner.

Lives here: frozen data, and the step that collects it. Never here: a decision (`line`). Invariant: whoever does a step
closes first, then opens, then sends: what is to be sent belongs to the connection that is opened.
"""

from __future__ import annotations

from typing import Any

import msgspec

from scale0.kernel.effects import Message


class SessionEffects:
    """What a session wants done, in this order: close, open, send; and what it tells its owner."""

    __slots__ = ("close", "news", "open", "parts", "sends")

    def __init__(self) -> None:
        self.close = False
        self.parts = False
        """DISCONNECT is the last word on the connection that closes."""
        self.open: str | None = None
        self.sends: list[Message] = []
        self.news: list[Any] = []


class ConnectionLost(msgspec.Struct, frozen=True):
    """News: the connection is gone; why."""

    reason: str


class Connected(msgspec.Struct, frozen=True):
    """News: the broker has taken us in."""

    identity: str


class SessionEnded(msgspec.Struct, frozen=True):
    """News: the line will not come back by itself."""

    code: int
    message: str

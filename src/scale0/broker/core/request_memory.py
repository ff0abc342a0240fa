"""The memory of requests, by client: from the acceptance of a request until nobody waits for it. Its bodies count,
whether it waits for a backend or has one, and the parts of its answer that the broker keeps.

Invariants: each request that a client waits for is charged once, to the client that sent it; what was charged is
released when it ends; a batch counts as its requests do one by one, until the last of them has its answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from scale0.kernel.limits import Limits

REQUEST_BYTES: Final = 640
"""What a request needs beside its body: measured, with an id of 100 characters."""
BODY_BYTES: Final = 64
"""What each further body, or part of an answer, needs beside its content."""

Owner = Any
"""A client: its user with keys, its connection without."""


def cost_of(bodies: Sequence[bytes]) -> int:
    """What bodies need that are kept beside others."""
    return sum(map(len, bodies)) + BODY_BYTES * len(bodies)


class RequestMemory:
    __slots__ = ("of", "used")

    def __init__(self) -> None:
        self.used = 0
        """What all requests together need."""
        self.of: dict[Owner, int] = {}

    def add(self, owner: Owner, size: int) -> None:
        self.used += size
        of = self.of
        of[owner] = of.get(owner, 0) + size

    def remove(self, owner: Owner, size: int) -> None:
        self.used -= size
        left = self.of[owner] - size
        if left:
            self.of[owner] = left
        else:
            del self.of[owner]

    def why_not(self, owner: Owner, more: int, limits: Limits) -> str:
        """Why a client may not have so many bytes more: limit, value and next step; empty: it may."""
        total = limits.max_waiting_bytes
        key_most = limits.max_key_waiting_bytes or (total + 1) // 2
        used = self.used + more
        if used <= key_most and used <= total:
            return ""  # no client has more than all have together
        for size, most, limit, whose in (
            (self.of.get(owner, 0) + more, key_most, "max_key_waiting_bytes", "your requests without an answer"),
            (used, total, "max_waiting_bytes", "all requests without an answer together"),
        ):
            if size > most:
                return f"{whose} may have {most} bytes ({limit}): try again later, add workers, or raise {limit}"
        return ""

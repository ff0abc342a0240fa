"""What waits for a peer that does not read.

Lives here: the frames, and when they are too much. Never here: a socket, or letting somebody go (`runner`). Invariant:
a peer that reads may be behind by a burst; one that takes nothing is given up soon after it is over its limit.
"""

from __future__ import annotations

from collections import deque
from typing import Final

STALL_SECONDS: Final = 0.5
"""How long a peer that has too much waiting may take nothing."""
BURST_FACTOR: Final = 3
"""By how many times the limit a peer that does read may be behind."""


class SendBacklog:
    """What waits for one peer that does not read."""

    __slots__ = ("bytes", "frames", "moved")

    def __init__(self, mono: float) -> None:
        self.frames: deque[list[bytes]] = deque()
        self.bytes = 0
        self.moved = mono
        """When it last took something."""

    def is_too_much(self, most_bytes: int, mono: float) -> bool:
        """A peer that reads may get a burst; one over the limit that has taken nothing for a while may not."""
        over = self.bytes - most_bytes
        return over > 0 and (mono - self.moved > STALL_SECONDS or over > BURST_FACTOR * most_bytes)

"""A rate limit by fixed windows: what a sender used since its window began.

A window begins with the first use after the last one ended, so two windows that meet may allow twice the rate.
"""

from __future__ import annotations


class RateWindow:
    """What one sender used in its current window."""

    __slots__ = ("since", "used")

    def __init__(self) -> None:
        self.used = 0
        self.since = float("-inf")

    def add(self, amount: int, seconds: float, now: float) -> int:
        """Count `amount`; the sum of this window, which lasts `seconds`. `now` is monotonic."""
        if now - self.since >= seconds:
            self.since, self.used = now, 0
        self.used += amount
        return self.used

    def allows(self, amount: int, limit: int, seconds: float, now: float) -> bool:
        """Count `amount` if the window has room for it; False: nothing was counted."""
        if self.left(limit, seconds, now) < amount:
            return False
        self.add(amount, seconds, now)
        return True

    def left(self, limit: int, seconds: float, now: float) -> int:
        """How much of `limit` this window still has."""
        return limit if now - self.since >= seconds else limit - self.used

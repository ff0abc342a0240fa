"""A rate limit with fixed windows. A window begins with the first use after the last one ended, so two adjacent windows
may allow twice the rate."""

from __future__ import annotations


class RateWindow:
    """The usage of one sender in its current window."""

    __slots__ = ("since", "used")

    def __init__(self) -> None:
        self.used = 0
        self.since = float("-inf")

    def add(self, amount: int, seconds: float, now: float) -> int:
        """Counts `amount`; returns the sum of this window, which lasts `seconds`. `now` is monotonic."""
        if now - self.since >= seconds:
            self.since, self.used = now, 0
        self.used += amount
        return self.used

    def allows(self, amount: int, limit: int, seconds: float, now: float) -> bool:
        """Counts `amount` if the window has room for it; otherwise counts nothing and returns False."""
        if self.left(limit, seconds, now) < amount:
            return False
        self.add(amount, seconds, now)
        return True

    def left(self, limit: int, seconds: float, now: float) -> int:
        return limit if now - self.since >= seconds else limit - self.used

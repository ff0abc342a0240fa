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

    def spend(self, amount: int, limit: int, seconds: float, now: float) -> bool:
        """Counts `amount` if anything is left of the window; otherwise counts nothing and returns False. What exceeds
        the limit is owed: the next windows are shorter by it."""
        self._roll(limit, seconds, now)
        if self.used >= limit:
            return False
        self.used += amount
        return True

    def spend_each(self, count: int, limit: int, seconds: float, now: float) -> bool:
        """As `spend` of 1 so many times, if each would be allowed; otherwise counts nothing and returns False."""
        self._roll(limit, seconds, now)
        if self.used + count > limit:
            return False
        self.used += count
        return True

    def _roll(self, limit: int, seconds: float, now: float) -> None:
        windows = (now - self.since) / seconds
        if windows >= 1:
            self.since, self.used = now, max(0, self.used - limit * int(min(windows, self.used)))

    def left(self, limit: int, seconds: float, now: float) -> int:
        return limit if now - self.since >= seconds else limit - self.used

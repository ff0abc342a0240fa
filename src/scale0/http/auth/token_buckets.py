"""How often somebody may try: token buckets by key.

Lives here: arithmetic over a time that is given. Never here: a clock, or what is tried. Invariant: at most MAX_KEYS are
remembered; a key that is forgotten had a full bucket, or was the oldest of too many.
"""

from __future__ import annotations

from typing import Final

MAX_KEYS: Final = 10_000


class TokenBuckets:
    """One bucket for each key: `burst` tries at once, then one every `seconds`."""

    __slots__ = ("_burst", "_kept", "_seconds")

    def __init__(self, burst: int, seconds: float) -> None:
        self._burst = burst
        self._seconds = seconds
        self._kept: dict[str, tuple[float, float]] = {}
        """By key: what is left, and as of when."""

    def __len__(self) -> int:
        return len(self._kept)

    def wait(self, key: str, now: float) -> float:
        """Seconds until `key` may try again; 0: now."""
        left = self._left(key, now)
        return 0.0 if left >= 1.0 else (1.0 - left) * self._seconds

    def take(self, key: str, now: float) -> None:
        """`key` tries."""
        left = self._left(key, now) - 1.0
        self._kept.pop(key, None)
        if len(self._kept) >= MAX_KEYS:
            self._forget(now)
        self._kept[key] = (left, now)

    def give_back(self, key: str, now: float) -> None:
        """The try was right, and does not count."""
        self._kept[key] = (min(float(self._burst), self._left(key, now) + 1.0), now)

    def _left(self, key: str, now: float) -> float:
        left, since = self._kept.get(key, (float(self._burst), now))
        return min(float(self._burst), left + max(0.0, now - since) / self._seconds)

    def _forget(self, now: float) -> None:
        for key in [key for key in self._kept if self._left(key, now) >= self._burst]:
            del self._kept[key]
        while len(self._kept) >= MAX_KEYS:
            del self._kept[next(iter(self._kept))]

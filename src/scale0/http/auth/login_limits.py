"""Limits of logins: token buckets by key, and failed logins with a password. The caller passes the time."""

from __future__ import annotations

import hashlib
from typing import Final

from scale0.http.cache import put
from scale0.http.problem import ApiProblem

MAX_KEYS: Final = 10_000
ADDRESS_BURST: Final = 10
"""Wrong passwords that one address may send at once."""
ADDRESS_SECONDS: Final = 6.0
"""After that, one in this time."""
NAME_BURST: Final = 10
"""The same for one name, from any address."""
NAME_SECONDS: Final = 6.0
PROVEN_SECONDS: Final = 30 * 86_400.0
"""How long an address counts as that of a name's owner, if there are more than MAX_KEYS."""
LOGIN_ADVICE: Final = "wait, or log in with a link: `scale0 access link` on the broker's machine prints one"


class TokenBuckets:
    """One bucket per key: `burst` attempts at once, then one every `seconds`.

    At most MAX_KEYS are stored: full buckets are removed first, then the oldest.
    """

    def __init__(self, burst: int, seconds: float) -> None:
        self._burst = burst
        self._seconds = seconds
        self._buckets: dict[str, tuple[float, float]] = {}
        """By key: the tokens that are left, and at what time."""

    def __len__(self) -> int:
        return len(self._buckets)

    def wait(self, key: str, now: float) -> float:
        """Seconds until `key` may try again; 0: now."""
        left = self._left(key, now)
        return 0.0 if left >= 1.0 else (1.0 - left) * self._seconds

    def take(self, key: str, now: float) -> None:
        left = self._left(key, now) - 1.0
        put(self._buckets, key, (left, now), MAX_KEYS, lambda one: self._refilled(one, now) >= self._burst)

    def give_back(self, key: str, now: float) -> None:
        """The attempt does not count."""
        self._buckets[key] = (min(float(self._burst), self._left(key, now) + 1.0), now)

    def _left(self, key: str, now: float) -> float:
        return self._refilled(self._buckets.get(key, (float(self._burst), now)), now)

    def _refilled(self, bucket: tuple[float, float], now: float) -> float:
        left, since = bucket
        return min(float(self._burst), left + max(0.0, now - since) / self._seconds)


class LoginLimits:
    """Limits logins by address and by name. An attempt over the limit is refused before any hashing.

    The limit of a name does not apply to an address from which its password was right: somebody who floods a name
    does not lock out its owner there.
    """

    def __init__(self) -> None:
        self._proven: dict[str, float] = {}
        """Addresses with a name whose password was right, and when."""
        self._addresses = TokenBuckets(ADDRESS_BURST, ADDRESS_SECONDS)
        self._names = TokenBuckets(NAME_BURST, NAME_SECONDS)

    def begin(self, address: str, name: str, now: float) -> None:
        """Count an attempt, as wrong until `take_back`. Raises `ApiProblem` over the limit."""
        is_proven = key_of(f"{address} {name}") in self._proven
        wait = max(self._addresses.wait(address, now), 0.0 if is_proven else self._names.wait(key_of(name), now))
        if wait:
            raise ApiProblem(429, "too many login attempts", LOGIN_ADVICE, retry_after=wait)
        self._addresses.take(address, now)
        self._names.take(key_of(name), now)

    def succeed(self, address: str, name: str, now: float) -> None:
        """The password was right."""
        put(self._proven, key_of(f"{address} {name}"), now, MAX_KEYS, lambda since: now - since > PROVEN_SECONDS)
        self.take_back(address, name, now)

    def take_back(self, address: str, name: str, now: float) -> None:
        """The attempt does not count: the password was right, or nobody checked it."""
        self._addresses.give_back(address, now)
        self._names.give_back(key_of(name), now)


def key_of(name: str) -> str:
    """A key of fixed size for a name of any length."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()

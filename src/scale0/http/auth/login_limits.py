"""Passwords that are tried: counted before the broker hears of any.

Lives here: how many, for each address and for each name. Never here: a password. Invariant: a try over the limit costs
a look into two tables, and nothing is hashed.
"""

from __future__ import annotations

import hashlib
from typing import Final

from scale0.http.auth.token_buckets import TokenBuckets
from scale0.http.problem import ApiProblem

ADDRESS_BURST: Final = 10
"""Wrong passwords that one address may give at once."""
ADDRESS_SECONDS: Final = 6.0
"""Then one in this time."""
NAME_BURST: Final = 10
"""The same for one name, from anywhere."""
NAME_SECONDS: Final = 6.0
ADVICE: Final = "wait, or use a token: `scale0 access link` on the broker's machine gives a link"


class LoginLimits:
    """Who tried how often."""

    __slots__ = ("_addresses", "_names")

    def __init__(self) -> None:
        self._addresses = TokenBuckets(ADDRESS_BURST, ADDRESS_SECONDS)
        self._names = TokenBuckets(NAME_BURST, NAME_SECONDS)

    def begin(self, address: str, name: str, now: float) -> None:
        """A try: it counts as wrong until it is right. Raises `ApiProblem` if it is one too many."""
        wait = max(self._addresses.wait(address, now), self._names.wait(key_of(name), now))
        if wait:
            raise ApiProblem(429, "too many passwords were tried", ADVICE, retry_after=wait)
        self._addresses.take(address, now)
        self._names.take(key_of(name), now)

    def take_back(self, address: str, name: str, now: float) -> None:
        """It was right, or nobody looked at it."""
        self._addresses.give_back(address, now)
        self._names.give_back(key_of(name), now)


def key_of(name: str) -> str:
    """A name of any length in few bytes."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()

"""Limits of logins: token buckets by key, failed logins with a password, and the order of logins that wait."""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from scale0.http.cache import put
from scale0.http.problem import ApiProblem
from scale0.kernel.sender_queue import SenderQueue

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
LOGINS_AT_ONCE: Final = 1
"""Passwords that are sent to the broker at once: it hashes one after the other, and a login that comes first waits for
one hash only."""
MAX_TURNS: Final = 256
"""Logins that wait for their turn; those of each higher rank may be as many again."""
MAX_TURNS_OF_ADDRESS: Final = 4
FRESH: Final = 1
"""The rank of a login from an address that sent no wrong password lately."""
PROVEN: Final = 2
"""The rank of a login from an address where the password of its name was right before."""
IPV6_PREFIX: Final = 64
"""Addresses of IPv6 with the same first bits count as one: a host may have all of them."""
TURN_SECONDS: Final = 10.0
"""How long a login may wait for its turn."""
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

    def is_full(self, key: str, now: float) -> bool:
        return self._left(key, now) >= self._burst

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

    def begin(self, address: str, name: str, now: float) -> int:
        """Count an attempt, as wrong until `take_back`, and return its rank: 0, FRESH or PROVEN. Raises `ApiProblem`
        over the limit."""
        is_proven = key_of(f"{address} {name}") in self._proven
        wait = max(self._addresses.wait(address, now), 0.0 if is_proven else self._names.wait(key_of(name), now))
        if wait:
            raise ApiProblem(429, "too many login attempts", LOGIN_ADVICE, retry_after=wait)
        rank = PROVEN if is_proven else FRESH if self._addresses.is_full(address, now) else 0
        self._addresses.take(address, now)
        self._names.take(key_of(name), now)
        return rank

    def succeed(self, address: str, name: str, now: float) -> None:
        """The password was right."""
        put(self._proven, key_of(f"{address} {name}"), now, MAX_KEYS, lambda since: now - since > PROVEN_SECONDS)
        self.take_back(address, name, now)

    def take_back(self, address: str, name: str, now: float) -> None:
        """The attempt does not count: the password was right, or nobody checked it."""
        self._addresses.give_back(address, now)
        self._names.give_back(key_of(name), now)


class LoginTurns:
    """Who sends a password to the broker next: those of a higher rank first, the others by address in turn."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._running = 0
        self._waiting: SenderQueue[asyncio.Future[None]] = SenderQueue()

    @asynccontextmanager
    async def turn(self, address: str, rank: int) -> AsyncIterator[None]:
        """Wait for a turn, which ends with the block. Raises `ApiProblem` 429."""
        if self._running < self._at_once:
            self._running += 1
        else:
            await self._wait(address, rank)
        try:
            yield
        finally:
            self._next()

    async def _wait(self, address: str, rank: int) -> None:
        full = len(self._waiting) >= MAX_TURNS * (1 + rank)
        if full or self._waiting.count(address) >= MAX_TURNS_OF_ADDRESS:
            raise ApiProblem(429, "too many logins are in progress", LOGIN_ADVICE, retry_after=TURN_SECONDS)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(address, turn, rank=rank)
        try:
            await asyncio.wait_for(asyncio.shield(turn), TURN_SECONDS)
        except BaseException as error:
            if turn.done():
                self._next()  # it came too late: the next one has it
            self._waiting.remove(address, turn)
            if isinstance(error, TimeoutError):
                message = "too many logins are in progress"
                raise ApiProblem(429, message, LOGIN_ADVICE, retry_after=TURN_SECONDS) from None
            raise

    def _next(self) -> None:
        if self._waiting:
            self._waiting.take().set_result(None)
        else:
            self._running -= 1


def host_of(address: str) -> str:
    """What is counted as one address: an address of IPv4, or a /64 of IPv6."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found), IPV6_PREFIX), strict=False))


def key_of(name: str) -> str:
    """A key of fixed size for a name of any length."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()

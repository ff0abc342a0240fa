"""Whom a token is: asked of the broker, and remembered for a second.

Lives here: tokens in requests, and what the broker says of them. Never here: a list of users, or a token at rest.
Invariants: a token is looked up by its digest; what looks like no token is refused without asking; one address cannot
have the broker asked of forged tokens faster than FORGED_SECONDS allows.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
from typing import Any, Final

import msgspec

from scale0.http.auth.token_buckets import TokenBuckets
from scale0.http.network import BrokerClient
from scale0.http.problem import ApiProblem

COOKIE: Final = "scale0_session"
WHOAMI_SECONDS: Final = 1.0
"""How long a token that was revoked may still read; whatever it changes is asked of the broker anew."""
MAX_REMEMBERED: Final = 1_000
FORGED_BURST: Final = 50
"""Unknown tokens that one address may show at once."""
FORGED_SECONDS: Final = 0.2
"""Then one in this time."""
MAX_ORIGIN_CHARS: Final = 128
_TOKEN: Final = re.compile(r"s0_[0-9a-f]{64}", re.ASCII)


class AuthenticatedUser(msgspec.Struct, frozen=True):
    """Somebody whom the broker knows."""

    name: str
    role: str
    expires: float | None
    token: str
    by_cookie: bool
    origin: str
    """Where the request comes from, for the broker's records."""

    def __repr__(self) -> str:
        return f"Caller({self.name!r}, {self.role!r})"  # a token must not get into a log by chance

    @property
    def csrf(self) -> str:
        """What they must show besides the cookie."""
        return csrf_of(self.token)


def csrf_of(token: str) -> str:
    """What a page must show besides the cookie: only a page of ours can know it."""
    return hashlib.sha256(f"csrf:{token}".encode()).hexdigest()


def is_csrf(token: str, shown: str) -> bool:
    """True for the right one, in constant time."""
    return hmac.compare_digest(csrf_of(token).encode(), shown.encode("utf-8", "surrogatepass"))


def is_token(text: str) -> bool:
    """True for what looks like a token of a broker."""
    return _TOKEN.fullmatch(text) is not None


def bearer_of(header: str) -> str | None:
    """The token of an Authorization header; None: it is of another kind."""
    scheme, _, rest = header.partition(" ")
    return rest.strip() if scheme.lower() == "bearer" else None


class Authentication:
    """Everybody who was here within a second."""

    __slots__ = ("_forged", "_known", "_network")

    def __init__(self, network: BrokerClient) -> None:
        self._network = network
        self._known: dict[str, tuple[dict[str, Any], float]] = {}
        self._forged = TokenBuckets(FORGED_BURST, FORGED_SECONDS)

    async def ask(self, token: str, by_cookie: bool, address: str) -> AuthenticatedUser:
        """Whom `token` is. Raises `ApiProblem`: 401 for nobody."""
        if not is_token(token):
            raise nobody()
        digest = hashlib.sha256(token.encode()).hexdigest()
        now = asyncio.get_running_loop().time()
        found, until = self._known.get(digest, ({}, 0.0))
        if until <= now:
            found = await self._asked(token, address, now)
            self._remember(digest, found)
        return AuthenticatedUser(found["name"], found["role"], found["expires"], token, by_cookie, origin_of(address))

    def forget(self, token: str) -> None:
        """It was revoked just now."""
        self._known.pop(hashlib.sha256(token.encode()).hexdigest(), None)

    def forget_id(self, token_id: str) -> None:
        """The same by the start of its digest."""
        for digest in [digest for digest in self._known if digest.startswith(token_id)]:
            del self._known[digest]

    async def _asked(self, token: str, address: str, now: float) -> dict[str, Any]:
        wait = self._forged.wait(address, now)
        if wait:
            raise ApiProblem(429, "too many unknown tokens came from your address", retry_after=wait)
        self._forged.take(address, now)
        digest = hashlib.sha256(token.encode()).hexdigest()
        try:
            found: dict[str, Any] = await self._network.snapshots.get(
                f"whoami {digest}", 0.0, lambda: self._network.manage(token, "whoami")
            )
        except ApiProblem as problem:
            if problem.status != 401:
                self._forged.give_back(address, now)
                raise
            raise nobody() from None
        self._forged.give_back(address, now)
        return found

    def _remember(self, digest: str, found: dict[str, Any]) -> None:
        now = asyncio.get_running_loop().time()
        self._known.pop(digest, None)
        if len(self._known) >= MAX_REMEMBERED:
            for old in [key for key, (_, until) in self._known.items() if until <= now]:
                del self._known[old]
        while len(self._known) >= MAX_REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[digest] = (found, now + WHOAMI_SECONDS)


def nobody() -> ApiProblem:
    """What somebody hears whose token is unknown, expired or revoked: one answer, which tells nothing of which."""
    return ApiProblem(401, "the token is unknown or has expired", "log in again, or give another token")


def origin_of(address: str) -> str:
    """Where a command comes from, in the broker's records."""
    return f"http/{address}"[:MAX_ORIGIN_CHARS]

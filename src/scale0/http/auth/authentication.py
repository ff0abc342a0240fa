"""Authentication: the broker says which user a token belongs to; the answer is cached for a second.

Tokens are cached by their digest. A text that does not look like a token is refused without a question to the broker,
and FORGED_SECONDS limits how fast one address can cause such questions with unknown tokens.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from scale0.http.auth.login_limits import TokenBuckets
from scale0.http.broker_client import BrokerClient
from scale0.http.cache import put
from scale0.http.problem import ApiProblem

COOKIE: Final = "scale0_session"
WHOAMI_SECONDS: Final = 1.0
"""How long a revoked token can still read. The broker checks the token of every change itself."""
MAX_CACHED: Final = 1_000
FORGED_BURST: Final = 50
"""Unknown tokens that one address may send at once."""
FORGED_SECONDS: Final = 0.2
"""After that, one in this time."""
MAX_ORIGIN_CHARS: Final = 128
_TOKEN: Final = re.compile(r"s0_[0-9a-f]{64}", re.ASCII)


class AuthenticatedUser(msgspec.Struct, frozen=True):
    name: str
    role: str
    expires: float | None
    token: str
    by_cookie: bool
    origin: str
    """Where the request comes from, for the broker's records."""

    def __repr__(self) -> str:
        return f"AuthenticatedUser({self.name!r}, {self.role!r})"  # without the token: a log may contain this

    @property
    def csrf(self) -> str:
        return csrf_of(self.token)


def csrf_of(token: str) -> str:
    """The CSRF token of a session: only a page of this origin can know it."""
    return hashlib.sha256(f"csrf:{token}".encode()).hexdigest()


def is_csrf(token: str, given: str) -> bool:
    """True for the right CSRF token, in constant time."""
    return hmac.compare_digest(csrf_of(token).encode(), given.encode("utf-8", "surrogatepass"))


def is_token(text: str) -> bool:
    """True for a text with the form of a broker's token."""
    return _TOKEN.fullmatch(text) is not None


def bearer_of(header: str) -> str | None:
    """The token of an Authorization header; None: another scheme."""
    scheme, _, rest = header.partition(" ")
    return rest.strip() if scheme.lower() == "bearer" else None


class Authentication:
    """The users of tokens, cached for WHOAMI_SECONDS."""

    def __init__(self, broker: BrokerClient) -> None:
        self._broker = broker
        self._cached: dict[str, tuple[dict[str, Any], float]] = {}
        self._forged = TokenBuckets(FORGED_BURST, FORGED_SECONDS)

    async def user_of(self, token: str, by_cookie: bool, address: str) -> AuthenticatedUser:
        """The user of a token. Raises `ApiProblem`: 401 if the token is not valid."""
        if not is_token(token):
            raise invalid_token()
        digest = digest_of(token)
        now = asyncio.get_running_loop().time()
        found, until = self._cached.get(digest, ({}, 0.0))
        if until <= now:
            found = await self._whoami(token, digest, address)
            self._store(digest, found)
        return AuthenticatedUser(found["name"], found["role"], found["expires"], token, by_cookie, origin_of(address))

    async def exchange(self, link: str, address: str) -> dict[str, Any]:
        """The session of a one-time link. Raises `ApiProblem`: 401 if the broker accepts no such link."""
        return await self._judged(
            address, lambda: self._broker.manage(link, "exchange_link", origin=origin_of(address))
        )

    def forget(self, token: str) -> None:
        self._cached.pop(digest_of(token), None)

    def forget_id(self, token_id: str) -> None:
        for digest in [digest for digest in self._cached if digest.startswith(token_id)]:
            del self._cached[digest]

    async def _whoami(self, token: str, digest: str, address: str) -> dict[str, Any]:
        return await self._judged(
            address,
            lambda: self._broker.cache.get(f"whoami {digest}", 0.0, lambda: self._broker.manage(token, "whoami")),
        )

    async def _judged(self, address: str, ask: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """The broker's answer about a token; how often an address may send an unknown one is limited."""
        now = asyncio.get_running_loop().time()
        wait = self._forged.wait(address, now)
        if wait:
            raise ApiProblem(429, "too many unknown tokens were sent from your address", retry_after=wait)
        self._forged.take(address, now)
        try:
            found = await ask()
        except ApiProblem as problem:
            if problem.status != 401:
                self._forged.give_back(address, now)
                raise
            raise invalid_token() from None
        self._forged.give_back(address, now)
        return found

    def _store(self, digest: str, found: dict[str, Any]) -> None:
        now = asyncio.get_running_loop().time()
        put(self._cached, digest, (found, now + WHOAMI_SECONDS), MAX_CACHED, lambda one: one[1] <= now)


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def invalid_token() -> ApiProblem:
    """The error for an unknown, expired or revoked token: the same for all three, so that it reveals nothing."""
    return ApiProblem(401, "the token is unknown or has expired", "log in again, or send another token")


def origin_of(address: str) -> str:
    """The origin of a command, for the broker's records."""
    return f"http/{address}"[:MAX_ORIGIN_CHARS]

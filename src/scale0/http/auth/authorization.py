"""Roles: every route says who may use it, and this asks.

Lives here: one guard for all routes. Never here: a list of routes; each handler carries its own role. Invariants: a
route without a role is never served; what the cookie authorises needs the CSRF token for all that is not reading.
"""

from __future__ import annotations

from typing import Any, Final

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from scale0.broker.admin.access import RANKS
from scale0.broker.main.http_settings import HttpSettings
from scale0.http.auth.authentication import COOKIE, AuthenticatedUser, Authentication, bearer_of, is_csrf
from scale0.http.problem import ApiProblem

ROLE: Final = "role"
"""The key of a handler's `opt` that names the least role, or None for everybody."""
OPEN_WITH: Final = "open_with"
"""Another: the setting that opens the route to everybody, where it is true."""
CSRF_HEADER: Final = "x-csrf-token"
SAFE: Final = frozenset({"GET", "HEAD"})
_CALLER: Final = "scale0_caller"


def role_of(handler: BaseRouteHandler, settings: HttpSettings) -> str | None:
    """Who may use it at least; None: everybody. LookupError: nobody said."""
    role = handler.opt[ROLE]
    if role is not None and role not in RANKS:
        raise LookupError(f"{role!r} is no role")
    opening = handler.opt.get(OPEN_WITH)
    return None if opening and getattr(settings, opening) else role


async def guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Let in who may come in. Raises `ApiProblem`."""
    needed = role_of(handler, connection.app.state.settings)
    if needed is None:
        return
    caller = await identify(connection)
    if RANKS.get(caller.role, -1) < RANKS[needed]:
        message = f"{method_of(connection)} {connection.scope['path'][:200]} needs the role {needed}"
        raise ApiProblem(403, message, f"you are {caller.name}, {caller.role}: ask somebody who is {needed}")
    connection.scope[_CALLER] = caller  # type: ignore[typeddict-unknown-key]


async def identify(connection: ASGIConnection[Any, Any, Any, Any]) -> AuthenticatedUser:
    """Who asks: by a token in a header, or else by the cookie. Raises `ApiProblem`."""
    who: Authentication = connection.app.state.who
    address = address_of(connection)
    header = connection.headers.get("authorization")
    if header is not None:
        token = bearer_of(header)
        if token is None:
            raise ApiProblem(401, "Authorization is not Bearer", "give `Authorization: Bearer s0_…`")
        return await who.ask(token, False, address)
    cookie = connection.cookies.get(COOKIE)
    if cookie is None:
        raise ApiProblem(401, "nobody is logged in here", "POST /api/v1/session, or give `Authorization: Bearer s0_…`")
    caller = await who.ask(cookie, True, address)
    if method_of(connection) not in SAFE and not is_csrf(cookie, connection.headers.get(CSRF_HEADER, "")):
        raise ApiProblem(403, "X-CSRF-Token is missing or wrong", "send what GET /api/v1/session gives as `csrf`")
    return caller


def method_of(connection: ASGIConnection[Any, Any, Any, Any]) -> str:
    """What is to be done."""
    return str(connection.scope["method"])  # type: ignore[typeddict-item]


def address_of(connection: ASGIConnection[Any, Any, Any, Any]) -> str:
    """Where a request comes from."""
    return connection.client.host if connection.client is not None else "unknown"


def caller_of(request: Request[Any, Any, Any]) -> AuthenticatedUser | None:
    """Who asks; None on a public route."""
    caller: AuthenticatedUser | None = request.scope.get(_CALLER)  # type: ignore[assignment]
    return caller

"""Authorization: every handler names its least role in `opt`, and one guard checks it for all routes.

A change that the session cookie authorizes needs the CSRF token as well.
"""

from __future__ import annotations

from typing import Any, Final

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from scale0.broker.admin.access import RANKS
from scale0.broker.main.http_settings import HttpSettings
from scale0.http.auth.authentication import COOKIE, AuthenticatedUser, Authentication, bearer_of, is_csrf
from scale0.http.auth.middleware import SAFE
from scale0.http.problem import ApiProblem

ROLE: Final = "role"
"""The key of a handler's `opt` with the least role; None: the route is public."""
OPEN_WITH: Final = "open_with"
"""The key of a handler's `opt` with the name of a setting that makes the route public."""
CSRF_HEADER: Final = "x-csrf-token"
_CALLER: Final = "scale0_caller"

Connection = ASGIConnection[Any, Any, Any, Any]


def role_of(handler: BaseRouteHandler, settings: HttpSettings) -> str | None:
    """The least role that may use a handler; None: public. LookupError: the handler names no role."""
    role = handler.opt[ROLE]
    if role is not None and role not in RANKS:
        raise LookupError(f"{role!r} is no role")
    opening = handler.opt.get(OPEN_WITH)
    return None if opening and getattr(settings, opening) else role


async def authorize(connection: Connection, handler: BaseRouteHandler) -> None:
    """The guard of every route. Raises `ApiProblem`."""
    needed = role_of(handler, connection.app.state.settings)
    if needed is None:
        return
    caller = await identify(connection)
    if RANKS.get(caller.role, -1) < RANKS[needed]:
        message = f"{method_of(connection)} {connection.scope['path'][:200]} needs the role {needed}"
        next_ = f"you are logged in as {caller.name} ({caller.role}): ask a user with the role {needed}"
        raise ApiProblem(403, message, next_)
    connection.scope[_CALLER] = caller  # type: ignore[typeddict-unknown-key]


async def identify(connection: Connection) -> AuthenticatedUser:
    """The user of a request: by a token in a header, or by the cookie. Raises `ApiProblem`."""
    authentication: Authentication = connection.app.state.authentication
    address = address_of(connection)
    header = connection.headers.get("authorization")
    if header is not None:
        token = bearer_of(header)
        if token is None:
            raise ApiProblem(401, "the scheme of Authorization is not Bearer", "send `Authorization: Bearer s0_…`")
        return await authentication.user_of(token, False, address)
    cookie = connection.cookies.get(COOKIE)
    if cookie is None:
        raise ApiProblem(401, "not logged in", "POST /api/v1/session, or send `Authorization: Bearer s0_…`")
    caller = await authentication.user_of(cookie, True, address)
    if method_of(connection) not in SAFE and not is_csrf(cookie, connection.headers.get(CSRF_HEADER, "")):
        raise ApiProblem(403, "X-CSRF-Token is missing or wrong", "send the `csrf` of GET /api/v1/session")
    return caller


def method_of(connection: Connection) -> str:
    return str(connection.scope["method"])  # type: ignore[typeddict-item]


def address_of(connection: Connection) -> str:
    return connection.client.host if connection.client is not None else "unknown"


def caller_of(request: Request[Any, Any, Any]) -> AuthenticatedUser | None:
    """The user of a request; None on a public route."""
    caller: AuthenticatedUser | None = request.scope.get(_CALLER)  # type: ignore[assignment]
    return caller

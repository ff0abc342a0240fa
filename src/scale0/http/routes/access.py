"""Logging in and out, one-time login links, and API tokens.

A session is a token of the broker in a cookie; logging out revokes it. This server stores no password and no token. A
one-time link works once, even if two clients use it at the same time.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Annotated, Any, Final, Literal, cast

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.datastructures import Cookie
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody, PathParameter
from typing_extensions import TypedDict

from scale0.broker.admin.access import ADMIN, MAX_TOKEN_SECONDS, SESSION_SECONDS, VIEWER
from scale0.http.auth.authentication import COOKIE, AuthenticatedUser, invalid_token, is_token, origin_of
from scale0.http.auth.authorization import ROLE, address_of, identify
from scale0.http.auth.login_limits import host_of
from scale0.http.auth.middleware import MAX_LOGIN_BYTES
from scale0.http.broker_client import BrokerClient
from scale0.http.problem import ApiProblem
from scale0.http.request_context import DEFAULT_ROWS, After, Context, Limit, ListPage, RequestContext

SESSION: Final = "/api/v1/session"
TOKENS: Final = "/api/v1/tokens"
LINK_SECONDS: Final = 600.0
"""How long a one-time link is valid."""
LINK_INVALID: Final = "this is no one-time link, or it was already used or has expired"
MAX_SECRET_CHARS: Final = 1_024
"""Of a password or token."""
MAX_NAME_CHARS: Final = 128

Secret = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_SECRET_CHARS)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME_CHARS)]


class Login(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`name` and `password`, or `token`, or `once`: the secret of a one-time link."""

    name: Name | None = None
    password: Secret | None = None
    token: Secret | None = None
    once: Secret | None = None

    def __repr__(self) -> str:
        return f"Login({self.name!r})"  # without the secrets: a log may contain this


class LoginSession(TypedDict):
    """The user of a session; `csrf` is the value for X-CSRF-Token."""

    name: str
    role: str
    expires: float | None
    csrf: str


@post(SESSION, opt={ROLE: None}, status_code=200, request_max_body_size=MAX_LOGIN_BYTES, summary="Log in")
async def log_in(request: Request[Any, Any, Any], context: Context, data: JSONBody[Login]) -> Response[LoginSession]:
    """With name and password, a token, or the secret of a one-time link. Sets the cookie."""
    address = address_of(request)
    match data:
        case Login(name=str(name), password=str(password), token=None, once=None):
            found = await by_password(request, context, name, password)
        case Login(name=None, password=None, token=str(token), once=None):
            found = await by_token(context, token, address)
        case Login(name=None, password=None, token=None, once=str(once)):
            found = await by_link(context, once, address)
        case _:
            raise ApiProblem(400, "a login has name and password, or token, or once")
    caller = await context.authentication.user_of(found["token"], True, address)
    return Response(session_of(caller), cookies=[cookie(caller, context.settings.has_tls)])


async def by_password(
    request: Request[Any, Any, Any], context: RequestContext, name: str, password: str
) -> dict[str, Any]:
    """A session for a password; the attempt is counted before the password is sent to the broker."""
    limits = request.app.state.login_limits
    address, clock = address_of(request), asyncio.get_running_loop().time
    host = host_of(address)
    rank = limits.begin(host, name, clock())
    try:
        async with request.app.state.login_turns.turn(host, rank):
            found = await context.broker.log_in(name, password, origin_of(address))
    except ApiProblem as problem:
        if problem.status == 429:
            raise  # the broker is checking another password of this name: the attempt counts
        if problem.status == 401:
            raise ApiProblem(401, "the name or the password is wrong", "try again, or ask an administrator") from None
        limits.take_back(host, name, clock())
        raise
    limits.succeed(host, name, clock())
    return found


async def by_token(context: RequestContext, token: str, address: str) -> dict[str, Any]:
    """A new session for a token; logging out does not revoke that token."""
    if not is_token(token):
        raise invalid_token()
    await context.authentication.user_of(token, False, address)
    return await context.broker.manage(token, "login", origin=origin_of(address))


async def by_link(context: RequestContext, once: str, address: str) -> dict[str, Any]:
    """A session for the secret of a link. The broker exchanges it, and does so for only one of two clients."""
    if not is_token(once):
        raise invalid_token()
    try:
        return await context.authentication.exchange(once, address)
    except ApiProblem as problem:
        if problem.status == 401:
            raise ApiProblem(401, LINK_INVALID, "`scale0 access link` prints a new one") from None
        raise


@get(SESSION, opt={ROLE: None}, summary="The user of the session")
async def show(request: Request[Any, Any, Any]) -> LoginSession:
    """401 if nobody is logged in."""
    return session_of(await identify(request))


@delete(SESSION, opt={ROLE: VIEWER}, status_code=200, summary="Log out")
async def log_out(context: Context) -> Response[dict[str, Any]]:
    """End the session: its token is revoked."""
    caller = context.caller
    found = await context.change("logout")
    context.authentication.forget(caller.token)
    expired = Cookie(
        COOKIE, value="", path="/", max_age=0, httponly=True, samesite="strict", secure=context.settings.has_tls
    )
    return Response(found, cookies=[expired])


def session_of(caller: AuthenticatedUser) -> LoginSession:
    return {"name": caller.name, "role": caller.role, "expires": caller.expires, "csrf": caller.csrf}


def cookie(caller: AuthenticatedUser, secure: bool) -> Cookie:
    """The session cookie: hidden from scripts, and not sent with requests of other sites."""
    return Cookie(COOKIE, value=caller.token, path="/", httponly=True, samesite="strict", secure=secure)


async def login_link(broker: BrokerClient, url: str) -> str:
    """A one-time login link for an administrator. Its secret is in the fragment, which browsers send to no server.

    Raises `ApiProblem` if the broker issues no token.
    """
    name = f"link-{secrets.token_hex(4)}"
    issued = await broker.local("issue_token", name=name, role=ADMIN, ttl=LINK_SECONDS, once=True)
    return f"{url}/#/login?once={issued['token']}"


class NewToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The user, the role, and the validity in seconds."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._:-]{1,128}$")]
    role: Literal["viewer", "operator", "admin"] = "viewer"
    ttl: Annotated[float, msgspec.Meta(gt=0, le=MAX_TOKEN_SECONDS)] = SESSION_SECONDS


@get(TOKENS, opt={ROLE: ADMIN}, summary="All tokens that have not expired")
async def tokens(context: Context, limit: Limit = DEFAULT_ROWS, after: After = None) -> ListPage:
    """Each by the start of its digest; sessions are tokens too."""
    return cast("ListPage", await context.manage("list_tokens", limit=limit, after=after))


@post(TOKENS, opt={ROLE: ADMIN}, summary="Issue a token")
async def issue(context: Context, data: JSONBody[NewToken]) -> dict[str, Any]:
    """Only this response contains the token."""
    return await context.change("issue_token", name=data.name, role=data.role, ttl=data.ttl)


@delete(TOKENS + "/{token_id:str}", opt={ROLE: ADMIN}, status_code=200, summary="Revoke a token")
async def revoke(context: Context, token_id: Annotated[str, PathParameter(pattern="^[0-9a-f]{12}$")]) -> dict[str, Any]:
    """At once; if it is a session, the session ends."""
    found = await context.change("revoke_token", token_id=token_id)
    context.authentication.forget_id(token_id)
    return found


SESSION_HANDLERS: Final[list[HTTPRouteHandler]] = [log_in, show, log_out]
TOKEN_HANDLERS: Final[list[HTTPRouteHandler]] = [tokens, issue, revoke]

"""Logging in and out.

Lives here: a password, a token or a one-time link for a session; the session is a token of the broker, in a cookie.
Never here: a password or token at rest. Invariants: of all who use a one-time link exactly one gets in; a session that
was ended is unknown to the broker.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.datastructures import Cookie
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody
from typing_extensions import TypedDict

from scale0.broker.admin.access import VIEWER
from scale0.http.auth.authentication import COOKIE, AuthenticatedUser, is_token, nobody, origin_of
from scale0.http.auth.authorization import ROLE, address_of, identify
from scale0.http.auth.middleware import MAX_LOGIN_BYTES
from scale0.http.one_time_links import LINK_PREFIX
from scale0.http.problem import ApiProblem
from scale0.http.request_context import At, RequestContext

PATH: Final = "/api/v1/session"
MAX_SECRET_CHARS: Final = 1_024
"""Of a password or token: hashing a longer one would be work for nothing."""
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
        return f"Login({self.name!r})"  # a secret must not get into a log by chance


class LoginSession(TypedDict):
    """Who is logged in; `csrf` is for X-CSRF-Token."""

    name: str
    role: str
    expires: float | None
    csrf: str


@post(PATH, opt={ROLE: None}, status_code=200, request_max_body_size=MAX_LOGIN_BYTES, summary="Log in")
async def log_in(request: Request[Any, Any, Any], desk: At, data: JSONBody[Login]) -> Response[LoginSession]:
    """By name and password, by a token, or by a one-time link's secret. Sets the cookie."""
    address = address_of(request)
    match data:
        case Login(name=str(name), password=str(password), token=None, once=None):
            found = await by_password(request, desk, name, password)
        case Login(name=None, password=None, token=str(token), once=None):
            found = await by_token(desk, token, address)
        case Login(name=None, password=None, token=None, once=str(once)):
            found = await by_link(desk, once, address)
        case _:
            raise ApiProblem(400, "a login is name and password, or token, or once")
    caller = await desk.who.ask(found["token"], True, address)
    return Response(shown(caller), cookies=[cookie(caller, desk.settings.has_tls)])


async def by_password(
    request: Request[Any, Any, Any], desk: RequestContext, name: str, password: str
) -> dict[str, Any]:
    """A password is counted before it is sent anywhere."""
    attempts = request.app.state.attempts
    address, clock = address_of(request), asyncio.get_running_loop().time
    attempts.begin(address, name, clock())
    try:
        found = await desk.network.log_in(name, password, origin_of(address))
    except ApiProblem as problem:
        if problem.status == 429:
            raise  # the broker is busy with one of theirs: this one counts, too
        if problem.status == 401:
            raise ApiProblem(401, "the name or the password is wrong", "try again, or ask an administrator") from None
        attempts.take_back(address, name, clock())
        raise
    attempts.take_back(address, name, clock())
    return found


async def by_token(desk: RequestContext, token: str, address: str) -> dict[str, Any]:
    """A session of its own: ending it leaves the token as it is."""
    if not is_token(token):
        raise nobody()
    await desk.who.ask(token, False, address)
    found: dict[str, Any] = await desk.network.manage(token, "login", origin=origin_of(address))
    return found


async def by_link(desk: RequestContext, once: str, address: str) -> dict[str, Any]:
    """A session for the secret of a link, which is good for nothing afterwards: of two who come at once, the broker
    revokes it for one."""
    if not is_token(once):
        raise nobody()
    whose = await desk.who.ask(once, False, address)
    if not whose.name.startswith(LINK_PREFIX):
        raise ApiProblem(401, "that is no link", "give it as `token`")
    try:
        await desk.network.manage(once, "logout", origin=origin_of(address))
    except ApiProblem as problem:
        if problem.status == 401:
            raise ApiProblem(401, "the link was used already", "`scale0 access link` gives a new one") from None
        raise
    finally:
        desk.who.forget(once)
    found: dict[str, Any] = await desk.network.local("issue_token", name=whose.name, role=whose.role)
    return found


@get(PATH, opt={ROLE: None}, summary="Who is logged in")
async def show(request: Request[Any, Any, Any]) -> LoginSession:
    """Who asks; 401 if nobody."""
    return shown(await identify(request))


@delete(PATH, opt={ROLE: VIEWER}, status_code=200, summary="Log out")
async def log_out(desk: At) -> Response[dict[str, Any]]:
    """End the session: its token is revoked."""
    caller = desk.caller
    found = await desk.change("logout")
    desk.who.forget(caller.token)
    gone = Cookie(COOKIE, value="", path="/", max_age=0, httponly=True, samesite="strict", secure=desk.settings.has_tls)
    return Response(found, cookies=[gone])


def shown(caller: AuthenticatedUser) -> LoginSession:
    """What they are told of themselves."""
    return {"name": caller.name, "role": caller.role, "expires": caller.expires, "csrf": caller.csrf}


def cookie(caller: AuthenticatedUser, secure: bool) -> Cookie:
    """The session; no script can read it, and no other site has it sent."""
    return Cookie(COOKIE, value=caller.token, path="/", httponly=True, samesite="strict", secure=secure)


HANDLERS: Final[list[HTTPRouteHandler]] = [log_in, show, log_out]

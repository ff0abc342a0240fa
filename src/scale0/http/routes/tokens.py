"""Tokens of the API: issue, list, revoke.

Lives here: the broker's commands for tokens. Never here: a token after it was told once.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from litestar import delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody, PathParameter

from scale0.broker.admin.access import ADMIN, LOGIN_SECONDS, MAX_TOKEN_SECONDS
from scale0.http.auth.authorization import ROLE
from scale0.http.request_context import DEFAULT_ROWS, After, At, Limit, ListPage

TOKENS: Final = "/api/v1/tokens"


class NewToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For whom, with which role, and for how many seconds."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._:-]{1,128}$")]
    role: Literal["viewer", "operator", "admin"] = "viewer"
    ttl: Annotated[float, msgspec.Meta(gt=0, le=MAX_TOKEN_SECONDS)] = LOGIN_SECONDS


@get(TOKENS, opt={ROLE: ADMIN}, summary="Every token that has not expired")
async def tokens(desk: At, limit: Limit = DEFAULT_ROWS, after: After = None) -> ListPage:
    """By the start of its digest; sessions are tokens too."""
    found: ListPage = await desk.manage("list_tokens", limit=limit, after=after)
    return found


@post(TOKENS, opt={ROLE: ADMIN}, summary="Issue a token")
async def issue(desk: At, data: JSONBody[NewToken]) -> dict[str, Any]:
    """The token is told here, and never again."""
    return await desk.change("issue_token", name=data.name, role=data.role, ttl=data.ttl)


@delete(TOKENS + "/{token_id:str}", opt={ROLE: ADMIN}, status_code=200, summary="Revoke a token")
async def revoke(desk: At, token_id: Annotated[str, PathParameter(pattern="^[0-9a-f]{12}$")]) -> dict[str, Any]:
    """At once; a session that has it is over."""
    found = await desk.change("revoke_token", token_id=token_id)
    desk.who.forget_id(token_id)
    return found


HANDLERS: Final[list[HTTPRouteHandler]] = [tokens, issue, revoke]

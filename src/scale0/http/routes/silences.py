"""Silences and downtimes, during which Helen sends no notifications; checks go on.

Both are entries of the network document, and change by `patch_config`. A new entry never replaces another one.
"""

from __future__ import annotations

import secrets
import time
from typing import Annotated, Any, Final

import msgspec
from litestar import delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, JSONBody

from scale0.broker.admin.access import OPERATOR, VIEWER
from scale0.client.admin.rows import Row, entry_path, is_over
from scale0.http.auth.authorization import ROLE
from scale0.http.problem import ApiProblem
from scale0.http.request_context import DEFAULT_ROWS, After, Context, Limit, ListPage, RequestContext, paged

SILENCES: Final = "/api/v1/silences"
DOWNTIMES: Final = "/api/v1/downtimes"
MAX_SECONDS: Final = 366 * 86_400.0
"""A year."""
MAX_GLOBS: Final = 100
MAX_REASON_CHARS: Final = 1_000
MAX_ATTEMPTS: Final = 5
"""Of a change that conflicts with concurrent changes of the document."""
NOTHING_TO_REMOVE: Final = "there is nothing to remove"
"""The broker's message for a path that does not exist."""

Word = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
Globs = Annotated[list[Word], msgspec.Meta(max_length=MAX_GLOBS)]
Labels = Annotated[dict[Word, Annotated[str, msgspec.Meta(max_length=256)]], msgspec.Meta(max_length=MAX_GLOBS)]
Reason = Annotated[str, msgspec.Meta(max_length=MAX_REASON_CHARS)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=MAX_SECONDS)]
Moment = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
"""Seconds since the epoch."""


class NewSilence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The checks, and the end: `seconds` from now, or `ends`; without both, until it is removed."""

    agents: Globs = []
    checks: Globs = []
    labels: Labels = {}
    reason: Reason = ""
    name: Word | None = None
    seconds: Seconds | None = None
    ends: Moment | None = None


class NewDowntime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The checks, the start (default: now), and the end: `seconds` or `ends`."""

    agents: Globs = []
    checks: Globs = []
    labels: Labels = {}
    reason: Reason = ""
    name: Word | None = None
    starts: Moment | None = None
    seconds: Seconds | None = None
    ends: Moment | None = None


@get(SILENCES, opt={ROLE: VIEWER}, summary="All silences")
async def silences(context: Context, limit: Limit = DEFAULT_ROWS, after: After = None) -> ListPage:
    """Entries of the document, including past ones, each with its `state`: active, planned or over."""
    return paged(await entries(context, "silences"), limit, after, lambda row: str(row["name"]))


@post(SILENCES, opt={ROLE: OPERATOR}, summary="Suppress notifications")
async def silence(context: Context, data: JSONBody[NewSilence]) -> dict[str, Any]:
    if data.seconds is not None and data.ends is not None:
        raise ApiProblem(400, "seconds and ends exclude each other: give one of them")
    now = time.time()
    ends = data.ends or (now + data.seconds if data.seconds is not None else 0.0)
    if 0 < ends <= now:
        raise ApiProblem(400, "the silence would be in the past", "give ends a time in the future, or give seconds")
    return await add(context, "silences", data, {"ends": ends})


@delete(SILENCES + "/{name:str}", opt={ROLE: OPERATOR}, status_code=200, summary="End a silence")
async def end_silence(context: Context, name: FromPath[str]) -> dict[str, Any]:
    return await remove(context, "silences", name)


@get(DOWNTIMES, opt={ROLE: VIEWER}, summary="All downtimes")
async def downtimes(context: Context, limit: Limit = DEFAULT_ROWS, after: After = None) -> ListPage:
    """Entries of the document, including past ones, each with its `state`: active, planned or over."""
    return paged(await entries(context, "downtimes"), limit, after, lambda row: str(row["name"]))


@post(DOWNTIMES, opt={ROLE: OPERATOR}, summary="Schedule a downtime")
async def downtime(context: Context, data: JSONBody[NewDowntime]) -> dict[str, Any]:
    """A period of planned maintenance."""
    if (data.seconds is None) == (data.ends is None):
        raise ApiProblem(400, "give either seconds or ends")
    now = time.time()
    starts = now if data.starts is None else data.starts
    ends = data.ends if data.ends is not None else starts + (data.seconds or 0.0)
    if ends <= max(now, starts):
        raise ApiProblem(400, "the downtime would be in the past", "give starts a time in the future, or omit it")
    return await add(context, "downtimes", data, {"starts": starts, "ends": ends})


@delete(DOWNTIMES + "/{name:str}", opt={ROLE: OPERATOR}, status_code=200, summary="End or cancel a downtime")
async def end_downtime(context: Context, name: FromPath[str]) -> dict[str, Any]:
    return await remove(context, "downtimes", name)


async def entries(context: RequestContext, key: str) -> list[Row]:
    """The entries of the document under a key, with their states."""
    now = time.time()
    rows = (await context.read("get_config"))["config"][key]
    return [{**row, "state": state_of(row, now)} for row in rows]


def state_of(row: Row, now: float) -> str:
    if row.get("starts", 0) > now:
        return "planned"
    return "over" if is_over(row, now) else "active"


async def add(context: RequestContext, key: str, data: NewSilence | NewDowntime, times: Row) -> Row:
    """Add an entry; 409 if the name exists."""
    if not (data.agents or data.checks or data.labels):
        raise ApiProblem(400, "no checks are selected", "give agents, checks or labels ('*' selects all)")
    name = data.name or f"{key[:-1]}-{secrets.token_hex(4)}"
    entry = {
        "name": name,
        "agents": data.agents,
        "checks": data.checks,
        "labels": data.labels,
        "reason": data.reason,
        "author": context.caller.name,
        **times,
    }
    for left in reversed(range(MAX_ATTEMPTS)):
        current = await context.manage("get_config")
        if any(row["name"] == name for row in current["config"][key]):
            raise ApiProblem(409, f"the {key[:-1]} {name} already exists", "choose another name, or omit it")
        try:
            done = await context.change("patch_config", set={entry_path(key, name): entry}, base=current["version"])
        except ApiProblem as problem:
            if problem.status != 409 or not left:
                raise
        else:
            return {**entry, "state": state_of(entry, time.time()), "version": done["version"]}
    raise AssertionError("the last attempt ends in an answer or a problem")


async def remove(context: RequestContext, key: str, name: str) -> Row:
    try:
        done = await context.change("patch_config", remove=[entry_path(key, name)])
    except ApiProblem as problem:
        if problem.status == 400 and NOTHING_TO_REMOVE in problem.message:
            raise ApiProblem(404, f"there is no {key[:-1]} {name[:100]}", f"GET /api/v1/{key} lists them") from None
        raise
    return {"name": name, "version": done["version"]}


HANDLERS: Final[list[HTTPRouteHandler]] = [silences, silence, end_silence, downtimes, downtime, end_downtime]

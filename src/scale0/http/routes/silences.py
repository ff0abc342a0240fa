"""Silences and downtimes: no notices, though checks go on.

Lives here: both, which differ in what they mean and not in how they are written. Never here: what is held back; Helen
decides that. Both are part of the network document, and change by `patch_config` like all of it. Invariant: a new one
never replaces another.
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
from scale0.client.admin.rows import entry_path, is_over
from scale0.http.auth.authorization import ROLE
from scale0.http.problem import ApiProblem
from scale0.http.request_context import DEFAULT_ROWS, After, At, Limit, ListPage, RequestContext, Row, paged

SILENCES: Final = "/api/v1/silences"
DOWNTIMES: Final = "/api/v1/downtimes"
MAX_SECONDS: Final = 366 * 86_400.0
"""The longest that anybody can mean."""
MAX_GLOBS: Final = 100
MAX_WORDS: Final = 1_000
TRIES: Final = 5
"""How often a change is made again because somebody else changed the document meanwhile."""
NOTHING_TO_REMOVE: Final = "there is nothing to remove"
"""What a broker says of a path that leads nowhere."""

Word = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
Globs = Annotated[list[Word], msgspec.Meta(max_length=MAX_GLOBS)]
Labels = Annotated[dict[Word, Annotated[str, msgspec.Meta(max_length=256)]], msgspec.Meta(max_length=MAX_GLOBS)]
Reason = Annotated[str, msgspec.Meta(max_length=MAX_WORDS)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=MAX_SECONDS)]
Moment = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
"""Seconds since the epoch."""


class NewSilence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which checks, and how long: `seconds` from now, or `ends`; neither: until it is ended."""

    agents: Globs = []
    checks: Globs = []
    labels: Labels = {}
    reason: Reason = ""
    name: Word | None = None
    seconds: Seconds | None = None
    ends: Moment | None = None


class NewDowntime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which checks, from when (now), and how long: `seconds` or `ends`."""

    agents: Globs = []
    checks: Globs = []
    labels: Labels = {}
    reason: Reason = ""
    name: Word | None = None
    starts: Moment | None = None
    seconds: Seconds | None = None
    ends: Moment | None = None


@get(SILENCES, opt={ROLE: VIEWER}, summary="Every silence")
async def silences(desk: At, limit: Limit = DEFAULT_ROWS, after: After = None) -> ListPage:
    """Objects of the document, past ones included, each with its `state`: active, planned or over."""
    return paged(await entries(desk, "silences"), limit, after, lambda row: str(row["name"]))


@post(SILENCES, opt={ROLE: OPERATOR}, summary="Hold notices back")
async def silence(desk: At, data: JSONBody[NewSilence]) -> dict[str, Any]:
    """From now on."""
    if data.seconds is not None and data.ends is not None:
        raise ApiProblem(400, "give seconds or ends, not both")
    now = time.time()
    ends = data.ends or (now + data.seconds if data.seconds is not None else 0.0)
    if 0 < ends <= now:
        raise ApiProblem(400, "that would be over already", "give ends a time to come, or seconds")
    return await add(desk, "silences", data, {"ends": ends})


@delete(SILENCES + "/{name:str}", opt={ROLE: OPERATOR}, status_code=200, summary="End a silence")
async def end_silence(desk: At, name: FromPath[str]) -> dict[str, Any]:
    """Now."""
    return await take(desk, "silences", name)


@get(DOWNTIMES, opt={ROLE: VIEWER}, summary="Every downtime")
async def downtimes(desk: At, limit: Limit = DEFAULT_ROWS, after: After = None) -> ListPage:
    """Objects of the document, past ones included, each with its `state`: active, planned or over."""
    return paged(await entries(desk, "downtimes"), limit, after, lambda row: str(row["name"]))


@post(DOWNTIMES, opt={ROLE: OPERATOR}, summary="Plan a downtime")
async def downtime(desk: At, data: JSONBody[NewDowntime]) -> dict[str, Any]:
    """A time in which being down is right."""
    if (data.seconds is None) == (data.ends is None):
        raise ApiProblem(400, "give seconds or ends")
    now = time.time()
    starts = now if data.starts is None else data.starts
    ends = data.ends if data.ends is not None else starts + (data.seconds or 0.0)
    if ends <= max(now, starts):
        raise ApiProblem(400, "that would be over already", "give starts a time to come, or leave it out")
    return await add(desk, "downtimes", data, {"starts": starts, "ends": ends})


@delete(DOWNTIMES + "/{name:str}", opt={ROLE: OPERATOR}, status_code=200, summary="Take a downtime back")
async def end_downtime(desk: At, name: FromPath[str]) -> dict[str, Any]:
    """Now."""
    return await take(desk, "downtimes", name)


async def entries(desk: RequestContext, key: str) -> list[Row]:
    """What the document has under a key."""
    now = time.time()
    rows = (await desk.read("get_config"))["config"][key]
    return [{**row, "state": state_of(row, now)} for row in rows]


def state_of(row: Row, now: float) -> str:
    """Whether an entry holds now."""
    if row.get("starts", 0) > now:
        return "planned"
    return "over" if is_over(row, now) else "active"


async def add(desk: RequestContext, key: str, data: NewSilence | NewDowntime, times: Row) -> Row:
    """A new entry; 409 if the name is taken."""
    if not (data.agents or data.checks or data.labels):
        raise ApiProblem(400, "say which: agents, checks or labels ('*' is all)")
    name = data.name or f"{key[:-1]}-{secrets.token_hex(4)}"
    entry = {
        "name": name,
        "agents": data.agents,
        "checks": data.checks,
        "labels": data.labels,
        "reason": data.reason,
        "author": desk.caller.name,
        **times,
    }
    for left in reversed(range(TRIES)):
        current = await desk.manage("get_config")
        if any(row["name"] == name for row in current["config"][key]):
            raise ApiProblem(409, f"there is a {key[:-1]} {name} already", "give another name, or none")
        try:
            done = await desk.change("patch_config", set={entry_path(key, name): entry}, base=current["version"])
        except ApiProblem as problem:
            if problem.status != 409 or not left:
                raise
        else:
            return {**entry, "state": state_of(entry, time.time()), "version": done["version"]}
    raise AssertionError("the last try ends in an answer or a problem")


async def take(desk: RequestContext, key: str, name: str) -> Row:
    """Take an entry away."""
    try:
        done = await desk.change("patch_config", remove=[entry_path(key, name)])
    except ApiProblem as problem:
        if problem.status == 400 and NOTHING_TO_REMOVE in problem.message:
            raise ApiProblem(404, f"there is no {key[:-1]} {name[:100]}", f"GET /api/v1/{key} lists them") from None
        raise
    return {"name": name, "version": done["version"]}


HANDLERS: Final[list[HTTPRouteHandler]] = [silences, silence, end_silence, downtimes, downtime, end_downtime]

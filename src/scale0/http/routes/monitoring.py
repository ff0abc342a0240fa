"""Agents, checks and incidents, as every Helen tells them.

Lives here: rows of the commands `scale0 agents`, `checks` and `incidents`, and running a check now, which is a command
of the broker's like every change. Never here: what a state means. Each list says which Helens were asked (`helens`) and
who did not answer (`silent`).
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter
from typing_extensions import TypedDict

from scale0.broker.admin.access import OPERATOR, VIEWER
from scale0.client.admin.rows import WORST_FIRST, known_agents, known_checks, known_incidents
from scale0.http import helens
from scale0.http.auth.authorization import ROLE
from scale0.http.helens import HelenAnswer
from scale0.http.problem import ApiProblem
from scale0.http.request_context import DEFAULT_ROWS, After, At, Limit, ListPage, Row, Text, paged

CHECKS: Final = "/api/v1/checks"
RUN_SECONDS: Final = 30.0
"""How long a check may run that is asked for."""
MAX_RUN_SECONDS: Final = 120.0
GRACE_SECONDS: Final = 10.0
"""How much longer we wait than Helen does: the broker waits for her, and we for the broker."""
MAX_INCIDENTS: Final = 10_000
"""That are read of one Helen: pages beyond are not shown."""
MAX_ARGS: Final = 100
TIME_DIGITS: Final = 1_000_000_000_000.0
"""Past every time in seconds, so that newer ones come first."""

State = Literal["ok", "warning", "critical", "unknown"]


class MonitoringRows(TypedDict):
    """A list, and who was asked for it."""

    items: list[dict[str, Any]]
    next: str | None
    helens: list[str]
    silent: list[str]


class RunCheckBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """With `args`, a mere question; without, the check as it is defined, and its result counts."""

    args: Annotated[dict[str, Any], msgspec.Meta(max_length=MAX_ARGS)] = {}
    timeout: Annotated[float, msgspec.Meta(gt=0, le=MAX_RUN_SECONDS)] = RUN_SECONDS


def told(page: ListPage, heard: HelenAnswer) -> MonitoringRows:
    """The page with who was asked."""
    return {"items": page["items"], "next": page["next"], "helens": heard.helens, "silent": heard.silent}


def given(**only: Any) -> Row:
    """What was asked for."""
    return {name: value for name, value in only.items() if value is not None}


@get("/api/v1/agents", opt={ROLE: VIEWER}, summary="Every agent that any Helen knows")
async def agents(desk: At, limit: Limit = DEFAULT_ROWS, after: After = None) -> MonitoringRows:
    """Rows of `scale0 agents --json`."""
    heard = await desk.helens("agents", {"all": True})
    return told(paged(known_agents(heard.rows), limit, after, lambda row: str(row["agent"])), heard)


@get(CHECKS, opt={ROLE: VIEWER}, summary="Every check of every agent, the worst first")
async def checks(
    desk: At,
    agent: Text = None,
    check: Text = None,
    wanted: Annotated[State | None, QueryParameter(name="state")] = None,
    problems: FromQuery[bool] = False,
    limit: Limit = DEFAULT_ROWS,
    after: After = None,
) -> MonitoringRows:
    """Rows of `scale0 checks --json`; `agent` and `check` are globs."""
    heard = await desk.helens("checks", given(agent=agent, check=check, state=wanted))
    return told(paged(known_checks(heard.rows, problems), limit, after, worst_key), heard)


def worst_key(row: Row) -> str:
    """What orders checks: the worst first, then by name."""
    return f"{WORST_FIRST.get(row['state'], 1)} {row['agent']}/{row['check']}"


@post(CHECKS + "/{agent:str}/{check:str}/run", opt={ROLE: OPERATOR}, status_code=200, summary="Run a check now")
async def run(
    desk: At, agent: FromPath[str], check: FromPath[str], data: JSONBody[RunCheckBody | None] = None
) -> dict[str, Any]:
    """The result: state, message, metrics, started, seconds."""
    data = data or RunCheckBody()
    if not await helens.connected(desk.network, desk.caller.token):
        raise ApiProblem(404, "no Helen is connected", "`scale0 up` starts one; else: scale0 helen --config FILE")
    said: Row = {"agent": agent, "check": check, "timeout": data.timeout}
    if data.args:
        said["args"] = data.args
    return await desk.change("run_check", body=said, timeout=data.timeout + GRACE_SECONDS)


@get("/api/v1/incidents", opt={ROLE: VIEWER}, summary="What is wrong now, or was: the newest first")
async def incidents(
    desk: At,
    is_open: Annotated[bool, QueryParameter(name="open", description="Only open ones; false: all.")] = True,
    agent: Text = None,
    check: Text = None,
    limit: Limit = DEFAULT_ROWS,
    after: After = None,
) -> MonitoringRows:
    """Rows of `scale0 incidents --json`; with `open=false`, closed ones too."""
    heard = await desk.helens("incidents", {"open": is_open, **given(agent=agent, check=check)}, MAX_INCIDENTS)
    rows = known_incidents(heard.rows)
    return told(paged(rows, limit, after, lambda row: f"{TIME_DIGITS - row['opened']:.6f} {row['id']}"), heard)


HANDLERS: Final[list[HTTPRouteHandler]] = [agents, checks, run, incidents]

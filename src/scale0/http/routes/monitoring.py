"""Agents, checks and incidents of all Helens, and running a check now.

Each list names the Helens that were asked (`helens`) and those that did not answer (`silent`).
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter
from typing_extensions import TypedDict

from scale0.broker.admin.access import OPERATOR, VIEWER
from scale0.client.admin.helens import HelenRows
from scale0.client.admin.rows import WORST_FIRST, Row, known_agents, known_checks, known_incidents
from scale0.http.auth.authorization import ROLE
from scale0.http.problem import ApiProblem
from scale0.http.request_context import DEFAULT_ROWS, After, Context, Limit, ListPage, Text, paged

CHECKS: Final = "/api/v1/checks"
RUN_SECONDS: Final = 30.0
"""The default time limit of a check that is run on request."""
MAX_RUN_SECONDS: Final = 120.0
GRACE_SECONDS: Final = 10.0
"""How much longer this server waits than Helen does: the broker waits for Helen, and this server for the broker."""
MAX_INCIDENTS: Final = 10_000
"""Incidents that are read from one Helen."""
MAX_ARGS: Final = 100
TIME_DIGITS: Final = 1_000_000_000_000.0
"""Larger than every time in seconds: the difference sorts newer incidents first."""

State = Literal["ok", "warning", "critical", "unknown"]


class MonitoringRows(TypedDict):
    """A page, with the Helens that were asked."""

    items: list[dict[str, Any]]
    next: str | None
    helens: list[str]
    silent: list[str]


class RunCheckBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Without `args`, the check runs as it is defined, and its result counts; with `args`, it does not count."""

    args: Annotated[dict[str, Any], msgspec.Meta(max_length=MAX_ARGS)] = {}
    timeout: Annotated[float, msgspec.Meta(gt=0, le=MAX_RUN_SECONDS)] = RUN_SECONDS


def with_helens(page: ListPage, found: HelenRows) -> MonitoringRows:
    return {"items": page["items"], "next": page["next"], "helens": found.helens, "silent": found.silent}


def given(**arguments: Any) -> Row:
    return {name: value for name, value in arguments.items() if value is not None}


@get("/api/v1/agents", opt={ROLE: VIEWER}, summary="All agents of all Helens")
async def agents(context: Context, limit: Limit = DEFAULT_ROWS, after: After = None) -> MonitoringRows:
    """Rows of `scale0 agents --json`."""
    found = await context.helens("agents", {"all": True})
    return with_helens(paged(known_agents(found.rows), limit, after, lambda row: str(row["agent"])), found)


@get(CHECKS, opt={ROLE: VIEWER}, summary="All checks of all agents, the worst first")
async def checks(
    context: Context,
    agent: Text = None,
    check: Text = None,
    wanted: Annotated[State | None, QueryParameter(name="state")] = None,
    problems: FromQuery[bool] = False,
    limit: Limit = DEFAULT_ROWS,
    after: After = None,
) -> MonitoringRows:
    """Rows of `scale0 checks --json`; `agent` and `check` are globs."""
    found = await context.helens("checks", given(agent=agent, check=check, state=wanted))
    return with_helens(paged(known_checks(found.rows, problems), limit, after, worst_key), found)


def worst_key(row: Row) -> str:
    """The order of checks: the worst first, then by name."""
    return f"{WORST_FIRST.get(row['state'], 1)} {row['agent']}/{row['check']}"


@post(CHECKS + "/{agent:str}/{check:str}/run", opt={ROLE: OPERATOR}, status_code=200, summary="Run a check now")
async def run(
    context: Context, agent: FromPath[str], check: FromPath[str], data: JSONBody[RunCheckBody | None] = None
) -> dict[str, Any]:
    """The result: state, message, metrics, started, seconds."""
    data = data or RunCheckBody()
    if not await context.helen_names():
        raise ApiProblem(404, "no Helen is connected", "`scale0 up` starts one; else: scale0 helen --config FILE")
    body: Row = {"agent": agent, "check": check, "timeout": data.timeout}
    if data.args:
        body["args"] = data.args
    return await context.change("run_check", body=body, timeout=data.timeout + GRACE_SECONDS)


@get("/api/v1/incidents", opt={ROLE: VIEWER}, summary="Incidents, the newest first")
async def incidents(
    context: Context,
    is_open: Annotated[bool, QueryParameter(name="open", description="Only open incidents; false: all.")] = True,
    agent: Text = None,
    check: Text = None,
    limit: Limit = DEFAULT_ROWS,
    after: After = None,
) -> MonitoringRows:
    """Rows of `scale0 incidents --json`; with `open=false`, closed incidents too."""
    found = await context.helens("incidents", {"open": is_open, **given(agent=agent, check=check)}, MAX_INCIDENTS)
    rows = known_incidents(found.rows)
    return with_helens(paged(rows, limit, after, lambda row: f"{TIME_DIGITS - row['opened']:.6f} {row['id']}"), found)


HANDLERS: Final[list[HTTPRouteHandler]] = [agents, checks, run, incidents]

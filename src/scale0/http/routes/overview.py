"""The overview: the state of the whole network, problems first. `client.admin.health` evaluates it.

A Helen that does not answer is part of the result. The result is cached for OVERVIEW_SECONDS.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final, cast

from litestar import get
from litestar.handlers import HTTPRouteHandler

from scale0.broker.admin.access import VIEWER
from scale0.client.admin.health import LOOK_TASKS, OK, NetworkSnapshot, found_in, parts
from scale0.client.admin.rows import Row, known_agents, known_checks, known_incidents
from scale0.http.auth.authorization import ROLE
from scale0.http.request_context import Context, RequestContext
from scale0.http.routes.brokers import brokers_of
from scale0.http.routes.monitoring import MAX_INCIDENTS

OVERVIEW_SECONDS: Final = 1.0
STATES: Final = ("ok", "warning", "critical", "unknown")
"""The states of a check."""


@get("/api/v1/overview", opt={ROLE: VIEWER}, summary="The state of the whole network, problems first")
async def overview(context: Context) -> dict[str, Any]:
    """The broker's status, the health of every part, the problems, rates and counts."""
    return await context.broker.cache.get("overview", OVERVIEW_SECONDS, lambda: gathered(context))


async def gathered(context: RequestContext) -> dict[str, Any]:
    of_broker = asyncio.gather(
        context.read("status"),
        brokers_of(context),
        context.rows("list_services"),
        context.rows("list_queues"),
        queued_tasks(context),
    )
    of_helens = asyncio.gather(
        context.helens("agents", {"all": True}),
        context.helens("checks", {}),
        context.helens("incidents", {"open": True}, MAX_INCIDENTS),
    )
    (status, brokers, services, queues, tasks), (agents, checks, incidents) = await asyncio.gather(of_broker, of_helens)
    snapshot = NetworkSnapshot(
        status=status,
        peers=brokers[1:],
        services=[{**row, "rates": context.sampler.rates(row["service"])} for row in services],
        queues=queues,
        tasks=tasks,
        agents=known_agents(agents.rows),
        checks=known_checks(checks.rows, problems=False),
        incidents=known_incidents(incidents.rows),
        silent=sorted({*agents.silent, *checks.silent, *incidents.silent}),
        watched=bool(agents.helens),
    )
    found = found_in(snapshot)
    return {
        "time": time.time(),
        "broker": status,
        "health": parts(snapshot, found),
        "attention": [one for one in found if one.severity != OK],
        "rates": context.sampler.rates(),
        "counts": {**counts(snapshot), "brokers": len(brokers), "helens": len(agents.helens)},
    }


async def queued_tasks(context: RequestContext) -> list[Row] | None:
    """The newest queued tasks; None while the database is unavailable."""
    if (await context.read("status")).get("outage"):
        return None
    return cast("list[Row]", (await context.read("list_tasks", status="queued", limit=LOOK_TASKS))["items"])


def counts(snapshot: NetworkSnapshot) -> dict[str, Any]:
    status, checks, agents = snapshot.status or {}, snapshot.checks or (), snapshot.agents or ()
    return {
        "brokers_lost": sum(row["state"] == "lost" for row in snapshot.peers or ()),
        "clients": status["clients"],
        "services": len(snapshot.services or ()),
        "error_clients": status["error_clients"],
        "requests": status["requests"],
        "tasks": status["tasks"],
        "agents": len(agents),
        "agents_away": sum(row["state"] == "away" for row in agents),
        "checks": {state: sum(row["state"] == state for row in checks) for state in STATES},
        "incidents_open": len(snapshot.incidents or ()),
    }


HANDLERS: Final[list[HTTPRouteHandler]] = [overview]

"""The overview: everything on one page, what is wrong first.

Lives here: gathering the facts. Never here: judging them (`client.admin.health`). Invariant: whoever does not answer is
part of the answer; readers share one look for OVERVIEW_SECONDS.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from litestar import get
from litestar.handlers import HTTPRouteHandler

from scale0.broker.admin.access import VIEWER
from scale0.client.admin.health import LOOK_TASKS, OK, NetworkSnapshot, found_in, parts
from scale0.client.admin.rows import known_agents, known_checks, known_incidents
from scale0.http.auth.authorization import ROLE
from scale0.http.request_context import MAX_ROWS, At, RequestContext
from scale0.http.routes.brokers import brokers_of
from scale0.http.routes.monitoring import MAX_INCIDENTS

OVERVIEW_SECONDS: Final = 1.0
STATES: Final = ("ok", "warning", "critical", "unknown")
"""Of a check."""


@get("/api/v1/overview", opt={ROLE: VIEWER}, summary="Everything on one page, what is wrong first")
async def overview(desk: At) -> dict[str, Any]:
    """The broker's status, the health of every part, what needs attention, rates and counts."""
    found: dict[str, Any] = await desk.network.snapshots.get("overview", OVERVIEW_SECONDS, lambda: looked(desk))
    return found


async def looked(desk: RequestContext) -> dict[str, Any]:
    """One look."""
    status, brokers, services, queues, tasks, agents, checks, incidents = await asyncio.gather(
        desk.read("status"),
        brokers_of(desk),
        desk.rows("list_services"),
        desk.read("list_queues", limit=MAX_ROWS),
        desk.read("list_tasks", status="queued", limit=LOOK_TASKS),
        desk.helens("agents", {"all": True}),
        desk.helens("checks", {}),
        desk.helens("incidents", {"open": True}, MAX_INCIDENTS),
    )
    seen = NetworkSnapshot(
        status=status,
        peers=brokers[1:],
        services=[{**row, "rates": desk.sampler.rates(row["service"])} for row in services],
        queues=queues["items"],
        tasks=tasks["items"],
        agents=known_agents(agents.rows),
        checks=known_checks(checks.rows, problems=False),
        incidents=known_incidents(incidents.rows),
        silent=sorted({*agents.silent, *checks.silent, *incidents.silent}),
        watched=bool(agents.helens),
    )
    found = found_in(seen)
    return {
        "time": time.time(),
        "broker": status,
        "health": parts(seen, found),
        "attention": [one for one in found if one.severity != OK],
        "rates": desk.sampler.rates(),
        "counts": {**counts(seen), "brokers": len(brokers), "helens": len(agents.helens)},
    }


def counts(seen: NetworkSnapshot) -> dict[str, Any]:
    """How many there are of everything."""
    status, checks, agents = seen.status or {}, seen.checks or (), seen.agents or ()
    return {
        "brokers_lost": sum(row["state"] == "lost" for row in seen.peers or ()),
        "clients": status["clients"],
        "services": len(seen.services or ()),
        "error_clients": status["error_clients"],
        "requests": status["requests"],
        "tasks": status["tasks"],
        "agents": len(agents),
        "agents_away": sum(row["state"] == "away" for row in agents),
        "checks": {state: sum(row["state"] == state for row in checks) for state in STATES},
        "incidents_open": len(seen.incidents or ()),
    }


HANDLERS: Final[list[HTTPRouteHandler]] = [overview]

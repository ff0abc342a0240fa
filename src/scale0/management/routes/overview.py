"""The overview: everything on one page, what is wrong first.

Lives here: gathering the facts. Never here: judging them (`health`). Invariant: whoever does not answer is part of the
answer; readers share one look for OVERVIEW_SECONDS.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from litestar import get
from litestar.handlers import HTTPRouteHandler

from scale0.broker.access import VIEWER
from scale0.client.shown import known_agents, known_checks, known_incidents
from scale0.management.access.guard import ROLE
from scale0.management.desk import MAX_ROWS, At, Desk
from scale0.management.health import Facts, counts, judged
from scale0.management.routes.brokers import brokers_of
from scale0.management.routes.watching import MAX_INCIDENTS

OVERVIEW_SECONDS: Final = 1.0


@get("/api/v1/overview", opt={ROLE: VIEWER}, summary="Everything on one page, what is wrong first")
async def overview(desk: At) -> dict[str, Any]:
    """The broker's status, the health of every part, what needs attention, rates and counts."""
    found: dict[str, Any] = await desk.network.snapshots.get("overview", OVERVIEW_SECONDS, lambda: looked(desk))
    return found


async def looked(desk: Desk) -> dict[str, Any]:
    """One look."""
    status, brokers, services, queues, agents, checks, incidents = await asyncio.gather(
        desk.read("status"),
        brokers_of(desk),
        desk.rows("list_services"),
        desk.read("list_queues", limit=MAX_ROWS),
        desk.helens("agents", {"all": True}),
        desk.helens("checks", {}),
        desk.helens("incidents", {"open": True}, MAX_INCIDENTS),
    )
    facts = Facts(
        status=status,
        brokers=brokers,
        services=services,
        queues=queues["items"],
        rates=desk.sampler.rates(),
        helens=agents.helens,
        silent=sorted({*agents.silent, *checks.silent, *incidents.silent}),
        agents=known_agents(agents.rows),
        checks=known_checks(checks.rows, problems=False),
        incidents=known_incidents(incidents.rows),
    )
    health, attention = judged(facts)
    return {
        "time": time.time(),
        "broker": status,
        "health": health,
        "attention": attention,
        "rates": facts.rates,
        "counts": counts(facts),
    }


HANDLERS: Final[list[HTTPRouteHandler]] = [overview]

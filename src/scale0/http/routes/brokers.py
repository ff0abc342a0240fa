"""Brokers, groups, how they hang together, and the state of the one that this server stands at.

Lives here: rows of `scale0.brokers` and what follows from them. Never here: a command to another broker; its own server
gives it, so that its own log has it.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from scale0.broker.admin.access import OPERATOR, VIEWER
from scale0.client.admin.rows import brokers_in_order, group_rows, offered_at
from scale0.http.auth.authorization import ROLE
from scale0.http.problem import ApiProblem
from scale0.http.request_context import DEFAULT_ROWS, After, At, Limit, ListPage, RequestContext, Row, paged

BROKERS: Final = "/api/v1/brokers"
BROKERS_SECONDS: Final = 1.0
"""How old the list of brokers may be that several readers share."""
COMMANDS: Final = {"enable": "enable", "disable": "disable", "drain": "drain", "reload": "reload_config"}
UP: Final = "up"
DOWN: Final = "down"


async def brokers_of(desk: RequestContext) -> list[Row]:
    """The broker that this server stands at, then the others by name."""

    async def asked() -> list[Row]:
        found = await desk.network.call("scale0.brokers")
        return brokers_in_order(found["items"])

    rows: list[Row] = await desk.network.snapshots.get("brokers", BROKERS_SECONDS, asked)
    return rows


@get(BROKERS, opt={ROLE: VIEWER}, summary="Every broker that ours knows, itself first")
async def brokers(desk: At, limit: Limit = DEFAULT_ROWS, after: After = None) -> ListPage:
    """Rows of `scale0 peers --json`."""
    rows = await brokers_of(desk)
    own = rows[0]["broker"]
    return paged(rows, limit, after, lambda row: f"{int(row['broker'] != own)} {row['broker']}")


@get("/api/v1/groups", opt={ROLE: VIEWER}, summary="Every group of brokers")
async def groups(desk: At, limit: Limit = DEFAULT_ROWS, after: After = None) -> ListPage:
    """Rows of `scale0 groups --json`."""
    return paged(group_rows(await brokers_of(desk)), limit, after, lambda row: f"g {row['group']}")


@get("/api/v1/topology", opt={ROLE: VIEWER}, summary="Brokers, their groups, links and services")
async def topology(desk: At) -> dict[str, Any]:
    """What the console draws: links are those that the broker that was asked has."""
    rows = await brokers_of(desk)
    own = rows[0]["broker"]
    links = [
        {"from": own, "to": row["broker"], "state": DOWN if row["state"] == "lost" else UP, "age": row["age"]}
        for row in rows[1:]
    ]
    services = offered_at(await desk.rows("list_services"))
    return {"brokers": rows, "groups": group_rows(rows), "links": links, "services": services}


@post(BROKERS + "/{broker:str}/{command:str}", opt={ROLE: OPERATOR}, status_code=200, summary="Change a broker's state")
async def command(
    desk: At, broker: FromPath[str], command: FromPath[Literal["enable", "disable", "drain", "reload"]]
) -> dict[str, Any]:
    """Enable, disable, drain, or have it read its file again: the broker that this server stands at."""
    own = (await desk.network.call("scale0.ping"))["broker"]
    if broker != own:
        raise await elsewhere(desk, broker)
    return await desk.change(COMMANDS[command])


async def elsewhere(desk: RequestContext, broker: str) -> ApiProblem:
    """What somebody hears who means another broker, or none."""
    rows = await brokers_of(desk)
    for row in rows:
        if row["broker"] == broker:
            place = row["endpoints"].get("frontend") or "an address that is not known here"
            return ApiProblem(
                409,
                f"this server stands at {rows[0]['broker']}, and {broker} is at {place}",
                f"use that broker's own server, or there: `scale0 drain {broker} --join {place}`",
            )
    return ApiProblem(404, f"there is no broker {broker[:100]}", "GET /api/v1/brokers lists them")


HANDLERS: Final[list[HTTPRouteHandler]] = [brokers, groups, topology, command]

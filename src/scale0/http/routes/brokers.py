"""Brokers, groups, the topology, and commands to the broker of this server.

A command to another broker must go to that broker's own server, so that its own log records it.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from scale0.broker.admin.access import OPERATOR, VIEWER
from scale0.client.admin.rows import Row, brokers_in_order, group_rows, offered_at
from scale0.http.auth.authorization import ROLE
from scale0.http.problem import ApiProblem
from scale0.http.request_context import DEFAULT_ROWS, After, Context, Limit, ListPage, RequestContext, paged

BROKERS: Final = "/api/v1/brokers"
BROKERS_SECONDS: Final = 1.0
"""How old the cached list of brokers may be."""
COMMANDS: Final = {"enable": "enable", "disable": "disable", "drain": "drain", "reload": "reload_config"}
UP: Final = "up"
DOWN: Final = "down"


async def brokers_of(context: RequestContext) -> list[Row]:
    """The broker of this server, then the others by name."""

    async def ask() -> list[Row]:
        found = await context.broker.call("scale0.brokers")
        return brokers_in_order(found["items"])

    return await context.broker.cache.get("brokers", BROKERS_SECONDS, ask)


@get(BROKERS, opt={ROLE: VIEWER}, summary="All known brokers; the broker of this server is the first")
async def brokers(context: Context, limit: Limit = DEFAULT_ROWS, after: After = None) -> ListPage:
    """Rows of `scale0 peers --json`."""
    rows = await brokers_of(context)
    own = rows[0]["broker"]
    return paged(rows, limit, after, lambda row: f"{int(row['broker'] != own)} {row['broker']}")


@get("/api/v1/groups", opt={ROLE: VIEWER}, summary="All groups of brokers")
async def groups(context: Context, limit: Limit = DEFAULT_ROWS, after: After = None) -> ListPage:
    """Rows of `scale0 groups --json`."""
    return paged(group_rows(await brokers_of(context)), limit, after, lambda row: f"g {row['group']}")


@get("/api/v1/topology", opt={ROLE: VIEWER}, summary="Brokers, their groups, links and services")
async def topology(context: Context) -> dict[str, Any]:
    """The links are those of the broker of this server."""
    rows = await brokers_of(context)
    own = rows[0]["broker"]
    links = [
        {"from": own, "to": row["broker"], "state": DOWN if row["state"] == "lost" else UP, "age": row["age"]}
        for row in rows[1:]
    ]
    services = offered_at(await context.rows("list_services"))
    return {"brokers": rows, "groups": group_rows(rows), "links": links, "services": services}


@post(BROKERS + "/{broker:str}/{command:str}", opt={ROLE: OPERATOR}, status_code=200, summary="Change a broker's state")
async def command(
    context: Context, broker: FromPath[str], command: FromPath[Literal["enable", "disable", "drain", "reload"]]
) -> dict[str, Any]:
    """Enable, disable or drain the broker of this server, or reload its configuration file."""
    own = (await context.broker.call("scale0.ping"))["broker"]
    if broker != own:
        raise await wrong_broker(context, broker)
    return await context.change(COMMANDS[command])


async def wrong_broker(context: RequestContext, broker: str) -> ApiProblem:
    """The error for a command to another broker, or to an unknown one."""
    rows = await brokers_of(context)
    for row in rows:
        if row["broker"] == broker:
            endpoint = row["endpoints"].get("frontend") or "an unknown address"
            return ApiProblem(
                409,
                f"this is the server of {rows[0]['broker']}; {broker} is at {endpoint}",
                f"use the server of {broker}, or run on its machine: `scale0 drain {broker} --join {endpoint}`",
            )
    return ApiProblem(404, f"there is no broker {broker[:100]}", "GET /api/v1/brokers lists them")


HANDLERS: Final[list[HTTPRouteHandler]] = [brokers, groups, topology, command]

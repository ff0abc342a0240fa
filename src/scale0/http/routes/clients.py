"""Clients, services, queues, error clients, and how fast it all goes.

Lives here: rows of the broker, filtered and paged. Never here: a guess; rates are what the sampler saw.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery, QueryParameter

from scale0.broker.admin.access import OPERATOR, VIEWER
from scale0.http.auth.authorization import ROLE
from scale0.http.request_context import DEFAULT_ROWS, MAX_TEXT_CHARS, After, At, Limit, ListPage, Text, matching, paged


@get("/api/v1/clients", opt={ROLE: VIEWER}, summary="Every client of the broker")
async def clients(
    desk: At,
    role: FromQuery[Literal["backend", "frontend"] | None] = None,
    match: Text = None,
    limit: Limit = DEFAULT_ROWS,
    after: After = None,
) -> ListPage:
    """Rows of `scale0 clients --json`; `match` is a glob or a part of the identity."""
    if role is None and match is None:
        return await desk.page("list_clients", limit, after)
    rows = [row for row in await desk.rows("list_clients") if role in (None, row["role"])]
    return paged(matching(rows, match, "identity"), limit, after, lambda row: f"{row['identity']} {row['role']}")


@get("/api/v1/services", opt={ROLE: VIEWER}, summary="Every service of the network, with its rates")
async def services(desk: At, match: Text = None, limit: Limit = DEFAULT_ROWS, after: After = None) -> ListPage:
    """Rows of `scale0 services --json`, each with what the last seconds were like."""
    if match is None:
        page = await desk.page("list_services", limit, after)
    else:
        rows = matching(await desk.rows("list_services"), match, "service")
        page = paged(rows, limit, after, lambda row: str(row["service"]))
    rated = [{**row, "rates": desk.sampler.rates(row["service"])} for row in page["items"]]
    return {"items": rated, "next": page["next"]}


@get("/api/v1/queues", opt={ROLE: VIEWER}, summary="What waits, and who is handed work next")
async def queues(desk: At, limit: Limit = DEFAULT_ROWS, after: After = None) -> ListPage:
    """Each service's backends in the order in which they are handed work."""
    return await desk.page("list_queues", limit, after)


@get("/api/v1/series", opt={ROLE: VIEWER}, summary="The last five minutes, second by second")
async def series(
    desk: At,
    service: Annotated[
        str | None, QueryParameter(min_length=1, max_length=MAX_TEXT_CHARS, description="Blank: all together.")
    ] = None,
) -> dict[str, Any]:
    """One service, or all together."""
    return desk.sampler.series(service)


@get("/api/v1/error-clients", opt={ROLE: VIEWER}, summary="Clients that are ignored for what they sent")
async def error_clients(desk: At, limit: Limit = DEFAULT_ROWS, after: After = None) -> ListPage:
    """Who they are, and for how long yet."""
    return await desk.page("list_error_clients", limit, after)


@post("/api/v1/error-clients/{client:str}/forgive", opt={ROLE: OPERATOR}, status_code=200, summary="Listen again")
async def forgive(desk: At, client: FromPath[str]) -> dict[str, Any]:
    """Listen to an error client again."""
    return await desk.change("forgive", client=client)


HANDLERS: Final[list[HTTPRouteHandler]] = [clients, services, queues, series, error_clients, forgive]

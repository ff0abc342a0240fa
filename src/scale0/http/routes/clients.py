"""Clients, services, queues, error clients, and rates."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery, QueryParameter

from scale0.broker.admin.access import OPERATOR, VIEWER
from scale0.http.auth.authorization import ROLE
from scale0.http.request_context import (
    DEFAULT_ROWS,
    MAX_TEXT_CHARS,
    After,
    Context,
    Limit,
    ListPage,
    Text,
    matching,
    paged,
)


@get("/api/v1/clients", opt={ROLE: VIEWER}, summary="All clients of the broker")
async def clients(
    context: Context,
    role: FromQuery[Literal["backend", "frontend"] | None] = None,
    match: Text = None,
    limit: Limit = DEFAULT_ROWS,
    after: After = None,
) -> ListPage:
    """Rows of `scale0 clients --json`; `match` is a glob or a substring of the identity."""
    if role is None and match is None:
        return await context.page("list_clients", limit, after)
    rows = [row for row in await context.rows("list_clients") if role in (None, row["role"])]
    return paged(matching(rows, match, "identity"), limit, after, lambda row: f"{row['identity']} {row['role']}")


@get("/api/v1/services", opt={ROLE: VIEWER}, summary="All services of the network, with their rates")
async def services(context: Context, match: Text = None, limit: Limit = DEFAULT_ROWS, after: After = None) -> ListPage:
    """Rows of `scale0 services --json`, each with the rates of the last ten seconds."""
    if match is None:
        page = await context.page("list_services", limit, after)
    else:
        rows = matching(await context.rows("list_services"), match, "service")
        page = paged(rows, limit, after, lambda row: str(row["service"]))
    rated = [{**row, "rates": context.sampler.rates(row["service"])} for row in page["items"]]
    return {"items": rated, "next": page["next"]}


@get("/api/v1/queues", opt={ROLE: VIEWER}, summary="Waiting requests, and the order of the backends")
async def queues(context: Context, limit: Limit = DEFAULT_ROWS, after: After = None) -> ListPage:
    """The backends of each service, in the order in which they get work."""
    return await context.page("list_queues", limit, after)


@get("/api/v1/series", opt={ROLE: VIEWER}, summary="Rates of the last five minutes, second by second")
async def series(
    context: Context,
    service: Annotated[
        str | None,
        QueryParameter(min_length=1, max_length=MAX_TEXT_CHARS, description="If absent: all services together."),
    ] = None,
) -> dict[str, Any]:
    return context.sampler.series(service)


@get("/api/v1/error-clients", opt={ROLE: VIEWER}, summary="Clients that are ignored because of invalid input")
async def error_clients(context: Context, limit: Limit = DEFAULT_ROWS, after: After = None) -> ListPage:
    """Each with the time until it is accepted again."""
    return await context.page("list_error_clients", limit, after)


@post(
    "/api/v1/error-clients/{client:str}/forgive", opt={ROLE: OPERATOR}, status_code=200, summary="Accept a client again"
)
async def forgive(context: Context, client: FromPath[str]) -> dict[str, Any]:
    return await context.change("forgive", client=client)


HANDLERS: Final[list[HTTPRouteHandler]] = [clients, services, queues, series, error_clients, forgive]

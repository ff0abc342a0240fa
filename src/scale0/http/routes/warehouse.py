"""Reports and tables of the warehouse."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from typing import Annotated, Any, Final

import msgspec
from litestar import MediaType, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, QueryParameter

from scale0.broker.admin.access import VIEWER
from scale0.http.auth.authorization import ROLE
from scale0.http.problem import ApiProblem
from scale0.http.request_context import DEFAULT_ROWS, After, Context, Limit, ListPage, Text
from scale0.http.thread_pool import ThreadPoolBusy, ThreadPoolTimeout
from scale0.http.validation import duration_us, time_us
from scale0.http.warehouse import Unavailable, WarehouseQuery, reports

REPORTS: Final = "/api/v1/reports"
WAREHOUSE: Final = "/api/v1/warehouse"
BUSY_SECONDS: Final = 5.0
STATUS_OF: Final = {"not_installed": 501, "absent": 404, "unknown": 404, "stale": 409, "broken": 503}

Span = Annotated[str | None, QueryParameter(min_length=1, max_length=8, description="A duration: 12h, 30d, 4w.")]
From = Annotated[
    str | None,
    QueryParameter(name="from", min_length=1, max_length=40, description="2026-11-01, or 7d for seven days ago."),
]
To = Annotated[str | None, QueryParameter(name="to", min_length=1, max_length=40, description="Exclusive.")]

Json = Response[dict[str, Any]]


@get(REPORTS, opt={ROLE: VIEWER}, summary="All reports")
async def report_list(context: Context) -> ListPage:
    """Their names, descriptions and filters."""
    return {"items": reports(), "next": None}


@get(REPORTS + "/{name:str}", opt={ROLE: VIEWER}, summary="A report")
async def report(
    context: Context,
    name: FromPath[str],
    last: Span = None,
    starts: From = None,
    ends: To = None,
    subject: Text = None,
    service: Text = None,
    method: Text = None,
    agent: Text = None,
    check: Text = None,
) -> Json:
    """As `scale0 report NAME --format json`; of the last 30 days by default."""
    given = {"subject": subject, "service": service, "method": method, "agent": agent, "check": check}
    filters = {key: value for key, value in given.items() if value is not None}
    return await answered(context.sources.warehouse.report(name, period_of(last, starts, ends), filters))


@get(WAREHOUSE, opt={ROLE: VIEWER}, summary="All tables")
async def table_list(context: Context) -> Json:
    """Their names and columns, and the time up to which they are complete."""
    return await answered(context.sources.warehouse.tables())


@get(WAREHOUSE + "/{table:str}", opt={ROLE: VIEWER}, summary="Rows of a table")
async def rows(
    context: Context,
    table: FromPath[str],
    starts: From = None,
    ends: To = None,
    limit: Limit = DEFAULT_ROWS,
    after: After = None,
) -> Json:
    """With `from` and `to`, the rows of the hours or days that overlap the period."""
    return await answered(context.sources.warehouse.rows(table, limit, after, period_of(None, starts, ends)))


def period_of(last: str | None, starts: str | None, ends: str | None) -> WarehouseQuery:
    """The period of a request. Raises `ApiProblem`."""
    now_us = time.time_ns() // 1_000
    from_us, to_us = (None if text is None else time_us(text, now_us) for text in (starts, ends))
    if from_us is not None and to_us is not None and from_us >= to_us:
        raise ApiProblem(400, "`from` must be before `to`", "for example from=2026-11-01&to=2026-11-08")
    return WarehouseQuery(from_us, to_us, None if last is None else duration_us(last))


async def answered(work: Awaitable[bytes]) -> Json:
    """The answer of the warehouse, with its errors as `ApiProblem`."""
    try:
        body: Any = msgspec.Raw(await work)
    except Unavailable as error:
        raise ApiProblem(STATUS_OF[error.sort], str(error), error.next) from None
    except ThreadPoolBusy as error:
        raise ApiProblem(429, str(error), retry_after=BUSY_SECONDS) from None
    except ThreadPoolTimeout as error:
        raise ApiProblem(504, str(error), "choose a shorter period") from None
    return Response(body, media_type=MediaType.JSON)


HANDLERS: Final[list[HTTPRouteHandler]] = [report_list, report, table_list, rows]

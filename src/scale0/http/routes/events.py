"""Events: pages, the live stream, the audit log, the timeline of a task and the series of a check.

Every item of a stream carries the cursor as its id, and so do the keep-alives.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any, Final, TypeVar

import msgspec
from litestar import Request, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, QueryParameter
from litestar.response import Stream
from typing_extensions import TypedDict

from scale0.broker.admin.access import VIEWER
from scale0.history.segments.reader import EventFilter
from scale0.http.auth.authorization import ROLE
from scale0.http.events.check_series import CheckSeries, series_of
from scale0.http.events.event_index import MAX_CURSOR_CHARS, InvalidCursor, parse_cursor
from scale0.http.events.pages import SHOWN_KINDS, EventPage, page_of
from scale0.http.events.stream import EventStream, StreamItem, StreamSubscriber, TooManySubscribers
from scale0.http.events.task_timeline import TaskTimeline, timeline_of
from scale0.http.problem import ApiProblem
from scale0.http.request_context import DEFAULT_ROWS, Context, Limit, RequestContext
from scale0.http.thread_pool import ThreadPoolBusy, ThreadPoolTimeout
from scale0.http.validation import time_us
from scale0.kernel.log_context import about

log = logging.getLogger("scale0.http")

EVENTS: Final = "/api/v1/events"
KEEP_ALIVE_SECONDS: Final = 15.0
"""An idle stream sends a keep-alive after this time, because proxies close idle connections."""
ACCESS_SECONDS: Final = 5.0
"""How often a stream checks that the token of its reader is still valid."""
RETRY_MS: Final = 1_000
"""How soon a browser reconnects."""
BUSY_SECONDS: Final = 5.0
"""When a refused client may try again."""
SERIES_SECONDS: Final = 5.0
"""How old a cached series may be."""
LAST_EVENT_ID: Final = "last-event-id"

After = Annotated[
    str | None,
    QueryParameter(min_length=1, max_length=MAX_CURSOR_CHARS, description="`next` of the previous page."),
]
Id = Annotated[
    str | None,
    QueryParameter(
        min_length=1, max_length=MAX_CURSOR_CHARS, description="The id of the last event that the client has."
    ),
]
Glob = Annotated[str, QueryParameter(max_length=256, description="A glob: *, ? and [ab].")]
Exact = Annotated[str, QueryParameter(max_length=256)]
Since = Annotated[
    str | None, QueryParameter(min_length=1, max_length=40, description="2h, 2026-11-01 or 2026-11-01T12:30.")
]
Result = TypeVar("Result")


class EventGap(TypedDict):
    """Events that have expired, or that cannot be read."""

    source: str
    first: int
    last: int
    reason: str


class Events(TypedDict):
    """A page, the newest event first. It may be short or empty and still have a next one."""

    items: list[dict[str, Any]]
    next: str | None
    gaps: list[EventGap]


@get(EVENTS, opt={ROLE: VIEWER}, summary="Events, the newest first")
async def events(
    context: Context,
    kind: Glob = "",
    identity: Glob = "",
    service: Glob = "",
    source: Glob = "",
    ref: Exact = "",
    since: Since = None,
    limit: Limit = DEFAULT_ROWS,
    after: After = None,
) -> Events:
    """Rows of `scale0 events tail --json`."""
    filter_ = EventFilter(
        kind=kind, identity=identity, service=service, source=source, ref=ref, since_us=since_us(since)
    )
    return await paged(context, filter_, limit, after)


@get("/api/v1/audit", opt={ROLE: VIEWER}, summary="The audit log, the newest entry first")
async def audit(
    context: Context, identity: Glob = "", since: Since = None, limit: Limit = DEFAULT_ROWS, after: After = None
) -> Events:
    """Management commands, changes of the configuration, and states of the broker."""
    return await paged(
        context, EventFilter(kinds=SHOWN_KINDS, identity=identity, since_us=since_us(since)), limit, after
    )


@get(EVENTS + "/stream", opt={ROLE: VIEWER}, summary="Events as they happen", media_type="text/event-stream")
async def stream(
    request: Request[Any, Any, Any],
    context: Context,
    kind: Glob = "",
    identity: Glob = "",
    service: Glob = "",
    source: Glob = "",
    ref: Exact = "",
    after: Id = None,
) -> Stream:
    """Server-sent events: `event`, `gap` (lost events), `here` (keep-alive) and `dropped` (reconnect).

    With Last-Event-ID or `after`, the stream continues after that event; otherwise it begins now.
    """
    filter_ = EventFilter(kind=kind, identity=identity, service=service, source=source, ref=ref)
    source_events = context.sources.events
    known = request.headers.get(LAST_EVENT_ID) or after
    try:
        cursor = None if known is None else cursor_of(known)
        subscriber = await source_events.subscribe(filter_, cursor, context.caller.name)
    except TooManySubscribers as error:
        raise ApiProblem(429, str(error), retry_after=BUSY_SECONDS) from None
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return Stream(frames(source_events, subscriber, context), media_type="text/event-stream", headers=headers)


async def frames(events: EventStream, subscriber: StreamSubscriber, context: RequestContext) -> AsyncIterator[bytes]:
    """The server-sent events, until the client disconnects or its token is no longer valid."""
    loop = asyncio.get_running_loop()
    sent = checked = loop.time()
    try:
        yield f"retry: {RETRY_MS}\n{keep_alive(subscriber)}".encode()
        while not subscriber.is_over:
            items = await subscriber.take(ACCESS_SECONDS)
            now = loop.time()
            if items:
                yield b"".join(map(frame, items))
                sent = now
            elif now - sent >= KEEP_ALIVE_SECONDS:
                # With the cursor, so that a reader with a narrow filter does not scan the same events again.
                yield keep_alive(subscriber).encode()
                sent = now
            if now - checked >= ACCESS_SECONDS:
                checked = now
                if not await is_authorized(context):
                    subscriber.drop("access")
    finally:
        events.unsubscribe(subscriber)


def keep_alive(subscriber: StreamSubscriber) -> str:
    """The cursor of a reader. It has data, because a browser ignores the id of an event without data."""
    return f"id: {subscriber.id}\nevent: here\ndata: {{}}\n\n"


async def is_authorized(context: RequestContext) -> bool:
    """False once the token has expired or was revoked; True if the broker does not answer."""
    caller = context.caller
    try:
        await context.authentication.user_of(caller.token, caller.by_cookie, caller.origin)
    except ApiProblem as problem:
        return problem.status not in (401, 403)
    return True


def frame(item: StreamItem) -> bytes:
    """One server-sent event; its data is one line."""
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (item.id.encode(), item.kind.encode(), item.data)


@get("/api/v1/tasks/{task_id:str}/timeline", opt={ROLE: VIEWER}, summary="The timeline of a task, in sentences")
async def timeline(context: Context, task_id: FromPath[str]) -> TaskTimeline:
    """The oldest event first; `unseen` lists what is missing."""
    events = context.sources.events
    found = await reading(lambda: events.read(lambda index: timeline_of(index, task_id)))
    if not found.items:
        await context.read("show_task", task_id=task_id)  # 404 if there is no such task
    return found


@get("/api/v1/checks/{agent:str}/{check:str}/series", opt={ROLE: VIEWER}, summary="The last day of a check")
async def series(context: Context, agent: FromPath[str], check: FromPath[str]) -> CheckSeries:
    """States and metrics, at most 500 points."""
    events = context.sources.events

    async def read() -> CheckSeries:
        return await events.read(lambda index: series_of(index, agent, check))

    key = f"series {msgspec.json.encode([agent, check]).decode()}"
    return await context.broker.cache.get(key, SERIES_SECONDS, lambda: reading(read))


async def paged(context: RequestContext, filter_: EventFilter, limit: int, after: str | None) -> Events:
    events = context.sources.events
    before = None if after is None else cursor_of(after)
    page: EventPage = await reading(lambda: events.read(lambda index: page_of(index, filter_, before, limit)))
    items: list[Any] = [msgspec.Raw(line.text) for line in page.lines]
    gaps: list[EventGap] = [
        {"source": one.source, "first": one.first_seq, "last": one.last_seq, "reason": one.reason} for one in page.gaps
    ]
    return {"items": items, "next": page.next, "gaps": gaps}


async def reading(work: Callable[[], Awaitable[Result]]) -> Result:
    """The result of `work`, with its errors as `ApiProblem`."""
    try:
        return await work()
    except ThreadPoolBusy as error:
        raise ApiProblem(429, str(error), retry_after=BUSY_SECONDS) from None
    except ThreadPoolTimeout as error:
        raise ApiProblem(504, str(error), "choose a kind, a source, or a shorter period") from None
    except OSError as error:  # a disk or an object store that is not reachable
        log.warning("cannot read segments: %s", error, extra=about())
        raise ApiProblem(
            503, "the segments cannot be read now", "check their location, and see the server's log"
        ) from None


def cursor_of(text: str) -> dict[str, int]:
    """The cursor that a client sent. Raises `ApiProblem`."""
    try:
        return parse_cursor(text)
    except InvalidCursor as error:
        raise ApiProblem(400, str(error), "send the `id` of an event, or the `next` of a page, unchanged") from None


def since_us(text: str | None) -> int | None:
    return None if text is None else time_us(text, time.time_ns() // 1_000)


HANDLERS: Final[list[HTTPRouteHandler]] = [events, audit, stream, timeline, series]

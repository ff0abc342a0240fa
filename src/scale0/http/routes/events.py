"""Events: page by page, as a live stream, as an audit, as a task's story and as a check's series.

Lives here: queries to choices, and items to server-sent events. Never here: how an event is found. Invariants: a stream
says where its reader stands with every item, and now and then when nothing happens; it ends with its client.
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
from scale0.http.data_sources import readings_of
from scale0.http.events import cursor
from scale0.http.events.check_series import CheckSeries, series_of
from scale0.http.events.pages import AUDIT_KINDS, EventPage, page_of
from scale0.http.events.stream import EventStream, TooManySubscribers
from scale0.http.events.subscriber import StreamItem, StreamSubscriber
from scale0.http.events.task_timeline import TaskTimeline, story_of
from scale0.http.problem import ApiProblem
from scale0.http.request_context import DEFAULT_ROWS, At, Limit, RequestContext
from scale0.http.thread_pool import ThreadPoolBusy, ThreadPoolTimeout
from scale0.http.time_parsing import moment_us
from scale0.kernel.log_context import about

EVENTS: Final = "/api/v1/events"
KEEP_ALIVE_SECONDS: Final = 15.0
"""After so much silence a stream says that it lives; proxies cut what is silent for longer."""
ACCESS_SECONDS: Final = 5.0
"""How often a stream asks whether who reads it still may."""
RETRY_MS: Final = 1_000
"""How soon a browser comes back whose stream was cut."""
BUSY_SECONDS: Final = 5.0
"""When to try again."""
SERIES_SECONDS: Final = 5.0
"""How old a series may be that several readers share."""
LAST_EVENT_ID: Final = "last-event-id"

After = Annotated[
    str | None,
    QueryParameter(min_length=1, max_length=cursor.MAX_TEXT, description="`next` of the page before."),
]
Id = Annotated[
    str | None,
    QueryParameter(min_length=1, max_length=cursor.MAX_TEXT, description="The id of the last event that is known."),
]
Glob = Annotated[str, QueryParameter(max_length=256, description="A glob: *, ? and [ab].")]
Exact = Annotated[str, QueryParameter(max_length=256)]
Since = Annotated[
    str | None, QueryParameter(min_length=1, max_length=40, description="2h, 2026-11-01 or 2026-11-01T12:30.")
]
Result = TypeVar("Result")


class EventGap(TypedDict):
    """Events that are too old to be kept, or cannot be read."""

    source: str
    first: int
    last: int
    reason: str


class Events(TypedDict):
    """A page: the newest first. It may be short, or empty, and still have a next one."""

    items: list[dict[str, Any]]
    next: str | None
    gaps: list[EventGap]


@get(EVENTS, opt={ROLE: VIEWER}, summary="Events, the newest first")
async def events(
    desk: At,
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
    choice = EventFilter(
        kind=kind, identity=identity, service=service, source=source, ref=ref, since_us=since_us(since)
    )
    return await paged(desk, choice, limit, after)


@get("/api/v1/audit", opt={ROLE: VIEWER}, summary="Who changed what, the newest first")
async def audit(
    desk: At, identity: Glob = "", since: Since = None, limit: Limit = DEFAULT_ROWS, after: After = None
) -> Events:
    """Management commands, configurations, and what became of the broker."""
    return await paged(desk, EventFilter(kinds=AUDIT_KINDS, identity=identity, since_us=since_us(since)), limit, after)


@get(EVENTS + "/stream", opt={ROLE: VIEWER}, summary="Events as they happen", media_type="text/event-stream")
async def stream(
    request: Request[Any, Any, Any],
    desk: At,
    kind: Glob = "",
    identity: Glob = "",
    service: Glob = "",
    source: Glob = "",
    ref: Exact = "",
    after: Id = None,
) -> Stream:
    """Server-sent events: `event`, `gap` (what cannot be told), `here` (nothing happened) and `dropped` (come back).

    Last-Event-ID or `after` goes on behind that event; without either it begins now.
    """
    choice = EventFilter(kind=kind, identity=identity, service=service, source=source, ref=ref)
    feed = readings_of(desk.network).feed
    known = request.headers.get(LAST_EVENT_ID) or after
    try:
        listener = await feed.listen(choice, None if known is None else position(known))
    except TooManySubscribers as error:
        raise ApiProblem(429, str(error), retry_after=BUSY_SECONDS) from None
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return Stream(told(feed, listener, desk), media_type="text/event-stream", headers=headers)


async def told(feed: EventStream, listener: StreamSubscriber, desk: RequestContext) -> AsyncIterator[bytes]:
    """A stream, to the end of who listens, or of their right to."""
    loop = asyncio.get_running_loop()
    heard = looked = loop.time()
    try:
        yield f"retry: {RETRY_MS}\n{here(listener)}".encode()
        while not listener.is_over:
            items = await listener.take(ACCESS_SECONDS)
            now = loop.time()
            if items:
                yield b"".join(map(framed, items))
                heard = now
            elif now - heard >= KEEP_ALIVE_SECONDS:
                # With its position: who chose little need not be told of all the rest again.
                yield here(listener).encode()
                heard = now
            if now - looked >= ACCESS_SECONDS:
                looked = now
                if not await may_listen(desk):
                    listener.drop("access")
    finally:
        feed.leave(listener)


def here(listener: StreamSubscriber) -> str:
    """Where the reader stands. With data: a browser keeps the id of an event without to itself."""
    return f"id: {listener.id}\nevent: here\ndata: {{}}\n\n"


async def may_listen(desk: RequestContext) -> bool:
    """False once a token has expired or was revoked; a broker that is away decides nothing."""
    caller = desk.caller
    try:
        await desk.who.ask(caller.token, caller.by_cookie, caller.origin)
    except ApiProblem as problem:
        return problem.status not in (401, 403)
    return True


def framed(item: StreamItem) -> bytes:
    """One server-sent event; its data is one line."""
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (item.id.encode(), item.sort.encode(), item.data)


@get("/api/v1/tasks/{task_id:str}/timeline", opt={ROLE: VIEWER}, summary="What happened to a task, in words")
async def timeline(desk: At, task_id: FromPath[str]) -> TaskTimeline:
    """The oldest first; `unseen` says what is not in it."""
    feed = readings_of(desk.network).feed
    found = await reading(lambda: feed.read(lambda library: story_of(library, task_id)))
    if not found.items:
        await desk.read("show_task", task_id=task_id)  # it says that there is no such task, if there is none
    return found


@get("/api/v1/checks/{agent:str}/{check:str}/series", opt={ROLE: VIEWER}, summary="A check's last day")
async def series(desk: At, agent: FromPath[str], check: FromPath[str]) -> CheckSeries:
    """States and numbers, at most 500 points."""
    network = desk.network
    feed = readings_of(network).feed

    async def made() -> CheckSeries:
        return await feed.read(lambda library: series_of(library, agent, check))

    key = f"series {msgspec.json.encode([agent, check]).decode()}"
    found: CheckSeries = await network.snapshots.get(key, SERIES_SECONDS, lambda: reading(made))
    return found


async def paged(desk: RequestContext, choice: EventFilter, limit: int, after: str | None) -> Events:
    """A page."""
    feed = readings_of(desk.network).feed
    before = None if after is None else position(after)
    page: EventPage = await reading(lambda: feed.read(lambda library: page_of(library, choice, before, limit)))
    items: list[Any] = [msgspec.Raw(line.text) for line in page.lines]
    gaps: list[EventGap] = [
        {"source": one.source, "first": one.first_seq, "last": one.last_seq, "reason": one.reason} for one in page.gaps
    ]
    return {"items": items, "next": page.next, "gaps": gaps}


async def reading(work: Callable[[], Awaitable[Result]]) -> Result:
    """What it gives; its refusals as problems."""
    try:
        return await work()
    except ThreadPoolBusy as error:
        raise ApiProblem(429, str(error), retry_after=BUSY_SECONDS) from None
    except ThreadPoolTimeout as error:
        raise ApiProblem(504, str(error), "choose less: a kind, a source, or a shorter time") from None
    except OSError as error:  # a disk or an object store that is away is nobody's mistake here
        log.warning("segments cannot be read: %s", error, extra=about())
        raise ApiProblem(503, "segments cannot be read now", "see where they are, and the server's log") from None


def position(text: str) -> dict[str, int]:
    """What a client says where it stands. Raises `ApiProblem`."""
    try:
        return cursor.read(text)
    except cursor.InvalidCursor as error:
        raise ApiProblem(400, str(error), "take the `id` of an event, or `next` of a page, as it is") from None


def since_us(text: str | None) -> int | None:
    """A time, or none."""
    return None if text is None else moment_us(text, time.time_ns() // 1_000)


log = logging.getLogger("scale0.http")

HANDLERS: Final[list[HTTPRouteHandler]] = [events, audit, stream, timeline, series]

"""The context of one request: its user, and the broker on behalf of that user.

Every change is sent with the user's own token, so that the broker decides and records it.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, TypeVar, cast

import msgspec
from litestar import Request
from litestar.di import NamedDependency
from litestar.params import QueryParameter
from typing_extensions import TypedDict

from scale0.broker.main.http_settings import HttpSettings
from scale0.client.admin.helens import HelenRows, joined
from scale0.client.admin.rows import Row, helens_of
from scale0.http.auth.authentication import AuthenticatedUser, Authentication
from scale0.http.auth.authorization import caller_of
from scale0.http.broker_client import CACHE_SECONDS, BrokerClient
from scale0.http.data_sources import DataSources
from scale0.http.document_threads import DocumentThreads
from scale0.http.sampler import Sampler

DEFAULT_ROWS: Final = 100
MAX_ROWS: Final = 1_000
"""Of one page."""
MAX_TEXT_CHARS: Final = 256
"""Of a filter, and of a position in a list."""
HELEN_SECONDS: Final = 1.0
"""How old a cached answer of the Helens may be."""
MAX_VIEW_ROWS: Final = 100_000
"""Of one view of one Helen."""

Limit = Annotated[int, QueryParameter(ge=1, le=MAX_ROWS, description="The largest number of rows.")]
After = Annotated[
    str | None, QueryParameter(min_length=1, max_length=MAX_TEXT_CHARS, description="`next` of the previous page.")
]
Text = Annotated[str | None, QueryParameter(min_length=1, max_length=MAX_TEXT_CHARS)]

Result = TypeVar("Result")


class ListPage(TypedDict):
    """One page of a list; `next` is the position of the following one."""

    items: list[dict[str, Any]]
    next: str | None


class RequestContext:
    __slots__ = ("_caller", "authentication", "broker", "documents", "sampler", "settings", "sources")

    def __init__(
        self,
        caller: AuthenticatedUser | None,
        broker: BrokerClient,
        sampler: Sampler,
        sources: DataSources,
        settings: HttpSettings,
        authentication: Authentication,
        documents: DocumentThreads,
    ) -> None:
        self._caller = caller
        self.broker = broker
        self.sampler = sampler
        self.sources = sources
        self.settings = settings
        self.authentication = authentication
        self.documents = documents

    @property
    def caller(self) -> AuthenticatedUser:
        """The user of the request. A public route has none."""
        if self._caller is None:
            raise AssertionError("a public route has no user")
        return self._caller

    async def manage(self, command: str, **arguments: Any) -> dict[str, Any]:
        return await self.broker.manage(self.caller.token, command, origin=self.caller.origin, **arguments)

    async def change(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a command that changes something, and drop every cached answer."""
        try:
            return await self.manage(command, **arguments)
        finally:
            self.broker.cache.clear()

    async def read(self, command: str, *, seconds: float = CACHE_SECONDS, **arguments: Any) -> dict[str, Any]:
        """Send a command that changes nothing; its answer is cached for a moment."""
        return await self.broker.read(self.caller.token, command, seconds=seconds, **arguments)

    async def in_thread(self, work: Callable[[], Result]) -> Result:
        """The result of work on documents. Raises `ApiProblem` if too much of it is in progress."""
        return await self.documents.run(self.caller.name, work)

    async def rows(self, command: str) -> list[Row]:
        return await self.broker.rows(self.caller.token, command)

    async def page(self, command: str, limit: int, after: str | None, **arguments: Any) -> ListPage:
        return cast("ListPage", await self.read(command, limit=limit, after=after, **arguments))

    async def helen_names(self) -> list[str]:
        return helens_of(await self.broker.rows(self.caller.token, "list_services", seconds=HELEN_SECONDS))

    async def helens(self, view: str, arguments: Row, limit: int = MAX_VIEW_ROWS) -> HelenRows:
        """Every row of a view (`agents`, `checks`, `incidents`), at most `limit` of each Helen."""
        key = f"helens {view} {limit} {msgspec.json.encode(sorted(arguments.items())).decode()}"

        async def ask() -> HelenRows:
            names = await self.helen_names()
            found = await asyncio.gather(*(self.broker.helen_rows(name, view, arguments, limit) for name in names))
            return joined(dict(zip(names, found, strict=True)))

        return await self.broker.cache.get(key, HELEN_SECONDS, ask)


Context = NamedDependency[RequestContext]
"""What a handler declares: `context: Context`."""


async def provide_context(request: Request[Any, Any, Any]) -> RequestContext:
    state = request.app.state
    return RequestContext(
        caller_of(request),
        state.broker,
        state.sampler,
        state.sources,
        state.settings,
        state.authentication,
        state.documents,
    )


def paged(rows: list[Row], limit: int, after: str | None, key: Callable[[Row], str]) -> ListPage:
    """One page of complete rows. `key` orders and names them, so that the next page starts after this one even if rows
    were added or removed in between."""
    named = sorted(((key(row), row) for row in rows), key=lambda one: one[0])
    start = 0 if after is None else bisect_right(named, after, key=lambda one: one[0])
    found = named[start : start + limit]
    more = start + limit < len(named)
    return {"items": [row for _, row in found], "next": found[-1][0] if more and found else None}


def matching(rows: list[Row], match: str | None, *keys: str) -> list[Row]:
    """Rows with a matching value: by a glob if `match` has `*`, `?` or `[`, otherwise by a substring."""
    if match is None:
        return rows
    glob = match.lower() if any(sign in match for sign in "*?[") else f"*{match.lower()}*"
    return [row for row in rows if any(fnmatchcase(str(row.get(key)).lower(), glob) for key in keys)]

"""The desk: what a handler needs for one request.

Lives here: who asks, and whom to ask for them. Never here: an answer. Invariant: whatever is changed is changed with
the caller's own token, so the broker decides and records.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final

from litestar import Request
from litestar.di import NamedDependency
from litestar.params import QueryParameter
from typing_extensions import TypedDict

from scale0.broker.main.http_settings import HttpSettings
from scale0.http import helens
from scale0.http.auth.authentication import AuthenticatedUser, Authentication
from scale0.http.auth.authorization import caller_of
from scale0.http.network import SNAPSHOT_SECONDS, BrokerClient
from scale0.http.sampler import Sampler

DEFAULT_ROWS: Final = 100
MAX_ROWS: Final = 1_000
"""Of one page."""
MAX_TEXT_CHARS: Final = 256
"""Of a filter, and of a place in a list."""

Row = dict[str, Any]

Limit = Annotated[int, QueryParameter(ge=1, le=MAX_ROWS, description="At most so many rows.")]
After = Annotated[
    str | None, QueryParameter(min_length=1, max_length=MAX_TEXT_CHARS, description="`next` of the page before.")
]
Text = Annotated[str | None, QueryParameter(min_length=1, max_length=MAX_TEXT_CHARS)]


class ListPage(TypedDict):
    """A list: some rows, and where the next ones begin."""

    items: list[dict[str, Any]]
    next: str | None


class RequestContext:
    """One request's view of the network."""

    __slots__ = ("_caller", "network", "sampler", "settings", "who")

    def __init__(
        self,
        caller: AuthenticatedUser | None,
        network: BrokerClient,
        sampler: Sampler,
        settings: HttpSettings,
        who: Authentication,
    ) -> None:
        self._caller = caller
        self.network = network
        self.sampler = sampler
        self.settings = settings
        self.who = who

    @property
    def caller(self) -> AuthenticatedUser:
        """Who asks. Only public routes have nobody."""
        if self._caller is None:
            raise AssertionError("a public route does nothing in somebody's name")
        return self._caller

    async def manage(self, command: str, **arguments: Any) -> Any:
        """A command in the caller's name."""
        return await self.network.manage(self.caller.token, command, origin=self.caller.origin, **arguments)

    async def change(self, command: str, **arguments: Any) -> dict[str, Any]:
        """The same for one that changes something: from then on nobody is shown what was before."""
        try:
            found: dict[str, Any] = await self.manage(command, **arguments)
        finally:
            self.network.snapshots.clear()
        return found

    async def read(self, command: str, *, seconds: float = SNAPSHOT_SECONDS, **arguments: Any) -> Any:
        """A command that changes nothing; its answer is shared for a moment."""
        return await self.network.read(self.caller.token, command, seconds=seconds, **arguments)

    async def rows(self, command: str) -> list[Row]:
        """Every row of a list."""
        return await self.network.rows(self.caller.token, command)

    async def helens(self, view: str, asked: Row, limit: int = helens.MAX_VIEW_ROWS) -> helens.HelenAnswer:
        """What every Helen says."""
        return await helens.ask(self.network, self.caller.token, view, asked, limit)

    async def page(self, command: str, limit: int, after: str | None, **arguments: Any) -> ListPage:
        """One page of a list."""
        found: ListPage = await self.read(command, limit=limit, after=after, **arguments)
        return found


At = NamedDependency[RequestContext]
"""What a handler declares: `desk: At`."""


async def provide_desk(request: Request[Any, Any, Any]) -> RequestContext:
    """The desk for a request."""
    state = request.app.state
    return RequestContext(caller_of(request), state.network, state.sampler, state.settings, state.who)


def paged(rows: list[Row], limit: int, after: str | None, key: Callable[[Row], str]) -> ListPage:
    """A page of rows that are all at hand; `key` orders and names them, so that the next page starts where this one
    ends, whatever came and went meanwhile."""
    named = sorted(((key(row), row) for row in rows), key=lambda one: one[0])
    start = 0 if after is None else bisect_right(named, after, key=lambda one: one[0])
    found = named[start : start + limit]
    more = start + limit < len(named)
    return {"items": [row for _, row in found], "next": found[-1][0] if more and found else None}


def matching(rows: list[Row], match: str | None, *keys: str) -> list[Row]:
    """Rows of which a value matches: a glob if it has `*`, `?` or `[`, else a part of it."""
    if match is None:
        return rows
    glob = match.lower() if any(sign in match for sign in "*?[") else f"*{match.lower()}*"
    return [row for row in rows if any(fnmatchcase(str(row.get(key)).lower(), glob) for key in keys)]

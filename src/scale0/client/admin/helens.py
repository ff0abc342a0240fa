"""Reading a view (`agents`, `checks`, `incidents`) of every Helen: which requests to send, and how to join the answers.

The caller sends the requests: the command line one after the other, the HTTP server concurrently.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from scale0.client.admin.rows import HELEN_PREFIX, Row

PAGE_ROWS: Final = 1_000
"""The largest page that a Helen or a broker returns."""


class HelenRows(NamedTuple):
    """The rows of all Helens; each row names its Helen as `helen`."""

    rows: list[Row]
    helens: list[str]
    silent: list[str]
    """The Helens that did not answer: their rows are missing."""


class PagedRows:
    """The pages of one list: send each `request()` until it is None, and pass the answer to `add`."""

    def __init__(self, arguments: Row, limit: int | None = None) -> None:
        self._arguments = arguments
        self._limit = limit
        self._after: str | None = None
        self._is_complete = False
        self.rows: list[Row] = []

    def request(self) -> Row | None:
        """The arguments of the next request; None: the list is complete, or the limit is reached."""
        left = PAGE_ROWS if self._limit is None else self._limit - len(self.rows)
        if self._is_complete or left <= 0:
            return None
        after = {"after": self._after} if self._after else {}
        return {**self._arguments, "limit": min(PAGE_ROWS, left), **after}

    def add(self, page: Row) -> None:
        self.rows.extend(page["items"])
        self._after = page["next"]
        self._is_complete = not self._after


def view_service(helen: str, view: str) -> str:
    """The service at which one Helen answers for a view."""
    return f"{HELEN_PREFIX}{helen}.{view}"


def joined(answers: Mapping[str, list[Row] | None]) -> HelenRows:
    """The rows of all Helens, by name; None stands for a Helen that did not answer."""
    rows = [{**row, "helen": helen} for helen, found in answers.items() for row in found or ()]
    return HelenRows(rows, list(answers), [helen for helen, found in answers.items() if found is None])

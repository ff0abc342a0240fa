"""Reading commands that need a right: one management command, or all pages of a list.

Lives here: a connection, credentials and pages. Never here: a command of its own, or how rows look.
"""

from __future__ import annotations

from typing import Any, Final

from scale0.cli.common import authentication
from scale0.cli.common.connection import connect
from scale0.cli.network.listing import DISCOVERY_SECONDS

PAGE_ROWS: Final = 1_000
"""As many as a broker gives at once."""

Row = dict[str, Any]


def managed(join: str, given: authentication.GivenCredentials, command: str, **arguments: Any) -> Any:
    """One management command; what is None is left out."""
    credentials = authentication.need(given, join)
    said = {name: value for name, value in arguments.items() if value is not None}
    with connect(join, DISCOVERY_SECONDS) as client:
        return client.manage(command, **said, **authentication.log_in(client, credentials))


def rows_of(join: str, given: authentication.GivenCredentials, command: str) -> list[Row]:
    """Every row of a list."""
    credentials = authentication.need(given, join)
    rows: list[Row] = []
    with connect(join, DISCOVERY_SECONDS) as client:
        token = authentication.log_in(client, credentials)
        after: dict[str, Any] = {}
        while True:
            page = client.manage(command, limit=PAGE_ROWS, **after, **token)
            rows.extend(page["items"])
            if page["next"] is None:
                return rows
            after = {"after": page["next"]}

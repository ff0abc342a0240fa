"""Asking every Helen of a network.

Lives here: who is a Helen, and the pages that each of them gives, joined. Never here: how it is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

from scale0.cli.common import errors
from scale0.client.admin.rows import HELEN_PREFIX, helens_of

PAGE_ROWS: Final = 1_000
"""As many as a Helen gives at once."""

Row = dict[str, Any]


class HelenClients(Protocol):
    """What is needed of a client."""

    def services(self) -> list[Row]:
        """Every service, and how many offer it."""
        ...

    def call(self, service: str, **asked: Any) -> Any:
        """One request."""
        ...


class HelenPages(NamedTuple):
    """What all Helens said; each row says whose it is as `helen`."""

    rows: list[Row]
    silent: list[str]
    """Those who did not answer: what they watch is missing."""


def helens(client: HelenClients) -> list[str]:
    """The identities of the Helens that are connected."""
    return helens_of(client.services())


def need_helens(client: HelenClients) -> list[str]:
    """The same, or an error that says how to start one."""
    found = helens(client)
    if not found:
        raise errors.CommandError(
            "no Helen is connected", "`scale0 up` starts one here; else: scale0 helen --config FILE"
        )
    return found


def ask(
    client: HelenClients, view: str, asked: dict[str, Any], limit: int | None = None, known: Sequence[str] = ()
) -> HelenPages:
    """Every row of a view (`agents`, `checks`, `incidents`), at most `limit` of each Helen (`known`, or all that are
    connected). One who is silent is named; if all are, that is an error."""
    from scale0.errors import CallError

    heard = HelenPages([], [])
    known = known or need_helens(client)
    for helen in known:
        try:
            heard.rows.extend(
                {**row, "helen": helen} for row in _pages(client, f"{HELEN_PREFIX}{helen}.{view}", limit, asked)
            )
        except CallError as error:
            heard.silent.append(helen)
            if len(heard.silent) == len(known):
                raise errors.CommandError(
                    f"{helen} does not answer: {error.message}",
                    "her log says more; `scale0 clients` shows who is there",
                ) from error
    return heard


def _pages(client: HelenClients, service: str, limit: int | None, asked: dict[str, Any]) -> Iterator[Row]:
    left = limit
    while left is None or left > 0:
        page = client.call(service, **{**asked, "limit": min(PAGE_ROWS, left or PAGE_ROWS)})
        yield from page["items"]
        left = None if left is None else left - len(page["items"])
        if not page["next"]:
            return
        asked = {**asked, "after": page["next"]}


def latest(rows: Iterable[Row], name: Callable[[Row], Any], age: Callable[[Row], Any]) -> list[Row]:
    """Of each name the row of whom knows it best, by name."""
    found: dict[Any, Row] = {}
    for row in rows:
        other = found.get(name(row))
        if other is None or age(row) > age(other):
            found[name(row)] = row
    return [found[key] for key in sorted(found)]

"""Asking every Helen of a network.

Lives here: who is a Helen, and the pages that each of them gives, joined. Never here: how it is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

from scale0.cli import faults

PREFIX: Final = "helen."
SUFFIX: Final = ".agents"
PAGE_ROWS: Final = 1_000
"""As many as a Helen gives at once."""

Row = dict[str, Any]


class Network(Protocol):
    """What is needed of a client."""

    def services(self) -> list[Row]:
        """Every service, and how many offer it."""
        ...

    def call(self, service: str, **asked: Any) -> Any:
        """One request."""
        ...


class Heard(NamedTuple):
    """What all Helens said; each row says whose it is as `helen`."""

    rows: list[Row]
    silent: list[str]
    """Those who did not answer: what they watch is missing."""


def helens(client: Network) -> list[str]:
    """The identities of the Helens that are connected."""
    return named_in(client.services())


def named_in(services: Iterable[Row]) -> list[str]:
    """The same, where the services are known already."""
    names = (row["service"] for row in services if row["backends"])
    return sorted(
        name[len(PREFIX) : -len(SUFFIX)]
        for name in names
        if name.startswith(PREFIX) and name.endswith(SUFFIX) and len(name) >= len(PREFIX) + len(SUFFIX)
    )


def need_helens(client: Network) -> list[str]:
    """The same, or an error that says how to start one."""
    found = helens(client)
    if not found:
        raise faults.Trouble("no Helen is connected", "`scale0 up` starts one here; else: scale0 helen --config FILE")
    return found


def ask(
    client: Network, view: str, asked: dict[str, Any], limit: int | None = None, known: Sequence[str] = ()
) -> Heard:
    """Every row of a view (`agents`, `checks`, `incidents`), at most `limit` of each Helen (`known`, or all that are
    connected). One who is silent is named; if all are, that is an error."""
    from scale0.client.errors import CallError

    heard = Heard([], [])
    known = known or need_helens(client)
    for helen in known:
        try:
            heard.rows.extend(
                {**row, "helen": helen} for row in _pages(client, f"{PREFIX}{helen}.{view}", limit, asked)
            )
        except CallError as error:
            heard.silent.append(helen)
            if len(heard.silent) == len(known):
                raise faults.Trouble(
                    f"{helen} does not answer: {error.message}",
                    "her log says more; `scale0 clients` shows who is there",
                ) from error
    return heard


def _pages(client: Network, service: str, limit: int | None, asked: dict[str, Any]) -> Iterator[Row]:
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


def agents_in(rows: Iterable[Row]) -> list[Row]:
    """Each agent once: one that has moved from one Helen to another is away at the first, and both say so."""
    return latest(rows, lambda row: row["agent"], lambda row: (row["state"] != "away", row.get("left") or 0))


def checks_in(rows: Iterable[Row]) -> list[Row]:
    """Each check once, as who has the newest result knows it."""
    return latest(rows, lambda row: (row["agent"], row["check"]), lambda row: row["at"])


def incidents_in(rows: Iterable[Row]) -> list[Row]:
    """Each incident once; closed is closed."""
    return latest(rows, lambda row: row["id"], lambda row: row["closed"] is not None)

"""Asking every Helen of the network, as the command line does.

Lives here: who is a Helen, and the pages that each of them gives, joined. Never here: how it is shown. Invariants: one
who is silent is named and does not spoil what the others say; the same question of ten readers is asked once.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

import msgspec

from scale0.client.admin.rows import HELEN_PREFIX, helens_of
from scale0.http.network import PAGE_ROWS, BrokerClient
from scale0.http.problem import ApiProblem

HELEN_SECONDS: Final = 1.0
"""How old an answer of theirs may be that several readers share."""
ANSWER_SECONDS: Final = 5.0
"""How long one of them may take for a page."""
MAX_VIEW_ROWS: Final = 100_000
"""Of one view of one Helen."""

Row = dict[str, Any]


class HelenAnswer(NamedTuple):
    """What all Helens said; each row says whose it is as `helen`."""

    rows: list[Row]
    helens: list[str]
    silent: list[str]
    """Those who did not answer: what they watch is missing."""


async def connected(network: BrokerClient, token: str) -> list[str]:
    """The Helens that are connected."""
    return helens_of(await network.rows(token, "list_services", seconds=HELEN_SECONDS))


async def ask(network: BrokerClient, token: str, view: str, asked: Row, limit: int = MAX_VIEW_ROWS) -> HelenAnswer:
    """Every row of a view (`agents`, `checks`, `incidents`), at most `limit` of each Helen."""
    key = f"helens {view} {limit} {msgspec.json.encode(sorted(asked.items())).decode()}"
    heard: HelenAnswer = await network.snapshots.get(
        key, HELEN_SECONDS, lambda: _heard(network, token, view, asked, limit)
    )
    return heard


async def _heard(network: BrokerClient, token: str, view: str, asked: Row, limit: int) -> HelenAnswer:
    names = await connected(network, token)
    found = await asyncio.gather(*(_rows(network, f"{HELEN_PREFIX}{name}.{view}", asked, limit) for name in names))
    heard = HelenAnswer([], names, [])
    for name, rows in zip(names, found, strict=True):
        if rows is None:
            heard.silent.append(name)
        else:
            heard.rows.extend({**row, "helen": name} for row in rows)
    return heard


async def _rows(network: BrokerClient, service: str, asked: Row, limit: int) -> list[Row] | None:
    """Every row of one Helen; None: she does not answer."""
    found: list[Row] = []
    after: str | None = None
    try:
        while len(found) < limit:
            body = {**asked, "limit": min(PAGE_ROWS, limit - len(found)), **({"after": after} if after else {})}
            page = await network.request(service, body, timeout=ANSWER_SECONDS)
            found.extend(page["items"])
            after = page["next"]
            if not after:
                break
    except ApiProblem as problem:
        if problem.status == 400:
            raise
        return None
    return found

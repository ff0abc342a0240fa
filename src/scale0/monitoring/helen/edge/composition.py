"""The composition root: builds a Helen from her configuration and her store. The process and the tests use it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, Final

from scale0.config import HelenConfig
from scale0.monitoring.helen.core.evaluation import Evaluation, StoredChecks
from scale0.monitoring.helen.core.helen import Helen
from scale0.monitoring.helen.core.state import HelenSettings
from scale0.storage.check_rows import (
    AgentRow,
    IncidentRow,
    ReadAgents,
    ReadCheckStates,
    ReadIncidents,
    ReadNotices,
    ReadSpools,
    SpoolRow,
)
from scale0.storage.interface import Store

PAGE_ROWS: Final = 10_000
"""Rows per read."""
CLOSED_INCIDENTS: Final = 1_000
"""Closed incidents that are kept in memory; open ones all are."""
MAX_CLIENT_BYTES: Final = 16 * 1024 * 1024
"""The send backlog of one peer."""
WILDCARDS: Final = frozenset({"*", "0.0.0.0", "::"})


def compose_helen(config: HelenConfig, port: int, store: Store, token: str = "") -> Helen:
    """A Helen who listens on this port. `read_agents` and `read_spools` give the rows for her first turn."""
    settings = HelenSettings(
        identity=config.identity,
        advertise=advertised_endpoint(config, port),
        max_agents=config.max_agents,
        heartbeat_seconds=config.heartbeat_seconds,
        min_equus_version=config.min_equus_version,
        token=token,
    )
    return Helen(settings, Evaluation(read_checks(store)))


def advertised_endpoint(config: HelenConfig, port: int) -> str:
    """The `host:port` at which agents reach her."""
    host = config.advertise or config.bind
    if host in WILDCARDS:
        host = os.uname().nodename
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read_checks(store: Store) -> StoredChecks:
    """The rows that her evaluation starts from."""
    states = pages(store, lambda last: ReadCheckStates(*after(last, "agent", "check")))
    notices = pages(store, lambda last: ReadNotices(*after(last, "id")))
    recent: Any = store.read(ReadIncidents(False, None, "", CLOSED_INCIDENTS))
    incidents: dict[str, IncidentRow] = {row.id: row for row in recent}
    incidents.update(
        (row.id, row)
        for row in pages(
            store,
            lambda last: ReadIncidents(
                True, None if last is None else last.opened_us, "" if last is None else last.id, PAGE_ROWS
            ),
        )
    )
    return StoredChecks(tuple(states), tuple(incidents.values()), tuple(notices))


def read_agents(store: Store) -> Iterator[AgentRow]:
    return pages(store, lambda last: ReadAgents(*after(last, "identity")))


def read_spools(store: Store) -> Iterator[SpoolRow]:
    return pages(store, lambda last: ReadSpools(*after(last, "agent", "spool")))


def after(last: Any, *names: str) -> tuple[Any, ...]:
    """The position after the last row (None: the beginning), and the length of the page that begins there."""
    return (*("" if last is None else getattr(last, name) for name in names), PAGE_ROWS)


def pages(store: Store, ask: Callable[[Any], Any]) -> Iterator[Any]:
    """All rows; `ask` makes the query that continues after a row."""
    last: Any = None
    while True:
        rows: Any = store.read(ask(last))
        yield from rows
        if len(rows) < PAGE_ROWS:
            return
        last = rows[-1]

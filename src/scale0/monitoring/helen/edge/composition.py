"""The composition root: how a Helen is put together from what her store remembers.

Lives here: rows in, machine out. Never here: a decision, or a socket. The real process and tests both call this.
"""

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
"""Rows read at once."""
CLOSED_INCIDENTS: Final = 1_000
"""Incidents that are over and are still shown; the open ones are all there."""
WILDCARDS: Final = frozenset({"*", "0.0.0.0", "::"})


def compose_helen(config: HelenConfig, port: int, store: Store, token: str = "") -> Helen:
    """A Helen who listens on this port. `read_agents` and `read_spools` are for her first turn."""
    settings = HelenSettings(
        identity=config.identity,
        advertise=place_of(config, port),
        max_agents=config.max_agents,
        heartbeat_seconds=config.heartbeat_seconds,
        min_equus_version=config.min_equus_version,
        token=token,
    )
    return Helen(settings, Evaluation(read_watch(store)))


def place_of(config: HelenConfig, port: int) -> str:
    """Where agents reach her."""
    host = config.advertise or config.bind
    if host in WILDCARDS:
        host = os.uname().nodename
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read_watch(store: Store) -> StoredChecks:
    """What Watch starts from."""
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
    """All agents that she knows."""
    return pages(store, lambda last: ReadAgents(*after(last, "identity")))


def read_spools(store: Store) -> Iterator[SpoolRow]:
    """All spools that she knows."""
    return pages(store, lambda last: ReadSpools(*after(last, "agent", "spool")))


def after(last: Any, *names: str) -> tuple[Any, ...]:
    """The place of a row, from which the next page goes on (None: the beginning), and how long that page is."""
    return (*("" if last is None else getattr(last, name) for name in names), PAGE_ROWS)


def pages(store: Store, ask: Callable[[Any], Any]) -> Iterator[Any]:
    """Every row; `ask` makes the question that goes on after the last one."""
    last: Any = None
    while True:
        rows: Any = store.read(ask(last))
        yield from rows
        if len(rows) < PAGE_ROWS:
            return
        last = rows[-1]

"""Agents, checks, incidents and notices in SQLite: the statements that write and read them.

Of the writes about one row in a commit the last one counts, so each row is written once. No query scans more rows than
it may return.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from scale0.storage.check_rows import (
    AgentRow,
    CheckStateRow,
    CheckWrite,
    DropAgent,
    DropCheckState,
    DropNotice,
    DropSpool,
    IncidentRow,
    NoticeRow,
    PutAgent,
    PutCheckState,
    PutIncident,
    PutNotice,
    PutSpool,
    ReadAgents,
    ReadCheckStates,
    ReadIncidents,
    ReadNotices,
    ReadSpools,
    SpoolRow,
    SweepIncidents,
)
from scale0.storage.interface import Handlers
from scale0.storage.rows import MAX_INTEGER, bounded, clamp
from scale0.storage.sqlite.tasks import execute_rows, placeholders

if TYPE_CHECKING:
    import sqlite3

    Key = tuple[str, ...]
    Row = tuple[Any, ...]

_PUT_AGENTS: Final = """
    INSERT INTO agents (identity, body) VALUES {rows} ON CONFLICT (identity) DO UPDATE SET body = excluded.body"""
_PUT_STATES: Final = """
    INSERT INTO check_states (agent, check_name, body) VALUES {rows}
    ON CONFLICT (agent, check_name) DO UPDATE SET body = excluded.body"""
_PUT_SPOOLS: Final = """
    INSERT INTO spools (agent, spool, heard_us, seen) VALUES {rows}
    ON CONFLICT (agent, spool) DO UPDATE SET heard_us = excluded.heard_us, seen = excluded.seen"""
_PUT_INCIDENTS: Final = """
    INSERT INTO incidents (id, agent, check_name, opened_us, closed_us, body) VALUES {rows}
    ON CONFLICT (id) DO UPDATE SET agent = excluded.agent, check_name = excluded.check_name,
        opened_us = excluded.opened_us, closed_us = excluded.closed_us, body = excluded.body"""
_PUT_NOTICES: Final = """
    INSERT INTO notices (id, body) VALUES {rows} ON CONFLICT (id) DO UPDATE SET body = excluded.body"""

_PUTS: Final[dict[type, str]] = {
    PutAgent: _PUT_AGENTS,
    PutCheckState: _PUT_STATES,
    PutSpool: _PUT_SPOOLS,
    PutIncident: _PUT_INCIDENTS,
    PutNotice: _PUT_NOTICES,
}
_DROPS: Final[dict[type, str]] = {
    DropAgent: "DELETE FROM agents WHERE identity = ?",
    DropCheckState: "DELETE FROM check_states WHERE agent = ? AND check_name = ?",
    DropSpool: "DELETE FROM spools WHERE agent = ? AND spool = ?",
    DropNotice: "DELETE FROM notices WHERE id = ?",
}
_SWEEP: Final = """
    DELETE FROM incidents WHERE id IN (
        SELECT id FROM incidents WHERE closed_us <= ? ORDER BY closed_us, id LIMIT ?)"""


def apply_checks(writer: sqlite3.Connection, writes: Iterable[CheckWrite]) -> None:
    """Apply all writes, as if in their order, within the caller's transaction."""
    last: dict[str, dict[Key, tuple[type, Row]]] = {}
    for write in writes:
        if type(write) is SweepIncidents:
            _flush(writer, last)
            last = {}
            writer.execute(_SWEEP, (clamp(write.before_us), bounded(write.limit)))
        else:
            table, key, row = _row(write)
            last.setdefault(table, {})[key] = (type(write), row)
    _flush(writer, last)


def _row(write: CheckWrite) -> tuple[str, Key, Row]:
    """Table, key and values. sqlite3 binds a bytearray faster than bytes (see `sqlite.tasks`)."""
    match write:
        case PutCheckState(agent, check, body):
            return "check_states", (agent, check), (agent, check, bytearray(body))
        case DropCheckState(agent, check):
            return "check_states", (agent, check), (agent, check)
        case PutSpool(agent, spool, seen, heard_us):
            return "spools", (agent, spool), (agent, spool, heard_us, bytearray(seen))
        case DropSpool(agent, spool):
            return "spools", (agent, spool), (agent, spool)
        case PutAgent(identity, body):
            return "agents", (identity,), (identity, bytearray(body))
        case DropAgent(identity):
            return "agents", (identity,), (identity,)
        case PutIncident(id_, agent, check, opened_us, closed_us, body):
            return "incidents", (id_,), (id_, agent, check, opened_us, closed_us, bytearray(body))
        case PutNotice(id_, body):
            return "notices", (id_,), (id_, bytearray(body))
        case DropNotice(id_):
            return "notices", (id_,), (id_,)
        case _:
            raise TypeError(type(write).__name__)


def _flush(writer: sqlite3.Connection, last: dict[str, dict[Key, tuple[type, Row]]]) -> None:
    for rows in last.values():
        by_kind: dict[type, list[Row]] = {}
        for kind, row in rows.values():
            by_kind.setdefault(kind, []).append(row)
        for kind, values in by_kind.items():
            if kind in _DROPS:
                writer.executemany(_DROPS[kind], values)
            else:
                execute_rows(writer, _PUTS[kind], placeholders(len(values[0])), values)


# ---- queries

_AGENTS: Final = "SELECT identity, body FROM agents WHERE identity > ? ORDER BY identity LIMIT ?"
_STATES: Final = """
    SELECT agent, check_name, body FROM check_states
    WHERE (agent, check_name) > (?, ?) ORDER BY agent, check_name LIMIT ?"""
_SPOOLS: Final = """
    SELECT agent, spool, seen, heard_us FROM spools WHERE (agent, spool) > (?, ?) ORDER BY agent, spool LIMIT ?"""
_NOTICES: Final = "SELECT id, body FROM notices WHERE id > ? ORDER BY id LIMIT ?"
_INCIDENTS: Final = """
    SELECT id, agent, check_name, opened_us, closed_us, body FROM incidents INDEXED BY {index}
    WHERE {which} ORDER BY opened_us DESC, id DESC LIMIT ?"""
_BEFORE: Final = "(opened_us, id) < (?, ?)"
_ALL_INCIDENTS: Final = (
    _INCIDENTS.format(index="incidents_opened", which="true"),
    _INCIDENTS.format(index="incidents_opened", which=_BEFORE),
)
_OPEN_INCIDENTS: Final = (
    _INCIDENTS.format(index="incidents_open", which="closed_us IS NULL"),
    _INCIDENTS.format(index="incidents_open", which=f"closed_us IS NULL AND {_BEFORE}"),
)
"""From the newest on, and before a key."""


def _page(statement: str, row: Any, *after: str) -> Callable[[sqlite3.Connection, Any], tuple[Any, ...]]:
    def page(reader: sqlite3.Connection, query: Any) -> tuple[Any, ...]:
        values = (*(getattr(query, name) for name in after), bounded(query.limit))
        return tuple(row(*values) for values in reader.execute(statement, values))

    return page


def _read_incidents(reader: sqlite3.Connection, query: ReadIncidents) -> tuple[IncidentRow, ...]:
    newest, older = _OPEN_INCIDENTS if query.open_only else _ALL_INCIDENTS
    if query.before_us is None or query.before_us > MAX_INTEGER:
        rows = reader.execute(newest, (bounded(query.limit),))
    else:
        rows = reader.execute(older, (clamp(query.before_us), query.before_id, bounded(query.limit)))
    return tuple(IncidentRow(*row) for row in rows)


CHECK_ANSWERS: Final[Handlers] = {
    ReadAgents: _page(_AGENTS, AgentRow, "after"),
    ReadCheckStates: _page(_STATES, CheckStateRow, "after_agent", "after_check"),
    ReadSpools: _page(_SPOOLS, SpoolRow, "after_agent", "after_spool"),
    ReadNotices: _page(_NOTICES, NoticeRow, "after"),
    ReadIncidents: _read_incidents,
}

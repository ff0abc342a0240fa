"""Agents, checks, incidents and notices in SQLite: the statements that write and read them.

Of the writes about one row in a commit the last one counts, so each row is written once. No query scans more rows than
it may return.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import astuple

from scale0.storage.check_rows import (
    CHECK_TABLES,
    TABLE_OF,
    CheckTable,
    CheckWrite,
    IncidentRow,
    ReadIncidents,
    SweepIncidents,
)
from scale0.storage.interface import Handlers
from scale0.storage.rows import MAX_INTEGER, bounded, clamp
from scale0.storage.sqlite.tasks import execute_rows, placeholders

if TYPE_CHECKING:
    import sqlite3

    Key = tuple[str, ...]
    Row = tuple[Any, ...]


def _columns(names: Iterable[str]) -> list[str]:
    return ["check_name" if name == "check" else name for name in names]


def _put(table: CheckTable) -> str:
    columns, key = _columns(table.row.__struct_fields__), _columns(table.key)
    changes = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in key)
    into = f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES {{rows}}"
    return f"{into} ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changes}"


def _drop(table: CheckTable) -> str:
    return f"DELETE FROM {table.name} WHERE {' AND '.join(f'{name} = ?' for name in _columns(table.key))}"


_PUTS: Final = {table.row: _put(table) for table in CHECK_TABLES}
_DROPS: Final = {table.drop: _drop(table) for table in CHECK_TABLES if table.drop}
_SHAPES: Final = {
    kind: (table.name, len(table.key), kind.__struct_fields__.index(table.blob) if kind is table.row else 0)
    for kind, table in TABLE_OF.items()
}
"""The table of a write, the number of its key's fields, and the position of its bytes; 0: it has none."""
_SWEEP: Final = """
    DELETE FROM incidents WHERE id IN (
        SELECT id FROM incidents WHERE closed_us <= ? ORDER BY closed_us, id LIMIT ?)"""


def apply_checks(writer: sqlite3.Connection, writes: Iterable[CheckWrite]) -> None:
    """Apply all writes, as if in their order, within the caller's transaction."""
    last: dict[str, dict[Key, tuple[type, Row]]] = {}
    for write in writes:
        kind = type(write)
        if isinstance(write, SweepIncidents):
            _flush(writer, last)
            last = {}
            writer.execute(_SWEEP, (clamp(write.before_us), bounded(write.limit)))
        else:
            name, key_size, blob = _SHAPES[kind]
            row = astuple(write)
            key = row[:key_size]
            if blob:  # sqlite3 binds a bytearray faster than bytes (see `sqlite.tasks`)
                row = (*row[:blob], bytearray(row[blob]), *row[blob + 1 :])
            last.setdefault(name, {})[key] = (kind, row)
    _flush(writer, last)


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

_INCIDENTS: Final = f"""
    SELECT {", ".join(_columns(IncidentRow.__struct_fields__))} FROM incidents INDEXED BY {{index}}
    WHERE {{which}} ORDER BY opened_us DESC, id DESC LIMIT ?"""
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


def _page(table: CheckTable) -> Callable[[sqlite3.Connection, Any], tuple[Any, ...]]:
    columns, key = ", ".join(_columns(table.row.__struct_fields__)), ", ".join(_columns(table.key))
    after = placeholders(len(table.key))
    statement = f"SELECT {columns} FROM {table.name} WHERE ({key}) > {after} ORDER BY {key} LIMIT ?"

    def page(reader: sqlite3.Connection, query: Any) -> tuple[Any, ...]:
        *after, limit = astuple(query)
        return tuple(table.row(*values) for values in reader.execute(statement, (*after, bounded(limit))))

    return page


def _read_incidents(reader: sqlite3.Connection, query: ReadIncidents) -> tuple[IncidentRow, ...]:
    newest, older = _OPEN_INCIDENTS if query.open_only else _ALL_INCIDENTS
    if query.before_us is None or query.before_us > MAX_INTEGER:
        rows = reader.execute(newest, (bounded(query.limit),))
    else:
        rows = reader.execute(older, (clamp(query.before_us), query.before_id, bounded(query.limit)))
    return tuple(IncidentRow(*row) for row in rows)


CHECK_ANSWERS: Final[Handlers] = {
    **{table.page: _page(table) for table in CHECK_TABLES if table.page},
    ReadIncidents: _read_incidents,
}

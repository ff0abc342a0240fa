"""Rows of PostgreSQL as tasks.

Lives here: the columns of both tables of tasks, in the order of the classes, and what was found under a name. Never
here: a statement of its own. Invariant: one row of a named task comes from one moment, so it is open or ended, never
both.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from scale0.storage.postgres.values import restore
from scale0.storage.task_rows import EndedTask, OpenTask

_OPEN_FIELDS: Final = OpenTask.__struct_fields__
_ENDED_FIELDS: Final = EndedTask.__struct_fields__
_OPEN_KEY: Final = _OPEN_FIELDS.index("key")
_ENDED_KEY: Final = _ENDED_FIELDS.index("key")

OPEN: Final = ", ".join(f"o.{name}" for name in _OPEN_FIELDS)
ENDED: Final = ", ".join(f"e.{name}" for name in _ENDED_FIELDS)

_LARGE: Final = frozenset(("params", "options", "result"))
OPEN_LISTED: Final = ", ".join("''::bytea" if name in _LARGE else f"o.{name}" for name in _OPEN_FIELDS)
ENDED_LISTED: Final = ", ".join("''::bytea" if name in _LARGE else f"e.{name}" for name in _ENDED_FIELDS)
"""What a list shows."""

# n: the name, h: who holds the task, r: who reserved the name.
NAMED: Final = f"""coalesce(h.identity, ''), n.broker, coalesce(r.epoch = n.epoch, false), {OPEN}, {ENDED}"""
JOINED: Final = """
    LEFT JOIN open_tasks o ON o.seq = n.seq LEFT JOIN ended_tasks e ON e.seq = n.seq
    LEFT JOIN brokers h ON h.slot = o.holder LEFT JOIN brokers r ON r.slot = n.broker"""


class NamedTask(msgspec.Struct, frozen=True):
    """What an id or a key leads to."""

    task: OpenTask | EndedTask | None
    holder: str
    """Of an open task: the broker; empty: nobody."""
    reserver: int | None
    """Without a task: the slot of the broker that reserved it."""
    is_live: bool
    """That broker's epoch has not ended."""


def open_task(row: tuple[Any, ...]) -> OpenTask:
    """A row of OPEN."""
    if row[_OPEN_KEY] is None:
        return OpenTask(*row)
    values = list(row)
    values[_OPEN_KEY] = restore(row[_OPEN_KEY])
    return OpenTask(*values)


def ended_task(row: tuple[Any, ...]) -> EndedTask:
    """A row of ENDED."""
    if row[_ENDED_KEY] is None:
        return EndedTask(*row)
    values = list(row)
    values[_ENDED_KEY] = restore(row[_ENDED_KEY])
    return EndedTask(*values)


def named(row: tuple[Any, ...]) -> NamedTask:
    """A row of NAMED."""
    holder, reserver, is_live, *columns = row
    opened, ended = tuple(columns[: len(_OPEN_FIELDS)]), tuple(columns[len(_OPEN_FIELDS) :])
    task: OpenTask | EndedTask | None = None
    if opened[0] is not None:
        task = open_task(opened)
    elif ended[0] is not None:
        task = ended_task(ended)
    return NamedTask(task, holder, reserver, is_live)

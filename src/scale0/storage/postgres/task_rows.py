"""Values and rows as PostgreSQL takes and returns them: texts, arrays, column lists and tasks.

The columns come from the row classes (`sql_tasks`). A row of a named task is read by one statement, so the task is
either open or ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from scale0.storage.interface import StoreFailed
from scale0.storage.rows import MAX_INTEGER
from scale0.storage.sql_tasks import BLOBS, ENDED_FIELDS, FLAGS, LARGE, OPEN_FIELDS, UNLISTED, columns
from scale0.storage.task_rows import KEPT_PARAMS_BYTES, EndedTask, OpenTask

_NUL: Final = "\0"
_ESCAPE: Final = "\x01"


def clean(text: str) -> str:
    """A text without NUL, which PostgreSQL refuses; different texts stay different."""
    if _NUL in text or _ESCAPE in text:
        text = text.replace(_ESCAPE, f"{_ESCAPE}1").replace(_NUL, f"{_ESCAPE}0")
    return text


def restore(text: str | None) -> str | None:
    """A text as it was before `clean`."""
    if text is None or _ESCAPE not in text:
        return text
    return text.replace(f"{_ESCAPE}0", _NUL).replace(f"{_ESCAPE}1", _ESCAPE)


def integers(values: Iterable[int]) -> str:
    """An array of numbers. As text: a list would have another type for each size, and each its own statement."""
    numbers = list(values)
    for number in numbers:
        if not -MAX_INTEGER <= number <= MAX_INTEGER:
            raise StoreFailed(f"{number} does not fit a store's integer")
    return f"{{{','.join(map(str, numbers))}}}"


_TYPES: Final = {
    "status": "smallint",
    **dict.fromkeys(BLOBS, "bytea"),
    **dict.fromkeys(FLAGS, "boolean"),
    **dict.fromkeys(("id", "client", "method", "node", "key", "owner", "node_owner"), "text"),
}
"""The types of columns that are not bigint."""


def unnested(fields: Sequence[str]) -> str:
    """A FROM item `v` of rows, from one array parameter for each field."""
    arrays = ", ".join(f"%({name}){'b' if name in BLOBS else 's'}::{_TYPES.get(name, 'bigint')}[]" for name in fields)
    return f"unnest({arrays}) AS v ({columns(fields)})"


def arrays(writes: Sequence[Any]) -> dict[str, Any]:
    """The fields of writes of one class, each as an array parameter."""
    out: dict[str, Any] = {}
    rows = zip(*map(msgspec.structs.astuple, writes), strict=True)
    for name, values in zip(writes[0].__struct_fields__, rows, strict=True):
        match _TYPES.get(name):
            case "text" if name == "key":
                out[name] = [None if value is None else clean(value) for value in values]
            case "text" | "bytea":
                out[name] = list(values)
            case "boolean":
                out[name] = f"{{{','.join('t' if value else 'f' for value in values)}}}"
            case _:
                out[name] = integers(values)
    return out


_NO_BYTES: Final = dict.fromkeys(UNLISTED, "''::bytea")
_SIZE: Final = "octet_length(o.params)"  # it does not read params that are stored apart from their row
OPEN: Final = f"{columns(OPEN_FIELDS, prefix='o.')}, {_SIZE}"
ENDED: Final = columns(ENDED_FIELDS, prefix="e.")
OPEN_LISTED: Final = f"{columns(OPEN_FIELDS, _NO_BYTES, 'o.')}, {_SIZE}"
ENDED_LISTED: Final = columns(ENDED_FIELDS, _NO_BYTES, "e.")
_NO_LARGE: Final = dict.fromkeys(LARGE, "''::bytea")
ENDED_BRIEF: Final = columns(ENDED_FIELDS, _NO_LARGE, "e.")

# n: the name, h: the holder of the task, r: the broker that reserved the name.
_NAME: Final = "coalesce(h.identity, ''), n.broker, coalesce(r.epoch = n.epoch, false)"
NAMED: Final = f"{_NAME}, {OPEN}, {ENDED}"
OPEN_BRIEF: Final = f"{columns(OPEN_FIELDS, _NO_LARGE, 'o.')}, {_SIZE}"
_SMALL_PARAMS: Final = {"params": f"CASE WHEN {_SIZE} <= {KEPT_PARAMS_BYTES} THEN o.params ELSE ''::bytea END"}
LEASED: Final = f"{columns(OPEN_FIELDS, _SMALL_PARAMS, 'o.')}, {_SIZE}"
NAMED_BRIEF: Final = f"{_NAME}, {OPEN_BRIEF}, {ENDED_BRIEF}"
JOINED: Final = """
    LEFT JOIN open_tasks o ON o.seq = n.seq LEFT JOIN ended_tasks e ON e.seq = n.seq
    LEFT JOIN brokers h ON h.slot = o.holder LEFT JOIN brokers r ON r.slot = n.broker"""

_OPEN_COLUMNS: Final = len(OpenTask.__struct_fields__)
_OPEN_KEY: Final = OPEN_FIELDS.index("key")
_ENDED_KEY: Final = ENDED_FIELDS.index("key")


class NamedTask(msgspec.Struct, frozen=True):
    """The task of an id or a key, or its reservation."""

    task: OpenTask | EndedTask | None
    holder: str
    """For an open task: the broker that holds it; empty: none."""
    reserver: int | None
    """Without a task: the slot of the broker that reserved the name."""
    is_live: bool
    """The epoch of that broker has not ended."""


def open_task(row: Sequence[Any]) -> OpenTask:
    values = list(row)
    values[_OPEN_KEY] = restore(row[_OPEN_KEY])
    return OpenTask(*values)


def ended_task(row: Sequence[Any]) -> EndedTask:
    values = list(row)
    values[_ENDED_KEY] = restore(row[_ENDED_KEY])
    return EndedTask(*values)


def named_task(row: Sequence[Any]) -> NamedTask:
    holder, reserver, is_live, *fields = row
    opened, ended = fields[:_OPEN_COLUMNS], fields[_OPEN_COLUMNS:]
    task: OpenTask | EndedTask | None = None
    if opened[0] is not None:
        task = open_task(opened)
    elif ended[0] is not None:
        task = ended_task(ended)
    return NamedTask(task, holder, reserver, is_live)

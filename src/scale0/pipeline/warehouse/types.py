"""Column types of a manifest (Spark's type names) as types of Arrow and DuckDB, for readers without Spark.

An unknown type is an error. DuckDB readers do not import Arrow, which takes longer than most queries.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from scale0.pipeline.warehouse.records import WarehouseDamaged

if TYPE_CHECKING:
    import pyarrow as pa

MAX_DEPTH: Final = 8
"""Nesting; ours have three levels."""

_DUCK: Final = {
    "string": "VARCHAR",
    "boolean": "BOOLEAN",
    "int": "INTEGER",
    "bigint": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "date": "DATE",
    "timestamp": "TIMESTAMP WITH TIME ZONE",
    "binary": "BLOB",
}
_FIELD_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


class _Kind(NamedTuple):
    """A plain type, or `array`, `map` or `struct` with its element types."""

    name: str
    inner: tuple[tuple[str, _Kind], ...] = ()
    """Names (of a struct's fields) and types."""


def arrow_type(name: str) -> pa.DataType:
    return _arrow(_kind(name))


def duck_type(name: str) -> str:
    return _duck(_kind(name))


def _kind(name: str, depth: int = 0) -> _Kind:
    name = name.strip()
    if name in _DUCK:
        return _Kind(name)
    outer, _, rest = name.partition("<")
    if depth < MAX_DEPTH and rest.endswith(">"):
        inner = _split(rest[:-1])
        match outer, len(inner):
            case ("array", 1) | ("map", 2):
                return _Kind(outer, tuple(("", _kind(one, depth + 1)) for one in inner))
            case "struct", _:
                pairs = [field.partition(":") for field in inner]
                if all(_FIELD_NAME.fullmatch(name.strip()) for name, _, _ in pairs):
                    return _Kind(outer, tuple((name.strip(), _kind(kind, depth + 1)) for name, _, kind in pairs))
    raise WarehouseDamaged(f"a manifest uses the type {name!r}, which this version does not know: upgrade scale0")


def _arrow(kind: _Kind) -> pa.DataType:
    import pyarrow as pa  # noqa: PLC0415  # DuckDB's readers need none

    inner = [(name, _arrow(one)) for name, one in kind.inner]
    match kind.name:
        case "array":
            return pa.list_(pa.field("element", inner[0][1]))
        case "map":
            return pa.map_(inner[0][1], inner[1][1])
        case "struct":
            return pa.struct([pa.field(name, one) for name, one in inner])
    plain: dict[str, pa.DataType] = {
        "string": pa.string(),
        "boolean": pa.bool_(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "binary": pa.binary(),
    }
    return plain[kind.name]


def _duck(kind: _Kind) -> str:
    inner = [(name, _duck(one)) for name, one in kind.inner]
    match kind.name:
        case "array":
            return f"{inner[0][1]}[]"
        case "map":
            return f"MAP({inner[0][1]}, {inner[1][1]})"
        case "struct":
            fields = ", ".join(f'"{name}" {one}' for name, one in inner)
            return f"STRUCT({fields})"
    return _DUCK[kind.name]


def _split(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    pieces, depth, start = [], 0, 0
    for index, char in enumerate(text):
        depth += (char == "<") - (char == ">")
        if char == "," and depth == 0:
            pieces.append(text[start:index])
            start = index + 1
    return [*pieces, text[start:]]

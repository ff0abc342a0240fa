"""Types as a manifest says them, in Spark's words, for readers without Spark.

Lives here: words to Arrow's types, and these to DuckDB's. Never here: a column. Invariant: a word that is not known is
an error, never a guess.
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

from scale0.pipeline.warehouse.faults import Broken

MAX_DEPTH: Final = 8
"""Types within types: ours have three."""

_PLAIN: Final = {
    "string": (pa.string(), "VARCHAR"),
    "boolean": (pa.bool_(), "BOOLEAN"),
    "int": (pa.int32(), "INTEGER"),
    "bigint": (pa.int64(), "BIGINT"),
    "float": (pa.float32(), "FLOAT"),
    "double": (pa.float64(), "DOUBLE"),
    "date": (pa.date32(), "DATE"),
    "timestamp": (pa.timestamp("us", tz="UTC"), "TIMESTAMP WITH TIME ZONE"),
    "binary": (pa.binary(), "BLOB"),
}
_DUCK: Final[dict[pa.DataType, str]] = dict(_PLAIN.values())
_FIELD_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def arrow_type(word: str, depth: int = 0) -> pa.DataType:
    """`array<struct<bucket:int,count:bigint>>` as Arrow has it."""
    word = word.strip()
    if word in _PLAIN:
        return _PLAIN[word][0]
    outer, _, rest = word.partition("<")
    if depth < MAX_DEPTH and rest.endswith(">"):
        inner = _split(rest[:-1])
        match outer, len(inner):
            case "array", 1:
                return pa.list_(pa.field("element", arrow_type(inner[0], depth + 1)))
            case "map", 2:
                return pa.map_(arrow_type(inner[0], depth + 1), arrow_type(inner[1], depth + 1))
            case "struct", _:
                pairs = [field.partition(":") for field in inner]
                if all(_FIELD_NAME.fullmatch(name.strip()) for name, _, _ in pairs):
                    return pa.struct([pa.field(name.strip(), arrow_type(kind, depth + 1)) for name, _, kind in pairs])
    raise Broken(f"a manifest names the type {word!r}, which this program does not know: use the newer program")


def duck_type(kind: pa.DataType) -> str:
    """An Arrow type as DuckDB spells it."""
    if pa.types.is_list(kind):
        return f"{duck_type(kind.value_type)}[]"
    if pa.types.is_map(kind):
        return f"MAP({duck_type(kind.key_type)}, {duck_type(kind.item_type)})"
    if pa.types.is_struct(kind):
        fields = ", ".join(f'"{field.name}" {duck_type(field.type)}' for field in kind)
        return f"STRUCT({fields})"
    return _DUCK[kind]


def _split(text: str) -> list[str]:
    """At the commas that stand in no brackets."""
    pieces, depth, start = [], 0, 0
    for place, char in enumerate(text):
        depth += (char == "<") - (char == ">")
        if char == "," and depth == 0:
            pieces.append(text[start:place])
            start = place + 1
    return [*pieces, text[start:]]

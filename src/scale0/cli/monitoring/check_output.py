"""What a check found, on a few lines.

Lives here: a result for people. Never here: getting one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from scale0.cli.common import output

COLOURS: Final = {"ok": "green", "warning": "yellow", "critical": "red", "unknown": "magenta"}
NUMBERS: Final = ("value", "warn", "crit", "min", "max")
KEYS: Final = ("value", "unit", "warn", "crit", "min", "max")
EXACT_BELOW: Final = 1e15
"""Whole numbers are shown to the last digit up to here."""


def show(found: Mapping[str, Any]) -> None:
    """State and message on a line, the metrics below; a column that nobody fills is left out."""
    state, seconds = found["state"], found.get("seconds")
    took = "" if seconds is None else f"  ({seconds:.3f} s)"
    output.say(f"{output.painted(state, COLOURS.get(state, 'white'))}: {output.clean(found['message'])}{took}")
    if found["metrics"]:
        keys = [key for key in KEYS if any(row.get(key) not in (None, "") for row in found["metrics"])]
        rows = [(row["name"], *(cell(row.get(key)) for key in keys)) for row in found["metrics"]]
        output.say()
        heads = ("METRIC", *(key.upper() for key in keys))
        output.table(heads, rows, numbers=[key.upper() for key in NUMBERS])


def cell(value: Any) -> str:
    """A number without needless digits; nothing is a dash."""
    if value is None or value == "":
        return "-"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < EXACT_BELOW else f"{value:.6g}"
    return str(value)

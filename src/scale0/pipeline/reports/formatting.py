"""Values as text: durations, shares, counts, times (UTC).

A value is never rounded to a whole: 99.9996 % is not shown as 100 %.
"""

from __future__ import annotations

import math
from typing import Any, Final

from scale0.pipeline.reports.model import Unit
from scale0.pipeline.time_ranges import DAY_US, to_time

NOTHING: Final = "–"
MINUTE: Final = 60
HOUR: Final = 3_600
DAY: Final = 86_400
_BYTES: Final = ("B", "kB", "MB", "GB", "TB", "PB", "EB")


def counted(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds == 0:
        return "0 s"
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{_three(seconds * 1e3)} ms"
    if seconds < 2 * MINUTE:
        return f"{_three(seconds)} s"
    whole = round(seconds)
    for unit, name, part, part_name in ((DAY, "d", HOUR, "h"), (HOUR, "h", MINUTE, "min"), (MINUTE, "min", 1, "s")):
        if whole >= unit:
            rest = whole % unit // part
            return f"{whole // unit} {name}" + (f" {rest} {part_name}" if rest else "")
    return f"{whole} s"


def share(value: float) -> str:
    """Percent with three digits."""
    percent = value * 100
    if value in (0, 1):
        return f"{percent:.0f} %"
    if 0 < value < 1:
        percent = min(max(percent, 0.001), 99.999)
    if percent >= 99:
        return f"{math.floor(percent * 1_000) / 1_000:g} %"
    return f"{_three(percent)} %"


def availability(value: float) -> str:
    """Percent with three decimals, rounded down."""
    return "100 %" if value >= 1 else f"{math.floor(value * 100_000 + 1e-7) / 1_000:.3f} %"


def number(value: float) -> str:
    if not math.isfinite(value):
        return NOTHING
    if abs(value) >= 1e15:
        return f"{value:.3g}"
    if abs(value) >= 1_000 or value == int(value):
        return f"{value:,.0f}"
    return _three(value)


def size(value: float) -> str:
    unit = 0
    while abs(value) >= 1_000 and unit < len(_BYTES) - 1:
        value /= 1_000
        unit += 1
    return f"{_three(value) if unit else f'{value:.0f}'} {_BYTES[unit]}"


def moment(us: int) -> str:
    """A time in UTC, with seconds if there are any."""
    time = to_time(us)
    if us % DAY_US == 0:
        return f"{time:%Y-%m-%d}"
    return f"{time:%Y-%m-%d %H:%M:%S}" if time.second or time.microsecond else f"{time:%Y-%m-%d %H:%M}"


def text(value: Any, unit: Unit) -> str:
    if value is None:
        return NOTHING
    match unit:
        case "count":
            return f"{value:,}"
        case "share":
            return share(value)
        case "availability":
            return availability(value)
        case "seconds":
            return duration(value)
        case "time":
            return moment(value)
        case "number":
            return number(value)
        case "bytes":
            return size(value)
        case "change":
            return f"{value * 100:+,.0f} %"
        case "points":
            return f"{value * 100:+.2f} pp"
        case "yes":
            return "yes" if value else ""
        case _:
            return str(value)


NUMERIC: Final = frozenset({"count", "share", "availability", "seconds", "number", "bytes", "change", "points"})
"""Units whose cells are right-aligned."""


def _three(value: float) -> str:
    """Three digits, without an exponent and trailing zeros."""
    if value == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    shown = f"{value:.{min(decimals, 12)}f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown

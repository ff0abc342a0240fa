"""Times and lengths of time, as people write them in a query.

Lives here: text to microseconds. Never here: a clock; who asks says what time it is. Invariant: what is not exactly one
of the forms is refused.
"""

from __future__ import annotations

import datetime
import re
from typing import Final

from scale0.http.problem import ApiProblem

_SPAN: Final = re.compile(r"([1-9][0-9]{0,5})([smhdw])", re.ASCII)
_MOMENT: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ][0-9:.]{5,15}(?:Z|[+-][0-9]{2}:[0-9]{2})?)?", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_MICRO: Final = 1_000_000


def span_us(text: str) -> int:
    """12h, 30d, 4w. Raises `ApiProblem`."""
    found = _SPAN.fullmatch(text)
    if found is None:
        raise ApiProblem(400, f"{text[:60]!r} is no length of time", "for example 90s, 30m, 12h, 7d or 4w")
    return int(found[1]) * _SECONDS[found[2]] * _MICRO


def moment_us(text: str, now_us: int) -> int:
    """2026-11-01, 2026-11-01T12:30 (UTC, unless it says another zone), or so long ago: 2h. Raises `ApiProblem`."""
    if _SPAN.fullmatch(text):
        return now_us - span_us(text)
    try:
        moment = datetime.datetime.fromisoformat(text) if _MOMENT.fullmatch(text) else None
    except ValueError:
        moment = None
    if moment is None:
        raise ApiProblem(400, f"{text[:60]!r} is no time", "for example 2026-11-01, 2026-11-01T12:30 (UTC), or 2h")
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    try:
        return round(moment.timestamp() * _MICRO)
    except (OverflowError, ValueError):
        raise ApiProblem(400, f"{text[:60]!r} is no time that we know") from None

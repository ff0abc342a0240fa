"""Thresholds: the ranges of Nagios plugins, and the state of a value.

Invariant: the number 10 and the text "10" mean the same; a range never starts after its end; NaN is never `ok` if there
is a range.

    10       alert below 0 and above 10
    10:      alert below 10
    ~:10     alert above 10
    10:20    alert outside of 10 to 20
    @10:20   alert inside of 10 to 20, both ends included
"""

from __future__ import annotations

import math
import re
from typing import Final

import msgspec

from scale0.monitoring.protocol.results import CRITICAL, OK, UNKNOWN, WARNING, State

MAX_RANGE_CHARS: Final = 80
"""Of a range's text: two long numbers and their signs."""

_NUMBER: Final = re.compile(r"-?[0-9]{1,25}(?:\.[0-9]{1,25})?(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)
_FORMS: Final = "10, 10:, ~:10, 10:20 or @10:20"


class Range(msgspec.Struct, frozen=True, gc=False):
    """From `start` to `end`, both included. A value outside alerts; with `inside`, a value within."""

    start: float = 0.0
    end: float = math.inf
    inside: bool = False

    @staticmethod
    def parse(text: str | float) -> Range:
        """The range of a text or a number; ValueError says what is wrong with it."""
        if isinstance(text, bool) or not isinstance(text, str | int | float):
            raise ValueError(f"a threshold is a number or a range such as {_FORMS}, and not a {type(text).__name__}")
        if isinstance(text, str):
            return _from_text(text)
        try:
            end = float(text)
        except OverflowError:
            end = math.inf
        if not math.isfinite(end):
            raise ValueError("a threshold is a finite number")
        return _ordered(0.0, end, False, str(text))

    def alerts(self, value: float) -> bool:
        return (self.start <= value <= self.end) == self.inside

    @property
    def bound(self) -> float | None:
        """The number for a chart: the upper end, or the lower one if there is no upper; None: neither."""
        if self.end != math.inf:
            return self.end
        return self.start if self.start != -math.inf else None

    def __str__(self) -> str:
        sign = "@" if self.inside else ""
        end = "" if self.end == math.inf else _plain(self.end)
        if self.start == 0 and end:
            return sign + end
        return f"{sign}{'~' if self.start == -math.inf else _plain(self.start)}:{end}"


def judge(value: float, warn: Range | None, crit: Range | None) -> State:
    """The state of a value: `crit` takes precedence."""
    if math.isnan(value) and (warn is not None or crit is not None):
        return UNKNOWN
    if crit is not None and crit.alerts(value):
        return CRITICAL
    if warn is not None and warn.alerts(value):
        return WARNING
    return OK


def _from_text(text: str) -> Range:
    """The range of a text. Strict: `int` and `float` would accept foreign digits, blanks and underscores."""
    if not text or len(text) > MAX_RANGE_CHARS:
        raise ValueError(f"a threshold has 1 to {MAX_RANGE_CHARS} characters, such as {_FORMS}")
    inside = text[0] == "@"
    start, colon, end = text[inside:].partition(":")
    if not colon:
        return _ordered(0.0, _number(start, text), inside, text)
    first = -math.inf if start == "~" else _number(start, text) if start else 0.0
    last = _number(end, text) if end else math.inf
    return _ordered(first, last, inside, text)


def _number(part: str, text: str) -> float:
    if _NUMBER.fullmatch(part) is None:
        raise ValueError(f"{text!r} is not a range: write {_FORMS}")
    number = float(part)
    if not math.isfinite(number):
        raise ValueError(f"{text!r} is not a range: {part} is too large")
    return number


def _ordered(start: float, end: float, inside: bool, text: str) -> Range:
    if start > end:
        hint = f"; write ~:{_plain(end)} to alert above it" if start == 0 and ":" not in text else ""
        raise ValueError(f"{text!r} is not a range: it starts at {_plain(start)} and ends at {_plain(end)}{hint}")
    return Range(start, end, inside)


def _plain(number: float) -> str:
    """A number without a needless `.0`."""
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else repr(number)

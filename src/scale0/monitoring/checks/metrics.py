"""The metrics and problems of a check, and numbers and texts for its message.

Invariants: the state is the worst of all problems; the message names problems, the most severe first; no metric name is
longer than results allow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scale0.history.events.columns import EventMetric
from scale0.monitoring.checks.thresholds import Range, judge
from scale0.monitoring.protocol.results import MAX_METRIC_NAME_CHARS, OK, SEVERITY, CheckFinding, State

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_PROBLEMS: Final = 10
"""Problems that a message names; the rest is counted."""
MAX_EXCERPT_CHARS: Final = 200
"""Of external text in a message."""

PERCENT: Final = "%"
BYTES: Final = "B"
SECONDS: Final = "s"
BYTES_PER_SECOND: Final = "B/s"
PER_SECOND: Final = "/s"


class Measurements:
    """Metrics and problems, in the order in which they were added."""

    def __init__(self) -> None:
        self.state: State = OK
        self._metrics: list[EventMetric] = []
        self._problems: list[tuple[State, str]] = []

    def add(
        self,
        name: str,
        value: float,
        unit: str | None = None,
        *,
        warn: Range | None = None,
        crit: Range | None = None,
        low: float | None = None,
        high: float | None = None,
        message: str = "",
    ) -> State:
        """Add a metric. If it is not ok, `message` (or name, number and unit) becomes part of the check's message."""
        number = float(value)
        warned = None if warn is None else warn.bound
        self._metrics.append(EventMetric(name, number, unit, warned, None if crit is None else crit.bound, low, high))
        state = judge(number, warn, crit)
        if state != OK:
            self.add_problem(state, f"{message or f'{name} is {number:.6g}{unit or str()}'} ({_ranges(warn, crit)})")
        return state

    def add_problem(self, state: State, text: str) -> None:
        self._problems.append((state, text))
        if SEVERITY[state] > SEVERITY[self.state]:
            self.state = state

    def finding(self, ok_message: str, suffix: str = "") -> CheckFinding:
        """The result; `ok_message` is the message if there is no problem, `suffix` is appended in any case."""
        if not self._problems:
            return CheckFinding(OK, ok_message + suffix, tuple(self._metrics))
        graver = sorted(self._problems, key=lambda problem: -SEVERITY[problem[0]])
        texts = [text for _, text in graver[:MAX_PROBLEMS]]
        if len(graver) > MAX_PROBLEMS:
            texts.append(f"and {len(graver) - MAX_PROBLEMS} more")
        return CheckFinding(self.state, "; ".join(texts) + suffix, tuple(self._metrics))

    @property
    def is_empty(self) -> bool:
        return not self._metrics and not self._problems


def _ranges(warn: Range | None, crit: Range | None) -> str:
    return ", ".join(f"{word} {range_}" for word, range_ in (("warn", warn), ("crit", crit)) if range_ is not None)


def metric_name(what: str, instance: str) -> str:
    """The name of a metric of one of several instances. A long instance name is cut in the middle."""
    room = MAX_METRIC_NAME_CHARS - len(what) - 1
    if len(instance) > room:
        half = (room - 1) // 2
        instance = f"{instance[:half]}…{instance[-half:]}"
    return f"{what}:{instance}"


def byte_size(count: float) -> str:
    """Bytes with a unit, for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def duration(seconds: float) -> str:
    """Seconds with a unit, for people."""
    if abs(seconds) < 1:
        return f"{seconds * 1_000:.3g} ms"
    if abs(seconds) < 120:
        return f"{seconds:.3g} s"
    if abs(seconds) < 7_200:
        return f"{seconds / 60:.0f} min"
    if abs(seconds) < 172_800:
        return f"{seconds / 3_600:.0f} h"
    return f"{seconds / 86_400:.0f} d"


def excerpt(text: str) -> str:
    """External text, cut, without control characters."""
    shown = "".join(c if c.isprintable() else " " for c in text[:MAX_EXCERPT_CHARS]).strip()
    return shown + ("…" if len(text) > MAX_EXCERPT_CHARS else "")


def joined(words: Sequence[str]) -> str:
    """A few items with commas, the rest counted."""
    shown = ", ".join(excerpt(word) for word in words[:MAX_PROBLEMS])
    return shown if len(words) <= MAX_PROBLEMS else f"{shown} and {len(words) - MAX_PROBLEMS} more"

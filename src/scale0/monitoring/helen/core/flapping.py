"""Flap detection: does a check change its state too often?

The formulas weigh the last 20 transitions. A history is an int of 20 bits, the newest transition lowest; missing
history counts as no transition. Thresholds are compared in integers, so equal histories give equal results everywhere.

    icinga   weights 0.80 to 1.18; starts above 30 %, stays while above 25 %
    nagios   weights 0.75 to 1.25; starts at 30 %, ends at 20 %; hard states and soft recoveries only
    sensu    icinga's weights, whole percent, nothing before 21 states; starts at or above high, stays while above low
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from scale0.config.monitoring import Flapping

TRANSITIONS: Final = 20
"""Number of transitions in the history."""
STATES: Final = TRANSITIONS + 1
"""Number of states in the history."""
HISTORY: Final = (1 << TRANSITIONS) - 1
"""The bit mask of a history."""

ICINGA: Final = "icinga"
NAGIOS: Final = "nagios"
SENSU: Final = "sensu"
DEFAULTS: Final[dict[str, tuple[float, float]]] = {ICINGA: (30.0, 25.0), NAGIOS: (30.0, 20.0), SENSU: (60.0, 20.0)}
"""Default thresholds for start and end, in percent."""

_HALF: Final = TRANSITIONS // 2
_HALF_MASK: Final = (1 << _HALF) - 1
_HUNDREDTHS: Final = 100
"""Thresholds are compared in hundredths of a percent."""


def _sums(newest: int, step: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The weights of all halves of a history: the newer ten transitions, and the older ten."""

    def weight(bits: int, first: int) -> int:
        return sum(newest - step * (first + bit) for bit in range(_HALF) if bits >> bit & 1)

    every = range(_HALF_MASK + 1)
    return tuple(weight(bits, 0) for bits in every), tuple(weight(bits, _HALF) for bits in every)


_ICINGA_SUMS: Final = _sums(118, 2)
"""0.80 + 0.02 i, in hundredths: 20 of these are one percent."""
_NAGIOS_SUMS: Final = _sums(95, 2)
"""0.75 to 1.25 in 19 even steps, in units of 1/76: so every weight is an integer."""


class FlapRule(msgspec.Struct, frozen=True, gc=False):
    """A formula with its thresholds, in hundredths of a percent."""

    formula: str
    start: int
    end: int

    @property
    def hard_only(self) -> bool:
        """Only hard states and soft recoveries count."""
        return self.formula == NAGIOS

    def flaps(self, history: int, known: int, was: bool) -> bool:
        """Whether the check flaps now; `was`: whether it did before."""
        if self.formula == NAGIOS:
            # percent = 100 / 20 / 76 of the sum, so hundredths of it are sum * 125 / 19.
            scaled = _weigh(_NAGIOS_SUMS, history) * 125
            return scaled > self.end * 19 if was else scaled >= self.start * 19
        if self.formula == SENSU:
            whole = _weigh(_ICINGA_SUMS, history) // TRANSITIONS * _HUNDREDTHS if known >= STATES else 0
            return whole > self.end if was else whole >= self.start
        hundredths = _weigh(_ICINGA_SUMS, history) * 5
        return hundredths > (self.end if was else self.start)

    def percent(self, history: int, known: int) -> float:
        """The weighted share of transitions, for display."""
        if self.formula == NAGIOS:
            return round(_weigh(_NAGIOS_SUMS, history) * 5 / 76, 2)
        total = _weigh(_ICINGA_SUMS, history)
        if self.formula == SENSU:
            return float(total // TRANSITIONS) if known >= STATES else 0.0
        return total / TRANSITIONS


def _weigh(sums: tuple[tuple[int, ...], tuple[int, ...]], history: int) -> int:
    return sums[0][history & _HALF_MASK] + sums[1][history >> _HALF]


def rule_of(flapping: Flapping) -> FlapRule | None:
    """The rule of a definition; None: flapping detection is off."""
    if flapping.formula == "off":
        return None
    start, end = DEFAULTS[flapping.formula]
    start = start if flapping.start is None else flapping.start
    end = min(end, start) if flapping.end is None else min(flapping.end, start)
    return FlapRule(flapping.formula, round(start * _HUNDREDTHS), round(end * _HUNDREDTHS))

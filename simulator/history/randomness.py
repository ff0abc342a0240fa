"""Random number streams, and daily and weekly rhythms.

A stream depends only on the seed, its number and its slice.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from scale0.pipeline.time_ranges import DAY_US, HOUR_US, MINUTE_US
from simulator.history.rows import Array

TASKS: Final = 2
REQUESTS: Final = 3
CLIENTS: Final = 4
CHECKS: Final = 5
SCRIPTED: Final = 6
"""Stream numbers; planting has number 1."""

DAILY: Final = 0.6
"""The excess over the mean at the peak hour."""
WEEKEND: Final = 0.55
"""Share of a working day."""
_WEEK_DAYS: Final = 7
_SATURDAY: Final = 5
_EPOCH_WEEKDAY: Final = 3
"""1970 began on a Thursday."""


def rng_for(seed: int, stream: int, slice_number: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([seed, stream, slice_number]))


def weight(us: Array, peak_hour: Array | float) -> Array:
    """The relative rate at an instant; the mean of a working day is 1."""
    hour = us % DAY_US / HOUR_US
    weekday = (us // DAY_US + _EPOCH_WEEKDAY) % _WEEK_DAYS
    daily = 1.0 + DAILY * np.cos((hour - peak_hour) * (2.0 * np.pi / 24.0))
    shaped: Array = daily * np.where(weekday >= _SATURDAY, WEEKEND, 1.0)
    return shaped


class Rhythm:
    """Rates by minute with a peak hour, which add up to the expected total."""

    def __init__(self, expected: Array, peak_hours: Array, from_us: int, to_us: int) -> None:
        hours = np.arange(from_us, to_us, HOUR_US)
        total = np.array([weight(hours + HOUR_US // 2, peak).sum() * 60 for peak in peak_hours])
        self._rates = expected / total
        self._peaks = peak_hours

    def draw(self, from_us: int, to_us: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Draw events in [from_us, to_us): the index of each and its time, in no order."""
        minutes = np.arange(from_us, to_us, MINUTE_US)
        means = self._rates[:, None] * weight(minutes[None, :], self._peaks[:, None])
        counts = rng.poisson(means)
        which = np.repeat(np.arange(len(self._rates)), counts.sum(axis=1))
        starts = np.repeat(np.tile(minutes, len(self._rates)), counts.ravel())
        return which, starts + rng.integers(0, MINUTE_US, starts.size)


def microseconds(seconds: Array) -> Array:
    whole: Array = np.round(seconds * 1e6).astype(np.int64)
    return whole

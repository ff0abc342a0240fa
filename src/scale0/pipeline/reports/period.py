"""The period of a report, and which rows of a table with grains cover it exactly.

A period consists of whole hours, except that it ends at the horizon. No second is covered twice.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from scale0.kernel.errors import Scale0Error
from scale0.pipeline.time_ranges import DAY_HOURS, DAY_US, HOUR_US, to_time
from scale0.pipeline.warehouse.selection import Cover, TimeSpan, span_of

FINE_HOURS: Final = 72
"""A period up to this length is shown by hour, a longer one by day."""


class NothingThen(Scale0Error):
    pass


class Period(msgspec.Struct, frozen=True):
    """[from, to), of tables that end at the horizon."""

    from_us: int
    to_us: int
    horizon_us: int
    unit: Literal["hour", "day"]
    """The step in which it is shown."""
    clipped: bool = False
    """True if more was requested than there is."""

    @property
    def unit_us(self) -> int:
        return DAY_US if self.unit == "day" else HOUR_US

    @property
    def seconds(self) -> float:
        return (self.to_us - self.from_us) / 1e6

    @property
    def middle_us(self) -> int:
        """The start of its second half, at a whole step."""
        return -(-((self.from_us + self.to_us) // 2) // self.unit_us) * self.unit_us

    @property
    def bounds(self) -> dict[str, Any]:
        """The query parameters `since` and `until`."""
        return {"since": to_time(self.from_us), "until": to_time(self.to_us)}

    @property
    def cover(self) -> Cover:
        """For tables with grains: whole days, and hours at both ends."""
        hours = span_of(self.from_us, self.to_us)
        if self.unit == "hour":
            return {"hour": (hours,)}
        first = _up(hours.first, DAY_HOURS)
        # The day of the horizon has a row of its own, up to the horizon.
        end = _up(hours.end, DAY_HOURS) if self.to_us == self.horizon_us else hours.end // DAY_HOURS * DAY_HOURS
        end = max(first, end)
        return {
            "hour": (TimeSpan(hours.first, min(first, hours.end)), TimeSpan(end, max(end, hours.end))),
            "day": (TimeSpan(first, end),),
        }

    def steps(self) -> list[int]:
        """The start of every step; the first may begin before the period."""
        return list(range(self.from_us // self.unit_us * self.unit_us, self.to_us, self.unit_us))


def _up(us: int, unit_us: int) -> int:
    return -(-us // unit_us) * unit_us


def period_of(from_us: int | None, to_us: int | None, last_us: int, first_us: int, horizon_us: int) -> Period:
    """The requested period, limited to the tables, which begin at `first_us`. NothingThen if there is no overlap."""
    end = horizon_us if to_us is None else min(_up(to_us, HOUR_US), horizon_us)
    start = end - last_us if from_us is None else from_us
    start = start // HOUR_US * HOUR_US
    if start >= horizon_us:
        raise NothingThen(f"the tables end at {utc_text(horizon_us)}; choose an earlier period")
    if end <= first_us:
        raise NothingThen(f"the tables begin at {utc_text(first_us)}; choose a later period")
    begin = max(start, first_us)
    unit: Literal["hour", "day"] = "hour" if end - begin <= FINE_HOURS * HOUR_US else "day"
    return Period(begin, end, horizon_us, unit, start < first_us)


def utc_text(us: int) -> str:
    return f"{to_time(us):%Y-%m-%d %H:%M} UTC"

"""Hours, days and months as whole numbers: the parts of tables.

A part is an int since the Unix epoch in UTC. Times are whole microseconds.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column

SECOND_US: Final = 1_000_000
MINUTE_US: Final = 60 * SECOND_US
HOUR_US: Final = 60 * MINUTE_US
DAY_US: Final = 24 * HOUR_US
DAY_HOURS: Final = 24

Period = Literal["hour", "day", "month", "open"]
"""What a part covers. `open` is the single part for what has not ended at the horizon; every run rewrites it."""

OPEN_PART: Final = 0
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class TimeRange(NamedTuple):
    """The hours [first, end) of a step, and the horizon: nothing after it has happened.

    If the horizon lies in the last hour, that hour is open: its intervals end at `until_us`, and it has no state.
    """

    first: int
    end: int
    horizon_us: int

    @property
    def hours(self) -> frozenset[int]:
        return frozenset(range(self.first, self.end))

    @property
    def from_us(self) -> int:
        return self.first * HOUR_US

    @property
    def until_us(self) -> int:
        """The end of its intervals: the end of its last hour, or the horizon if that is earlier."""
        return min(self.end * HOUR_US, self.horizon_us)

    @property
    def last_state(self) -> int:
        """The last hour at whose start the state is known: states are computed for (first, last_state]."""
        return min(self.end, hour_of(self.horizon_us))


def hour_of(us: int) -> int:
    return us // HOUR_US


def day_of(hour: int) -> int:
    return hour // DAY_HOURS


def month_of(day: int) -> int:
    """Twelve times the years since 1970, plus the months since January."""
    date = (_EPOCH + datetime.timedelta(days=day)).date()
    return (date.year - 1970) * 12 + date.month - 1


def days_of_month(month: int) -> range:
    return range(_first_day(month), _first_day(month + 1))


def _first_day(month: int) -> int:
    return (datetime.datetime(1970 + month // 12, month % 12 + 1, 1, tzinfo=datetime.UTC) - _EPOCH).days


def days_of(hours: Iterable[int]) -> frozenset[int]:
    return frozenset(day_of(hour) for hour in hours)


def hours_of(days: Iterable[int]) -> frozenset[int]:
    return frozenset(hour for day in days for hour in range(day * DAY_HOURS, (day + 1) * DAY_HOURS))


def to_time(us: int) -> datetime.datetime:
    return _EPOCH + datetime.timedelta(microseconds=us)


def to_us(time: datetime.datetime) -> int:
    return (time - _EPOCH) // datetime.timedelta(microseconds=1)


def part_column(us: Column, part_us: int) -> Column:
    """The hour (HOUR_US), day (DAY_US) or minute of a column of microseconds, as an int. No time is before 1970."""
    from pyspark.sql import functions as f  # noqa: PLC0415  # readers without Spark use the rest of this file

    return f.call_function("div", us, f.lit(part_us)).cast("int")

"""Hours, days and months as whole numbers: the parts that tables are made of.

Lives here: the arithmetic of parts, for the driver and as Spark columns. Never here: a clock. Invariants: a part is an
int since the Unix epoch in UTC: hours, days, or months; time is whole microseconds wherever it is reckoned with.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import Column

SECOND_US: Final = 1_000_000
MINUTE_US: Final = 60 * SECOND_US
HOUR_US: Final = 60 * MINUTE_US
DAY_US: Final = 24 * HOUR_US
DAY_HOURS: Final = 24

Period = Literal["hour", "day", "month", "open"]
"""What a part covers. `open` is the one part of what has not ended at the horizon: it is written anew by every run."""

OPEN_PART: Final = 0
"""The number of the one part of an `open` slab."""

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class TimeRange(NamedTuple):
    """The hours [first, end) that a step goes through, and the horizon: nothing after it has happened.

    The last hour is the open one if the horizon lies in it: its intervals end at `until_us`, and it has no carry.
    """

    first: int
    end: int
    horizon_us: int

    @property
    def hours(self) -> frozenset[int]:
        """All of them."""
        return frozenset(range(self.first, self.end))

    @property
    def from_us(self) -> int:
        """Where it begins."""
        return self.first * HOUR_US

    @property
    def until_us(self) -> int:
        """Where its intervals end: with its last hour, or at the horizon if that comes first."""
        return min(self.end * HOUR_US, self.horizon_us)

    @property
    def last_carry(self) -> int:
        """The last hour at whose start a carry can be known: carries are made for (first, last_carry]."""
        return min(self.end, hour_of(self.horizon_us))


def hour_of(us: int) -> int:
    """The hour that holds an instant."""
    return us // HOUR_US


def day_of(hour: int) -> int:
    """The day that holds an hour."""
    return hour // DAY_HOURS


def month_of(day: int) -> int:
    """The month that holds a day: twelve times the years since 1970, and the months since January."""
    date = (_EPOCH + datetime.timedelta(days=day)).date()
    return (date.year - 1970) * 12 + date.month - 1


def days_of_month(month: int) -> range:
    """The days of a month."""
    return range(_first_day(month), _first_day(month + 1))


def _first_day(month: int) -> int:
    return (datetime.datetime(1970 + month // 12, month % 12 + 1, 1, tzinfo=datetime.UTC) - _EPOCH).days


def to_time(us: int) -> datetime.datetime:
    """An instant as Python has it."""
    return _EPOCH + datetime.timedelta(microseconds=us)


def to_us(time: datetime.datetime) -> int:
    """Whole microseconds of an instant that knows its zone."""
    return (time - _EPOCH) // datetime.timedelta(microseconds=1)


def part_column(us: Column, part_us: int) -> Column:
    """The hour (HOUR_US), day (DAY_US) or minute of a column of microseconds, as an int. Nothing is older than 1970."""
    from pyspark.sql import functions as f  # noqa: PLC0415  # readers without Spark use the rest of this file

    return f.call_function("div", us, f.lit(part_us)).cast("int")

"""`forecasts`: when a metric reaches its limit if the trend of the last 14 days continues, from `metric_trends.hour`.

One row per metric with a limit and day with data, computed from the 14 days that end with that day (the day of the
horizon up to the horizon). Sums are folded in the order of hours, then of days.

An hour's average is placed at the hour's middle. The limit is the one that the line reaches first: going up `max`, or
`crit` if that is not a lower limit; going down `crit` if that is not an upper one (a lower limit has its warning above
it). `exhausted_at` is null if the limit is not ahead, the line is flat, explains less than half of the variance, or has
fewer than 48 points. The interval is where the 90 % confidence band of the line reaches the limit (Fieller's bounds,
Student's t with n - 2 degrees of freedom); correlated hours make it too narrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from scale0.pipeline.aggregations.metrics import HOURS
from scale0.pipeline.marts.series import by_day
from scale0.pipeline.schemas import PART, DataSet, fields
from scale0.pipeline.time_ranges import DAY_HOURS, DAY_US, HOUR_US, day_of, days_of, hour_of, hours_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Set

    from pyspark.sql import Column, DataFrame

    from scale0.pipeline.aggregation import Parameters

FIT_DAYS: Final = 14
MIN_POINTS: Final = 48
MIN_R2: Final = 0.5
ROUNDING: Final = 1e-12
"""Values that differ by less than this share are equal, and their line is flat."""
MAX_DAYS_AHEAD: Final = 3650
"""Ten years: the limit of an extrapolation from two weeks."""

FORECASTS: Final = DataSet(
    name="forecasts",
    table="forecasts",
    period="day",
    schema=fields(
        ("agent", "string"),
        ("check", "string"),
        ("metric", "string"),
        ("as_of", "timestamp"),
        ("slope", "double"),
        ("fitted_from", "timestamp"),
        ("fitted_to", "timestamp"),
        ("limit", "double"),
        ("exhausted_at", "timestamp"),
        ("exhausted_low", "timestamp"),
        ("exhausted_high", "timestamp"),
        ("r2", "double"),
        ("value", "double"),
        ("points", "int"),
    ),
)
"""`as_of` is the start of the last day of the fit, `slope` is per day, `value` is the line's at `fitted_to`, the end of
the newest hour. `exhausted_high` is null beyond ten years.
"""

_KEYS: Final = ("agent", "check", "metric")
_SUMS: Final = ("n", "mean_x", "mean_y", "sxx", "sxy", "syy")
"""Of points (x hours, y): their number, their means, and the sums of squares and products of deviations."""

_Z: Final = 1.6448536269514722
"""The 95 % quantile of the normal distribution."""


class Forecasts:
    name: Final = "forecasts"
    data_sets: Final = (FORECASTS,)
    inputs: Final = (HOURS.name,)

    def touched(self, changed: Mapping[str, Set[int]], horizon_us: int) -> Set[int]:
        """The days of the changed hours and the 13 after, up to the day of the horizon."""
        today = day_of(hour_of(horizon_us))
        days = days_of(changed.get(HOURS.name, ()))
        return {day + ahead for day in days for ahead in range(FIT_DAYS) if day + ahead <= today}

    def wants(self, parts: Set[int]) -> Mapping[str, Set[int]]:
        """All hours of the 14 days that end with each."""
        days = {day - back for day in parts for back in range(FIT_DAYS) if day >= back}
        return {HOURS.name: hours_of(days)}

    def compute(
        self, inputs: Mapping[str, DataFrame], parts: Set[int], horizon_us: int, parameters: Parameters
    ) -> Mapping[str, DataFrame]:
        days = day_sums(inputs[HOURS.name])
        return {FORECASTS.name: crossings(lines(fortnights(days, sorted(parts))))}


def day_sums(hours: DataFrame) -> DataFrame:
    """The sums of each metric's day, x from the day's start; with its first and last hour, and its newest limits."""
    newest = [f.max_by(name, f.col(PART)).alias(name) for name in ("limit_warn", "limit_crit", "limit_max")]
    ends = [f.min(PART).alias("first_hour"), f.max(PART).alias("last_hour")]
    days = by_day(hours.where(f.col("avg").isNotNull()), _KEYS, "avg", [*newest, *ends])
    at = f.filter(
        f.transform("hours", lambda y, hour: f.struct((hour + 0.5).alias("x"), y.alias("y"))),
        lambda point: point["y"].isNotNull(),
    )
    rest = ("day", "limit_warn", "limit_crit", "limit_max", "first_hour", "last_hour")
    points = days.select(*_KEYS, *rest, at.alias("at"))
    n = f.size("at").cast("double")
    means = points.select(
        *(*_KEYS, *rest, "at"),
        n.alias("n"),
        (_sum(lambda point: point["x"]) / n).alias("mean_x"),
        (_sum(lambda point: point["y"]) / n).alias("mean_y"),
    )

    def dx(point: Column) -> Column:
        return point["x"] - f.col("mean_x")

    def dy(point: Column) -> Column:
        return point["y"] - f.col("mean_y")

    return means.select(
        *(*_KEYS, *rest, "n", "mean_x", "mean_y"),
        _sum(lambda point: dx(point) * dx(point)).alias("sxx"),
        _sum(lambda point: dx(point) * dy(point)).alias("sxy"),
        _sum(lambda point: dy(point) * dy(point)).alias("syy"),
    )


def _sum(of: Callable[[Column], Column]) -> Column:
    return f.aggregate("at", f.lit(0.0), lambda total, point: total + of(point))


def fortnights(days: DataFrame, as_of: list[int]) -> DataFrame:
    """The sums of the 14 days that end with each of these days, x from that day's start; if the day has data."""
    listed = days.groupBy(*_KEYS).agg(
        f.sort_array(
            f.collect_list(f.struct("day", *_SUMS, "first_hour", "last_hour", "limit_warn", "limit_crit", "limit_max"))
        ).alias("days")
    )
    wanted = (
        f.split(f.lit(",".join(map(str, as_of))), ",").cast("array<int>") if as_of else f.array().cast("array<int>")
    )

    def window(day: Column) -> Column:
        within = f.filter("days", lambda one: (one["day"] > day - FIT_DAYS) & (one["day"] <= day))
        return f.struct(day.alias(PART), within.alias("within"))

    spans = listed.select(*_KEYS, f.inline(f.transform(wanted, window))).select(
        *(*_KEYS, PART, "within"), f.get("within", f.size("within") - 1).alias("newest")
    )
    limited = f.col("newest.limit_crit").isNotNull() | f.col("newest.limit_max").isNotNull()
    return spans.where((f.col("newest.day") == f.col(PART)) & limited).select(
        *(*_KEYS, PART),
        f.col("within")[0]["first_hour"].alias("first_hour"),
        *("newest.last_hour", "newest.limit_warn", "newest.limit_crit", "newest.limit_max"),
        f.aggregate("within", f.struct(*(f.lit(0.0).alias(name) for name in _SUMS)), _merged).alias("sums"),
    )


def _merged(all_: Column, day: Column) -> Column:
    """Merge the sums of two sets of points without cancellation."""
    n = all_["n"] + day["n"]
    share = day["n"] / n
    weight = all_["n"] * share
    dx = day["mean_x"] + (day["day"] - f.col(PART)) * float(DAY_HOURS) - all_["mean_x"]
    dy = day["mean_y"] - all_["mean_y"]
    return f.struct(
        n.alias("n"),
        (all_["mean_x"] + dx * share).alias("mean_x"),
        (all_["mean_y"] + dy * share).alias("mean_y"),
        (all_["sxx"] + day["sxx"] + dx * dx * weight).alias("sxx"),
        (all_["sxy"] + day["sxy"] + dx * dy * weight).alias("sxy"),
        (all_["syy"] + day["syy"] + dy * dy * weight).alias("syy"),
    )


def lines(spans: DataFrame) -> DataFrame:
    """Each span's line: `slope_x` per hour, `value` at the end of the newest hour, `r2`, and the limit `ahead`."""
    flat = f.col("syy") <= f.pow(f.col("mean_y") * ROUNDING, f.lit(2.0)) * f.col("n")
    share = f.try_divide(f.col("sxy") * f.col("sxy"), f.col("sxx") * f.col("syy"))
    fitted = spans.select("*", "sums.*").select(
        "*",
        f.when(flat & (f.col("sxx") > 0.0), 0.0).otherwise(f.try_divide("sxy", "sxx")).alias("slope_x"),
        f.when(~flat, f.least(f.lit(1.0), share)).alias("r2"),
        (f.col("last_hour") + 1 - f.col(PART) * DAY_HOURS).alias("to_x"),
    )
    valued = fitted.select("*", (f.col("mean_y") + f.col("slope_x") * (f.col("to_x") - f.col("mean_x"))).alias("value"))
    crit, most, warn = f.col("limit_crit"), f.col("limit_max"), f.col("limit_warn")
    value, slope = f.col("value"), f.col("slope_x")
    above = f.least(f.when((crit >= value) & (warn.isNull() | (warn <= crit)), crit), f.when(most >= value, most))
    below = f.when((crit <= value) & (warn.isNull() | (warn >= crit)), crit)
    return valued.select("*", f.when(slope > 0.0, above).when(slope < 0.0, below).alias("ahead"))


def crossings(rows: DataFrame) -> DataFrame:
    """The table: where each line reaches its limit, and the bounds."""
    n, sxx, slope = f.col("n"), f.col("sxx"), f.col("slope_x")
    fits = f.col("ahead").isNotNull() & (f.col("r2") >= MIN_R2) & (n >= MIN_POINTS)
    residual = f.greatest(f.lit(0.0), f.col("syy") - f.col("sxy") * slope) / (n - 2.0)
    spread = rows.select(
        "*",
        f.when(fits, f.col("ahead") - f.col("mean_y")).alias("rise"),
        f.when(fits, residual * _student(n - 2.0) * _student(n - 2.0)).alias("noise"),
    )
    # The bounds u solve (rise - slope·u)² = noise·(1/n + u²/sxx), u from the mean of x.
    rise, noise = f.col("rise"), f.col("noise")
    square = slope * slope - noise / sxx
    root = f.sqrt(f.greatest(f.lit(0.0), slope * slope * rise * rise - square * (rise * rise - noise / n)))
    solved = spread.select(
        "*",
        (rise / slope).alias("at_x"),
        f.when(square > 0.0, (slope * rise - root) / square).alias("low_x"),
        f.when(square > 0.0, (slope * rise + root) / square).alias("high_x"),
    )
    known = _time("at_x").isNotNull()
    return solved.select(
        *_KEYS,
        f.timestamp_micros(f.col(PART).cast("bigint") * DAY_US).alias("as_of"),
        (slope * float(DAY_HOURS)).alias("slope"),
        f.timestamp_micros(f.col("first_hour").cast("bigint") * HOUR_US).alias("fitted_from"),
        f.timestamp_micros((f.col("last_hour") + 1).cast("bigint") * HOUR_US).alias("fitted_to"),
        f.coalesce("ahead", "limit_crit", "limit_max").alias("limit"),
        _time("at_x").alias("exhausted_at"),
        f.when(known, _time("low_x")).alias("exhausted_low"),
        f.when(known, _time("high_x")).alias("exhausted_high"),
        "r2",
        "value",
        n.cast("int").alias("points"),
        PART,
    )


def _student(freedom: Column) -> Column:
    """The 95 % quantile of Student's t: the first terms of its expansion, within 1e-4 from 46 degrees of freedom on."""
    first = (_Z**3 + _Z) / 4.0
    second = (5.0 * _Z**5 + 16.0 * _Z**3 + 3.0 * _Z) / 96.0
    return f.lit(_Z) + f.lit(first) / freedom + f.lit(second) / (freedom * freedom)


def _time(name: str) -> Column:
    """Hours from the mean of x as a time; null beyond MAX_DAYS_AHEAD."""
    hours = f.col(name) + f.col("mean_x")
    us = f.round(hours * float(HOUR_US)).cast("bigint") + f.col(PART).cast("bigint") * DAY_US
    return f.when(f.abs(hours) <= float(MAX_DAYS_AHEAD * DAY_HOURS), f.timestamp_micros(us))

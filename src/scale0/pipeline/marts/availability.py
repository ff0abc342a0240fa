"""Availability by hour, day and month, for every subject.

Up, down, downtime, unobserved and absent add up to the period up to the horizon, to the microsecond: absent is the
rest, so it does not matter whether the timeline has rows of an absent subject. Sums are whole microseconds, kept in
hidden columns; a coarser grain sums the finer one and divides again. A subject has a row where its timeline has one, or
where its incident ended because its timeline did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from scale0.pipeline.aggregation import PeriodMart
from scale0.pipeline.aggregations.incidents import CLOSED, EDGES, OPENED
from scale0.pipeline.schemas import DOWN, DOWNTIME, PART, SOFT, TIMELINE, UNOBSERVED, UP, DataSet, day_of_hour, fields
from scale0.pipeline.time_ranges import DAY_US, HOUR_US, SECOND_US, Period

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

TIMELINES: Final = ("timeline.checks", "timeline.world")

SUMS: Final = (
    "up_us",
    "down_us",
    "downtime_us",
    "unobserved_us",
    "soft_us",
    "flapping_us",
    "incidents",
    "closed",
    "closed_down_us",
)
"""What adds up over time. `closed` counts incidents closed in the period, `closed_down_us` is their total down time."""

_KEY: Final = ("subject_kind", "subject")
_SHOWN_SUM: Final = "incidents"

_SCHEMA: Final = fields(
    ("subject_kind", "string"),
    ("subject", "string"),
    ("grain", "string"),
    ("start", "timestamp"),
    ("up_seconds", "double"),
    ("down_seconds", "double"),
    ("downtime_seconds", "double"),
    ("unobserved_seconds", "double"),
    ("absent_seconds", "double"),
    ("soft_seconds", "double"),
    ("availability_low", "double"),
    ("availability_high", "double"),
    ("incidents", "bigint"),
    ("mttr_seconds", "double"),
    ("mtbf_seconds", "double"),
    *((name, "bigint") for name in SUMS if name != _SHOWN_SUM),
)
_HIDDEN: Final = tuple(name for name in SUMS if name != _SHOWN_SUM)


def _data_set(grain: Period) -> DataSet:
    return DataSet(f"availability.{grain}", "availability", grain, _SCHEMA, hidden=_HIDDEN)


AVAILABILITY_HOURS: Final = _data_set("hour")
AVAILABILITY_DAYS: Final = _data_set("day")
AVAILABILITY_MONTHS: Final = _data_set("month")


def hours(inputs: Mapping[str, DataFrame], horizon_us: int) -> DataFrame:
    """From the hour's timeline, and the incidents that opened and closed in it."""
    columns = [*TIMELINE.fieldNames(), PART]
    checks, presence = (inputs[name].select(*columns) for name in TIMELINES)
    alone, others = _apart(checks.unionByName(presence), inputs[EDGES.name])
    sums = alone.unionByName(_summed(others.unionByName(inputs[EDGES.name].selectExpr(*_OF_EDGES))))
    return _shown(sums, "hour", f"{PART} * {HOUR_US}L", f"({PART} + 1) * {HOUR_US}L", horizon_us)


def days(inputs: Mapping[str, DataFrame], horizon_us: int) -> DataFrame:
    rows = inputs[AVAILABILITY_HOURS.name].select(*_KEY, *SUMS, day_of_hour().alias(PART))
    return _shown(_summed(rows), "day", f"{PART} * {DAY_US}L", f"({PART} + 1) * {DAY_US}L", horizon_us)


def months(inputs: Mapping[str, DataFrame], horizon_us: int) -> DataFrame:
    rows = inputs[AVAILABILITY_DAYS.name].selectExpr(*_KEY, *SUMS, f"{month_of_time('start')} AS {PART}")
    return _shown(_summed(rows), "month", month_start_us(PART), month_start_us(f"{PART} + 1"), horizon_us)


HOUR_MART: Final = PeriodMart(AVAILABILITY_HOURS.name, AVAILABILITY_HOURS, (*TIMELINES, EDGES.name), hours)
DAY_MART: Final = PeriodMart(AVAILABILITY_DAYS.name, AVAILABILITY_DAYS, (AVAILABILITY_HOURS.name,), days)
MONTH_MART: Final = PeriodMart(AVAILABILITY_MONTHS.name, AVAILABILITY_MONTHS, (AVAILABILITY_DAYS.name,), months)


def month_of_time(time: str) -> str:
    """The month of a timestamp, as `time_ranges.month_of` counts it. The session's zone is UTC."""
    return f"CAST((year({time}) - 1970) * 12 + month({time}) - 1 AS INT)"


def month_start_us(month: str) -> str:
    return f"unix_micros(CAST(add_months(DATE '1970-01-01', {month}) AS TIMESTAMP))"


_KINDS: Final = (UP, DOWN, DOWNTIME, UNOBSERVED)
_PIECE_US: Final = "unix_micros(`to`) - unix_micros(`from`)"

_OF_TIMELINE: Final = (
    *_KEY,
    PART,
    *(f"IF(class = '{kind}', {_PIECE_US}, 0L) AS {kind}_us" for kind in _KINDS),
    f"IF(class = '{UP}' AND reason = '{SOFT}', {_PIECE_US}, 0L) AS soft_us",
    f"IF(flapping, {_PIECE_US}, 0L) AS flapping_us",
    "0L AS incidents",
    "0L AS closed",
    "0L AS closed_down_us",
)
"""What each piece adds."""

_OF_EDGES: Final = (
    *_KEY,
    PART,
    *(f"0L AS {name}" for name in SUMS[:6]),
    f"IF(edge = '{OPENED}', 1L, 0L) AS incidents",
    f"IF(edge = '{CLOSED}', 1L, 0L) AS closed",
    f"IF(edge = '{CLOSED}', down_us, 0L) AS closed_down_us",
)


def _apart(timeline: DataFrame, edges: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Pieces that are sums already, and those that must be summed.

    Nearly every piece fills its hour and is the only one of its subject, except for an incident that opened or closed
    at its start. Summing three million groups of one costs several times as much as this distinction.
    """
    at_start = edges.filter(f"unix_micros(at) = {PART} * {HOUR_US}L").select(PART, *_KEY).distinct()
    met = f.broadcast(at_start.selectExpr("*", "true AS met"))
    pieces = timeline.join(met, on=[PART, *_KEY], how="left")
    alone = f"met IS NULL AND {_PIECE_US} = {HOUR_US}"
    return pieces.filter(alone).selectExpr(*_OF_TIMELINE), pieces.filter(f"NOT ({alone})").selectExpr(*_OF_TIMELINE)


def _summed(rows: DataFrame) -> DataFrame:
    """One hash aggregation: whole numbers only, so its buffers have a fixed width and nothing is sorted."""
    return rows.groupBy(PART, *_KEY).agg(*(f.expr(f"sum({name}) AS {name}") for name in SUMS))


def _shown(sums: DataFrame, grain: Period, start_us: str, end_us: str, horizon_us: int) -> DataFrame:
    """The table's columns from the sums; a part with the horizon counts up to it. 0/0 and n/0 are null."""
    judged_us = "(up_us + down_us + unobserved_us)"
    absent_us = f"(least({end_us}, {horizon_us}L) - {start_us} - downtime_us - {judged_us})"
    return sums.selectExpr(
        *_KEY,
        f"'{grain}' AS grain",
        f"timestamp_micros({start_us}) AS start",
        *(f"{kind}_us / {SECOND_US} AS {kind}_seconds" for kind in _KINDS),
        f"{absent_us} / {SECOND_US} AS absent_seconds",
        f"soft_us / {SECOND_US} AS soft_seconds",
        f"IF({judged_us} > 0, up_us / {judged_us}, NULL) AS availability_low",
        f"IF({judged_us} > 0, (up_us + unobserved_us) / {judged_us}, NULL) AS availability_high",
        "incidents",
        f"IF(closed > 0, closed_down_us / {SECOND_US} / closed, NULL) AS mttr_seconds",
        f"IF(incidents > 0, up_us / {SECOND_US} / incidents, NULL) AS mtbf_seconds",
        *_HIDDEN,
        PART,
    )

"""Availability and audit: worked examples by hand, and random histories against the oracle, at every grain.

Promise: PIPE-7
"""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from scale0.pipeline.aggregation import Parameters
from scale0.pipeline.aggregations.incidents import EDGES
from scale0.pipeline.aggregations.presence_sources import SOURCE_HOURS
from scale0.pipeline.marts.audit import AUDIT
from scale0.pipeline.marts.availability import AVAILABILITY_HOURS, DAY_MART, HOUR_MART, MONTH_MART
from scale0.pipeline.schemas import PART, TIMELINE, fields
from scale0.pipeline.time_ranges import DAY_HOURS, DAY_US, HOUR_US, day_of, days_of_month, hour_of, month_of
from tests.pipeline import oracle_incidents as oracle
from tests.pipeline.events import START_HOUR, with_part
from tests.pipeline.oracle_incidents import Piece, Subject, piece, us

NODE = ("client", "node-1")
WEB = ("check", "web-1/http")
NOVEMBER = month_of(day_of(START_HOUR))

TIMELINE_SHAPE = with_part(TIMELINE)

Shown = dict[Subject, dict[str, Any]]


def hours(spark: SparkSession, pieces: list[Piece], horizon_us: int) -> DataFrame:
    """availability.hour of a whole history; the checks' timeline and the others' come apart, as they are stored."""
    rows = oracle.timeline_rows(pieces, horizon_us)
    inputs = {
        "timeline.checks": spark.createDataFrame([r for r in rows if r[0] == "check"], TIMELINE_SHAPE),
        "timeline.world": spark.createDataFrame([r for r in rows if r[0] != "check"], TIMELINE_SHAPE),
        EDGES.name: oracle.edge_frame(spark, oracle.edge_rows(pieces, horizon_us)),
    }
    parts = frozenset(range(START_HOUR, hour_of(horizon_us) + 1))
    return HOUR_MART.compute(inputs, parts, horizon_us, Parameters())[AVAILABILITY_HOURS.name]


def days(hourly: DataFrame, horizon_us: int) -> DataFrame:
    parts = frozenset(range(day_of(START_HOUR), day_of(hour_of(horizon_us)) + 1))
    return DAY_MART.compute({AVAILABILITY_HOURS.name: hourly}, parts, horizon_us, Parameters())["availability.day"]


def months(daily: DataFrame, horizon_us: int) -> DataFrame:
    parts = frozenset(range(NOVEMBER, month_of(day_of(hour_of(horizon_us))) + 1))
    return MONTH_MART.compute({"availability.day": daily}, parts, horizon_us, Parameters())["availability.month"]


def shown(frame: DataFrame) -> dict[int, Shown]:
    """By part and subject: the columns that people read."""
    hidden = [*AVAILABILITY_HOURS.hidden, "subject_kind", "subject", PART, "grain", "start"]
    found: dict[int, Shown] = {}
    for row in frame.withColumn("start", f.unix_micros("start")).collect():
        columns = row.asDict()
        subject = (columns["subject_kind"], columns["subject"])
        shown = {name: value for name, value in columns.items() if name not in hidden}
        assert subject not in found.setdefault(columns[PART], {})
        found[columns[PART]][subject] = shown
    return found


def month_us(month: int) -> int:
    return days_of_month(month).start * DAY_US


# By hand.


def test_two_outages_give_the_repair_and_the_failure_time_of_a_schoolbook(spark: SparkSession):
    pieces = [
        piece(NODE, 0, 3000, "up"),
        piece(NODE, 3000, 4200, "down"),  # 1,200 s, closed in the second hour
        piece(NODE, 4200, 6000, "up"),
        piece(NODE, 6000, 6300, "down"),  # 300 s down, 300 s of downtime within it
        piece(NODE, 6300, 6600, "downtime"),
        piece(NODE, 6600, 9000, "up"),
    ]
    horizon_us = us(7200)
    hourly = hours(spark, pieces, horizon_us)
    first, second = (shown(hourly)[START_HOUR + n][NODE] for n in range(2))
    assert (first["up_seconds"], first["down_seconds"], first["incidents"]) == (3000, 600, 1)
    assert (first["mttr_seconds"], first["mtbf_seconds"]) == (None, 3000)
    assert (second["up_seconds"], second["down_seconds"], second["downtime_seconds"]) == (2400, 900, 300)
    assert (second["mttr_seconds"], second["mtbf_seconds"]) == ((1200 + 300) / 2, 2400)
    assert second["availability_low"] == second["availability_high"] == 2400 / 3300
    day = shown(days(hourly, horizon_us))[day_of(START_HOUR)][NODE]
    assert (day["incidents"], day["mttr_seconds"], day["mtbf_seconds"]) == (2, 750, 5400 / 2)
    assert day["availability_low"] == 5400 / 6900


def test_what_nobody_saw_may_have_been_up_or_down(spark: SparkSession):
    pieces = [
        piece(WEB, 0, 900, "up", state="warning", reason="soft"),
        piece(WEB, 900, 1800, "up", state="ok"),
        piece(WEB, 1800, 2700, "unobserved"),
        piece(WEB, 2700, 3600, "down", state="critical"),
    ]
    hour = shown(hours(spark, pieces, us(3600)))[START_HOUR][WEB]
    assert hour["soft_seconds"] == 900
    assert (hour["availability_low"], hour["availability_high"]) == (0.5, 0.75)


def test_a_subject_that_nobody_could_judge_has_no_availability(spark: SparkSession):
    pieces = [piece(NODE, 0, 3600, "downtime")]
    hour = shown(hours(spark, pieces, us(3600)))[START_HOUR][NODE]
    assert (hour["availability_low"], hour["availability_high"]) == (None, None)
    assert (hour["mttr_seconds"], hour["mtbf_seconds"]) == (None, None)


def test_absent_is_what_is_left_of_a_period_up_to_the_horizon(spark: SparkSession):
    pieces = [piece(NODE, 10 * 3600 + 600, 11 * 3600, "up")]  # first seen at 10:10, gone at 11:00
    horizon_us = us(20 * 3600)
    hourly = hours(spark, pieces, horizon_us)
    daily = days(hourly, horizon_us)
    assert {part: own[NODE]["absent_seconds"] for part, own in shown(hourly).items()} == {START_HOUR + 10: 600}
    assert shown(daily)[day_of(START_HOUR)][NODE]["absent_seconds"] == 20 * 3600 - 3000
    month = shown(months(daily, horizon_us))[NOVEMBER][NODE]
    assert month["absent_seconds"] == 44 * 3600 - 3000  # START is the second of November


def test_an_incident_that_ends_with_its_subject_counts_in_the_hour_that_begins(spark: SparkSession):
    pieces = [piece(NODE, 0, 3600, "down")]
    hourly = shown(hours(spark, pieces, us(7000)))
    assert hourly[START_HOUR][NODE]["mttr_seconds"] is None
    after = hourly[START_HOUR + 1][NODE]
    assert (after["mttr_seconds"], after["absent_seconds"], after["availability_low"]) == (3600, 3400, None)


def test_an_incident_that_ends_on_the_hour_counts_in_the_hour_that_is_up_from_then_on(spark: SparkSession):
    pieces = [piece(NODE, 3000, 3600, "down"), piece(NODE, 3600, 7200, "up"), piece(NODE, 7200, 9000, "down")]
    hourly = shown(hours(spark, pieces, us(7201)))
    assert [hourly[START_HOUR + n][NODE]["incidents"] for n in range(3)] == [1, 0, 1]
    assert [hourly[START_HOUR + n][NODE]["mttr_seconds"] for n in range(3)] == [None, 600, None]
    assert [hourly[START_HOUR + n][NODE]["down_seconds"] for n in range(3)] == [600, 0, 1]


# Which parts follow from which.


def test_hours_touch_themselves_their_day_and_their_month():
    hour = START_HOUR + 30
    changed = {"timeline.world": {hour}, EDGES.name: {hour + 1}}
    assert HOUR_MART.touched(changed, 0) == {hour, hour + 1}
    assert HOUR_MART.wants({hour}) == {name: {hour} for name in HOUR_MART.inputs}
    day = day_of(hour)
    assert DAY_MART.touched({AVAILABILITY_HOURS.name: {hour}}, 0) == {day}
    assert DAY_MART.wants({day}) == {AVAILABILITY_HOURS.name: set(range(day * DAY_HOURS, (day + 1) * DAY_HOURS))}
    assert MONTH_MART.touched({"availability.day": {day}}, 0) == {NOVEMBER}
    assert len(MONTH_MART.wants({NOVEMBER})["availability.day"]) == 30


# At random.


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_every_grain_is_what_the_oracle_says_over_a_months_end(spark: SparkSession, seed: int):
    days_on = 28  # the random part begins on the last day of November
    pieces, horizon_us = oracle.later(oracle.history(seed, subjects=12, hours=30), days_on * DAY_US)
    hourly = hours(spark, pieces, horizon_us).persist()
    daily = days(hourly, horizon_us).persist()
    for part, own in shown(hourly).items():
        assert own == oracle.availability(pieces, part * HOUR_US, (part + 1) * HOUR_US, horizon_us)
        for numbers in own.values():
            kinds = ("up", "down", "downtime", "unobserved", "absent")
            elapsed_us = min((part + 1) * HOUR_US, horizon_us) - part * HOUR_US
            assert sum(round(numbers[f"{kind}_seconds"] * 1_000_000) for kind in kinds) == elapsed_us
    by_day = shown(daily)
    assert len(by_day) == 2
    for part, own in by_day.items():
        assert own == oracle.availability(pieces, part * DAY_US, (part + 1) * DAY_US, horizon_us)
    by_month = shown(months(daily, horizon_us))
    assert by_month.keys() == {NOVEMBER, NOVEMBER + 1}
    for part, own in by_month.items():
        assert own == oracle.availability(pieces, month_us(part), month_us(part + 1), horizon_us)
    spark.catalog.clearCache()


# The audit: a day of a source is the sum of its hours.


DAY = START_HOUR // DAY_HOURS


def test_a_changed_hour_touches_its_day_and_wants_all_of_it():
    assert AUDIT.touched({"source_hours": {START_HOUR, START_HOUR + 23, START_HOUR + 24}}, 0) == {DAY, DAY + 1}
    assert AUDIT.wants({DAY})["source_hours"] == set(range(START_HOUR, START_HOUR + 24))


def test_a_day_is_the_sum_of_its_hours(spark: SparkSession):
    schema = fields((PART, "int"), *((field.name, field.dataType) for field in SOURCE_HOURS.schema))
    hours = [
        (START_HOUR, "east", 10, 1, 10, 0, 0, 1, 0),
        (START_HOUR + 23, "east", 5, 14, 18, 1, 0, 0, 2),
        (START_HOUR + 24, "east", 2, 17, 18, 0, 1, 0, 0),
        (START_HOUR + 1, "west", 0, None, None, 0, 0, 3, 0),
    ]
    rows = spark.createDataFrame(hours, schema)
    days = AUDIT.compute({"source_hours": rows}, {DAY, DAY + 1}, 0, Parameters())["audit"]
    assert sorted(tuple(row) for row in days.collect()) == [
        (DAY, "east", datetime.date(2026, 11, 2), 15, 1, 18, 1, 0, 1, 2),
        (DAY, "west", datetime.date(2026, 11, 2), 0, None, None, 0, 0, 3, 0),
        (DAY + 1, "east", datetime.date(2026, 11, 3), 2, 17, 18, 0, 1, 0, 0),
    ]

"""Noise: whose alerts count, in which month, and who comes first."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from scale0.pipeline.aggregation import Parameters
from scale0.pipeline.aggregations.incidents import EDGES
from scale0.pipeline.marts.availability import AVAILABILITY_MONTHS
from scale0.pipeline.marts.noise import NOISE, Noise
from scale0.pipeline.schemas import PART, fields
from scale0.pipeline.time_ranges import DAY_HOURS, DAY_US, HOUR_US, day_of, days_of_month, hour_of, month_of
from tests.pipeline import oracle_incidents as oracle
from tests.pipeline.events import START_HOUR
from tests.pipeline.oracle_incidents import Piece, piece, us

NOVEMBER = month_of(day_of(START_HOUR))
MONTH_END = 29 * 86_400
"""Seconds from START, the second of November, to December."""


def noise(spark: SparkSession, pieces: list[Piece], months: set[int], horizon_us: int) -> dict[int, list[Any]]:
    """By month: check, alerts, share, flapping seconds, rank; given exactly the parts that it wants."""
    wanted = Noise().wants(months)
    edges = [edge for edge in oracle.edge_rows(pieces, horizon_us) if edge[-1] in wanted[EDGES.name]]
    flapping: dict[tuple[int, oracle.Subject], int] = {}
    for one in oracle.cut(pieces, horizon_us):
        key = (month_of(day_of(hour_of(one.from_us))), one.subject)
        flapping[key] = flapping.get(key, 0) + (one.to_us - one.from_us if one.flapping else 0)
    rows = [(*subject, lasted, month) for (month, subject), lasted in flapping.items() if month in months]
    inputs = {
        EDGES.name: oracle.edge_frame(spark, edges),
        AVAILABILITY_MONTHS.name: spark.createDataFrame(
            rows, fields(("subject_kind", "string"), ("subject", "string"), ("flapping_us", "bigint"), (PART, "int"))
        ),
    }
    made = Noise().compute(inputs, frozenset(months), horizon_us, Parameters())[NOISE.name]
    found: dict[int, list[Any]] = {}
    for row in made.withColumn("month", f.unix_micros("month")).orderBy(PART, "rank").collect():
        assert row["month"] == days_of_month(row[PART]).start * DAY_US
        found.setdefault(row[PART], []).append(
            (row["check"], row["alerts"], row["closed_quickly_share"], row["flapping_seconds"], row["rank"])
        )
    return found


def down(agent: str, check: str, start: float, seconds: float, **more: Any) -> list[Piece]:
    subject = ("check", f"{agent}/{check}")
    return [
        piece(subject, start, start + seconds, "down", state="critical", **more),
        piece(subject, start + seconds, start + seconds + 1000, "up", state="ok"),
    ]


def test_the_noisiest_check_over_all_agents_comes_first(spark: SparkSession):
    pieces = [
        *down("web-1", "http", 0, 300),
        *down("web-2", "http", 100, 300.000001),
        *down("web-1", "disk /var", 0, 60, flapping=True),
        *down("web-1", "load", 0, 60),
        piece(("check", "web-1/quiet"), 0, 500, "up"),
        piece(("client", "node-1"), 0, 500, "down"),
    ]
    assert noise(spark, pieces, {NOVEMBER}, us(5000)) == {
        NOVEMBER: [
            ("http", 2, 0.5, 0.0, 1),
            ("disk /var", 1, 1.0, 60.0, 2),
            ("load", 1, 1.0, 0.0, 3),
            ("quiet", 0, None, 0.0, 4),
        ]
    }


def test_an_alert_belongs_to_the_month_that_opened_it_wherever_it_closes(spark: SparkSession):
    pieces = down("web-1", "http", MONTH_END - 60, 120)
    found = noise(spark, pieces, {NOVEMBER, NOVEMBER + 1}, us(MONTH_END + 5000))
    assert found == {NOVEMBER: [("http", 1, 1.0, 0.0, 1)], NOVEMBER + 1: [("http", 0, None, 0.0, 1)]}
    assert noise(spark, pieces, {NOVEMBER}, us(MONTH_END + 5000)) == {NOVEMBER: found[NOVEMBER]}


def test_the_first_hour_of_a_month_may_change_the_one_before():
    first = days_of_month(NOVEMBER + 1).start * DAY_HOURS
    assert us(MONTH_END) == first * HOUR_US
    assert Noise().touched({EDGES.name: {first}}, 0) == {NOVEMBER, NOVEMBER + 1}
    assert Noise().touched({EDGES.name: {first + 1}}, 0) == {NOVEMBER + 1}
    assert Noise().touched({AVAILABILITY_MONTHS.name: {NOVEMBER}}, 0) == {NOVEMBER}


@pytest.mark.slow
def test_random_histories_are_as_noisy_as_the_oracle_says(spark: SparkSession):
    pieces, horizon_us = oracle.later(oracle.history(5, subjects=20, hours=30), 28 * DAY_US)
    months = {NOVEMBER, NOVEMBER + 1}
    assert noise(spark, pieces, months, horizon_us) == {m: oracle.noise(pieces, m, horizon_us) for m in months}

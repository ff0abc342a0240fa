"""Incidents: worked examples by hand, and random histories against the oracle, whatever the steps.

Promise: PIPE-5
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from scale0.pipeline.aggregation import Parameters
from scale0.pipeline.aggregations.incidents import EDGES, INCIDENTS, OPEN_INCIDENTS, STATE, IncidentAggregation
from scale0.pipeline.schemas import PART, TIMELINE, DataSet
from scale0.pipeline.time_ranges import HOUR_US, SECOND_US, TimeRange, hour_of
from tests.pipeline import oracle_incidents as oracle
from tests.pipeline.events import START_HOUR, with_part
from tests.pipeline.oracle_incidents import Piece, piece, us

Made = dict[str, list[tuple[Any, ...]]]

SHAPE = with_part(TIMELINE)
WEB = ("check", "web-1/http")
DISK = ("check", "web-1/disk")
NODE = ("client", "node-1")


@pytest.fixture(autouse=True)
def _clear(request: pytest.FixtureRequest) -> Iterator[None]:
    """A step keeps a frame; the engine would clear it."""
    yield
    if "spark" in request.fixturenames:
        request.getfixturevalue("spark").catalog.clearCache()


def timeline(spark: SparkSession, pieces: list[Piece], time_range: TimeRange) -> DataFrame:
    rows = [
        r for r in oracle.timeline_rows(pieces, time_range.horizon_us) if time_range.first <= r[-1] < time_range.end
    ]
    return spark.createDataFrame(rows, SHAPE)


def plain(frame: DataFrame, data_set: DataSet) -> list[tuple[Any, ...]]:
    """Rows of a data set with `part` last; times in microseconds, structs as tuples; in one order."""
    columns = [
        f.unix_micros(field.name).alias(field.name) if field.dataType == t.TimestampType() else f.col(field.name)
        for field in data_set.schema
    ]
    rows = [tuple(row) for row in frame.select(*columns, PART).collect()]
    plainer = [tuple([tuple(v) for v in value] if isinstance(value, list) else value for value in row) for row in rows]
    return sorted(plainer, key=lambda row: (row[-1], row[2], row[:2], str(row)))


def step(spark: SparkSession, state: list[tuple[Any, ...]], pieces: list[Piece], time_range: TimeRange) -> Made:
    before = spark.createDataFrame([row[:-1] for row in state], STATE.schema)
    made = IncidentAggregation().step(
        before, {"timeline": timeline(spark, pieces, time_range)}, time_range, Parameters()
    )
    data_sets = (INCIDENTS, OPEN_INCIDENTS, EDGES, STATE)
    return {data_set.name: plain(made[data_set.name], data_set) for data_set in data_sets}


def walk(spark: SparkSession, pieces: list[Piece], horizon_us: int, borders: list[int]) -> Made:
    """Step from border to border, each with the carry of the one before; all that was made."""
    total: Made = {data_set.name: [] for data_set in (INCIDENTS, OPEN_INCIDENTS, EDGES, STATE)}
    for first, end in pairwise(borders):
        state = [row for row in total[STATE.name] if row[-1] == first]
        made = step(spark, state, pieces, TimeRange(first, end, horizon_us))
        for name, rows in made.items():
            total[name] = rows if name == OPEN_INCIDENTS.name else total[name] + rows
    return {name: sorted(rows, key=lambda row: (row[-1], row[2], row[:2], str(row))) for name, rows in total.items()}


def at_once(spark: SparkSession, pieces: list[Piece], horizon_us: int) -> Made:
    return walk(spark, pieces, horizon_us, [START_HOUR, hour_of(horizon_us) + 1])


def expected(pieces: list[Piece], horizon_us: int) -> Made:
    table = oracle.incident_table(pieces, horizon_us)
    closed = [(*row, part) for part, rows in table.items() if part is not None for row in rows]
    made = {
        INCIDENTS.name: closed,
        OPEN_INCIDENTS.name: [(*row, 0) for row in table.get(None, [])],
        EDGES.name: oracle.edge_rows(pieces, horizon_us),
    }
    return {name: sorted(rows, key=lambda row: (row[-1], row[2], row[:2], str(row))) for name, rows in made.items()}


def without_carry(made: Made) -> Made:
    return {name: rows for name, rows in made.items() if name != STATE.name}


# By hand.


def test_an_incident_reaches_from_the_first_down_second_to_the_next_up_one(spark: SparkSession):
    pieces = [
        piece(WEB, 0, 100, "up", state="ok"),
        piece(WEB, 100, 160, "down", state="unknown"),
        piece(WEB, 160, 220, "downtime"),
        piece(WEB, 220, 300, "unobserved"),
        piece(WEB, 300, 330.5, "down", state="critical"),
        piece(WEB, 330.5, 4000, "up", state="ok"),
    ]
    made = at_once(spark, pieces, us(4000))
    assert made["incidents"] == [(*WEB, us(100), us(330.5), "critical", 90.5, False, 0, [], START_HOUR)]
    assert made["incidents.open"] == []
    assert made["incident_edges"] == [
        (*WEB, us(100), "opened", us(100), None, START_HOUR),
        (*WEB, us(330.5), "closed", us(100), 90_500_000, START_HOUR),
    ]


def test_downtime_and_unobserved_alone_are_no_incident(spark: SparkSession):
    pieces = [piece(NODE, 0, 50, "up"), piece(NODE, 50, 70, "downtime"), piece(NODE, 70, 4000, "unobserved")]
    assert all(not rows for rows in at_once(spark, pieces, us(4000)).values())


@pytest.mark.parametrize("with_rows", [True, False], ids=["with rows of absent", "without rows"])
@pytest.mark.parametrize("gone", [1000, 3600], ids=["within an hour", "at its border"])
def test_a_subject_that_is_gone_has_no_open_incident(spark: SparkSession, with_rows: bool, gone: int):
    pieces = [piece(NODE, 0, 100, "up"), piece(NODE, 100, gone, "down")]
    if with_rows:
        pieces.append(piece(NODE, gone, 10_000, "absent"))
    horizon_us = us(9000)
    whole = at_once(spark, pieces, horizon_us)
    hour = START_HOUR + gone // 3600
    assert whole["incidents"] == [(*NODE, us(100), us(gone), "down", gone - 100.0, False, 0, [], hour)]
    assert whole["incidents.open"] == []
    assert walk(spark, pieces, horizon_us, [START_HOUR + n for n in range(4)]) == whole


def test_one_that_is_over_waits_in_the_open_data_set_until_it_is_known_who_failed_too(spark: SparkSession):
    pieces = [piece(WEB, 0, 3580, "up"), piece(WEB, 3580, 3590, "down"), piece(WEB, 3590, 8000, "up")]
    soon = at_once(spark, pieces, us(3640))
    later = at_once(spark, pieces, us(3640.000001))
    row: tuple[Any, ...] = (*WEB, us(3580), us(3590), "down", 10.0, False, 0, [])
    assert (soon["incidents"], soon["incidents.open"]) == ([], [(*row, 0)])
    assert (later["incidents"], later["incidents.open"]) == ([(*row, START_HOUR + 1)], [])


@pytest.mark.parametrize(("apart", "together"), [(60, 1), (60.000001, 0)])
def test_failing_together_is_within_a_minute_both_ways_and_over_the_hours_border(
    spark: SparkSession, apart: float, together: int
):
    def down(subject: tuple[str, str], at: float) -> list[Piece]:
        return [
            piece(subject, 0, at, "up"),
            piece(subject, at, at + 5, "down"),
            piece(subject, at + 5, 9000, "up"),
        ]

    pieces = [*down(WEB, 3570), *down(NODE, 3570 + apart)]
    horizon_us = us(8000)
    whole = at_once(spark, pieces, horizon_us)
    assert {row[:2]: row[7:9] for row in whole["incidents"]} == {
        WEB: (together, [NODE][:together]),
        NODE: (together, [WEB][:together]),
    }
    assert walk(spark, pieces, horizon_us, [START_HOUR + n for n in range(4)]) == whole


def test_who_opened_a_minute_before_the_border_knows_both_sides_of_it(spark: SparkSession):
    pieces = [piece(WEB, 3480, 3485, "down"), piece(NODE, 3540, 3545, "down"), piece(DISK, 3600, 3605, "down")]
    made = walk(spark, pieces, us(4000), [START_HOUR, START_HOUR + 1, START_HOUR + 2])
    rows = {row[:2]: row[7:9] for row in made["incidents"]}
    assert rows == {WEB: (1, [NODE]), NODE: (2, [WEB, DISK]), DISK: (1, [NODE])}


def test_a_subject_that_fails_again_and_again_is_one_that_failed_too(spark: SparkSession):
    pieces = [piece(NODE, 30, 4000, "down")]
    for start in range(0, 100, 10):
        pieces += [piece(WEB, start, start + 5, "down"), piece(WEB, start + 5, start + 10, "up")]
    made = at_once(spark, pieces, us(4000))
    assert [row[7:9] for row in made["incidents.open"]] == [(1, [WEB])]
    assert [row[7:9] for row in made["incidents"]] == [(1, [NODE])] * 10


def test_all_that_failed_too_are_counted_and_the_first_ten_are_named(spark: SparkSession):
    crowd = [("client", f"node-{n:02}") for n in range(30)]
    pieces = [piece(subject, 10 + n % 2, 4000, "down") for n, subject in enumerate(crowd)]
    made = at_once(spark, pieces, us(4000))
    rows = {row[1]: row[7:9] for row in made["incidents.open"]}
    assert rows["node-00"] == (29, crowd[2:22:2])
    assert rows["node-29"] == (29, crowd[0:20:2])


def test_an_incident_remembers_over_hours_what_it_was(spark: SparkSession):
    pieces = [
        piece(DISK, 10, 3600, "down", state="critical", flapping=True),
        piece(DISK, 3600, 10_800, "down", state="unknown", flapping=False),
        piece(DISK, 10_800, 10_801, "up", state="ok", flapping=False),
    ]
    made = walk(spark, pieces, us(10_900), [START_HOUR + n for n in range(5)])
    assert made["incidents"] == [(*DISK, us(10), us(10_800), "critical", 10_790.0, True, 0, [], START_HOUR + 3)]


def test_the_carry_holds_what_is_open_and_young_and_nothing_else(spark: SparkSession):
    pieces = [
        piece(WEB, 3000, 3100, "down"),  # over, and old
        piece(NODE, 3480, 3485, "down"),  # over, but one at 3540 that meets one at 3600 must know it
        piece(DISK, 100, 9000, "down"),
    ]
    made = at_once(spark, pieces, us(8000))
    assert [(row[:4], row[-1] - START_HOUR) for row in made[STATE.name]] == [
        ((*DISK, us(100), None), 1),
        ((*NODE, us(3480), us(3485)), 1),
        ((*DISK, us(100), None), 2),
    ]


# At random.


@pytest.mark.parametrize("seed", range(40))
def test_the_oracle_agrees_with_counting_every_second(seed: int):
    pieces, horizon_us = oracle.history(seed, subjects=3, hours=2, whole_seconds=True)
    found = [
        (one.subject, one.opened_us, one.closed_us, one.down_us // SECOND_US)
        for one in oracle.incidents(pieces, horizon_us)
    ]
    assert found == oracle.incidents_by_seconds(pieces, horizon_us)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_many_hours_each_hour_and_any_steps_between_are_what_the_oracle_says(spark: SparkSession, seed: int):
    hours = 5
    pieces, horizon_us = oracle.history(seed, subjects=14, hours=hours)
    whole = at_once(spark, pieces, horizon_us)
    assert without_carry(whole) == expected(pieces, horizon_us)
    ends = [START_HOUR + n for n in range(hours + 1)]
    assert walk(spark, pieces, horizon_us, ends) == whole
    some = sorted({ends[0], ends[-1], *random.Random(seed).sample(ends[1:-1], 2)})
    assert walk(spark, pieces, horizon_us, some) == whole


@pytest.mark.slow
def test_an_hour_is_the_same_whatever_comes_after_it(spark: SparkSession):
    pieces, _ = oracle.history(99, subjects=14, hours=4)
    short = at_once(spark, pieces, us(2 * 3600 + 1000))
    long = at_once(spark, pieces, us(4 * 3600 - 1))
    known = {INCIDENTS.name: START_HOUR + 2, EDGES.name: START_HOUR + 2, STATE.name: START_HOUR + 3}
    for name, until in known.items():
        assert [row for row in short[name] if row[-1] < until] == [row for row in long[name] if row[-1] < until]
    assert any(row[-1] * HOUR_US > row[2] for row in long[STATE.name])

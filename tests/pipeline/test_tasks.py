"""The table `tasks`: many hours at once equal each hour by itself, and both equal the plain rules of the oracle.

Promise: PIPE-5
"""

from __future__ import annotations

import datetime
import itertools
import random
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from scale0.pipeline.aggregation import Parameters
from scale0.pipeline.aggregations.tasks import LONG_HOURS, TaskAggregation
from scale0.pipeline.aggregations.tasks_events import OPEN_TASKS, STATE, TASKS
from scale0.pipeline.time_ranges import HOUR_US, TimeRange, to_time
from tests.pipeline.events import START_HOUR, event, frame, numbered
from tests.pipeline.oracle_tasks import LOST_ALL, Oracle, shown

Rows = list[tuple[Any, ...]]

HOURS = LONG_HOURS + 2
"""So that all at once goes the one way, with a carry or without, and each hour the other."""
TASK_NUMBER = 400
INSTANTS = (0.0, 5.0, 5.000001, 1800.25, 3599.999999)
"""Few, so that many events happen at one time, on the hour, and just before it."""


def submitted(second: float, ref: str, **columns: Any) -> dict[str, Any]:
    offered = {"group": "main", "priority": 5}
    return event(second, "task.submitted", **{"ref": ref, "service": "m", "identity": "c", "data": offered, **columns})


def tried(second: float, ref: str, attempt: int = 1, **columns: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {"service": "m", "identity": "n1", "state": "lost", "seconds": 1.0, "waited": 0.5}
    return event(second, "task.attempt_ended", ref=ref, attempt=attempt, **usual | columns)


def completed(second: float, ref: str, attempt: int = 1, **columns: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {"service": "m", "identity": "n2", "state": "finished", "seconds": 2.0, "waited": 0.25}
    return event(second, "task.completed", ref=ref, attempt=attempt, **usual | columns)


def reopened(second: float, ref: str, **columns: Any) -> dict[str, Any]:
    return event(second, "task.reopened", **{"ref": ref, "service": "m", "identity": "admin's", **columns})


def step(
    spark: SparkSession, events: list[dict[str, Any]], time_range: TimeRange, state: DataFrame | None = None
) -> dict[str, Rows]:
    start = spark.createDataFrame([], STATE.schema) if state is None else state
    made = TaskAggregation().step(
        start, {"events": frame(spark, events, TaskAggregation.columns)}, time_range, Parameters()
    )
    data_sets = (TASKS, OPEN_TASKS, STATE)
    rows = {
        data_set.name: made[data_set.name].select(*data_set.schema.fieldNames(), "part").collect()
        for data_set in data_sets
    }
    spark.catalog.clearCache()
    return {name: ordered(found) for name, found in rows.items()}


def ordered(rows: Any) -> Rows:
    zone = datetime.UTC
    plain = (
        tuple(x.replace(tzinfo=zone) if isinstance(x, datetime.datetime) and x.tzinfo is None else x for x in row)
        for row in rows
    )
    return sorted(plain, key=repr)


def hours(first: int, end: int, horizon: float = HOURS) -> TimeRange:
    """`first` and `end` count from START; nothing has happened after `horizon` hours."""
    return TimeRange(START_HOUR + first, START_HOUR + end, round((START_HOUR + horizon) * HOUR_US))


def in_steps(spark: SparkSession, events: list[dict[str, Any]], cuts: list[int]) -> dict[str, Rows]:
    """From cut to cut, with the carry between them."""
    state: Rows = []
    found: dict[str, Rows] = {TASKS.name: [], OPEN_TASKS.name: [], STATE.name: []}
    for first, end in itertools.pairwise(cuts):
        begin, until = to_time((START_HOUR + first) * HOUR_US), to_time((START_HOUR + end) * HOUR_US)
        mine = [row for row in events if begin <= row["at"] < until]
        start = [row[:-1] for row in state if row[-1] == START_HOUR + first]
        made = step(spark, mine, hours(first, end), spark.createDataFrame(start, STATE.schema))
        state = made[STATE.name]
        for name, rows in made.items():
            found[name] = rows if name == OPEN_TASKS.name else found[name] + rows
    return {name: ordered(rows) for name, rows in found.items()}


def expected(events: list[dict[str, Any]], count: int = HOURS) -> dict[str, Rows]:
    oracle = Oracle()
    oracle.run(events, START_HOUR, START_HOUR + count)
    columns = [*TASKS.schema.fieldNames(), "part"]
    carried = STATE.schema.fieldNames()
    return {
        TASKS.name: ordered(tuple(row[name] for name in columns) for row in oracle.rows),
        OPEN_TASKS.name: ordered(
            tuple(shown(key, life)[name] for name in columns) for key, life in oracle.open.items()
        ),
        STATE.name: ordered(
            (*(row.get(name) for name in carried), hour) for hour, rows in oracle.carries.items() for row in rows
        ),
    }


def random_task(chance: random.Random, ref: str) -> list[dict[str, Any]]:
    """Whatever may be recorded of a task, and what may not."""
    usual = chance.random() < 0.5
    made: list[dict[str, Any]] = []
    kinds = (
        ["submitted", "tried", "completed"]
        if usual
        else chance.choices(
            ["submitted", "tried", "tried", "completed", "completed", "reopened"], k=chance.randint(1, 7)
        )
    )
    seconds = [chance.randrange(HOURS) * 3600 + chance.choice(INSTANTS) for _ in kinds]
    if usual:
        seconds.sort()
        if chance.random() < 0.6:
            del kinds[1], seconds[1]
    for number, (kind, second) in enumerate(zip(kinds, seconds, strict=True)):
        source = {"source": chance.choice(("broker-1", "broker-2")), "boot": chance.choice((1, 2)), "seq": number + 1}
        times: dict[str, Any] = {"seconds": chance.choice((0.0, 0.125, 7.5)), "waited": chance.choice((0.0, 0.5, None))}
        match kind:
            case "submitted":
                offered = chance.choice(({"group": "main", "priority": 5}, {"group": 'a "b"', "priority": 1}, None))
                made.append(submitted(second, ref, **source, identity=chance.choice(("c1", "c2", None)), data=offered))
            case "reopened":
                made.append(reopened(second, ref, **source))
            case "tried":
                made.append(tried(second, ref, chance.randint(1, 3), **source, **times))
            case "completed":
                end = chance.choice(
                    (
                        {"state": "finished"},
                        {"state": "failed", "code": 7},
                        {"state": "failed", "code": LOST_ALL},
                        {"state": "cancelled", "identity": None, "attempt": 0},
                        {"state": "cancelled", "identity": None},
                    )
                )
                made.append(completed(second, ref, **{"attempt": chance.randint(1, 3), **source, **times, **end}))
    return made


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2])
def test_many_hours_equal_each_hour_and_the_rules(tidy: SparkSession, seed: int):
    chance = random.Random(seed)
    events = numbered([row for n in range(TASK_NUMBER) for row in random_task(chance, f"t{n:03d}")])
    chance.shuffle(events)
    wanted = expected(events)
    assert len(wanted[TASKS.name]) > TASK_NUMBER / 2
    at_once = step(tidy, events, hours(0, HOURS))
    for name, rows in wanted.items():
        assert at_once[name] == rows, name
    for cuts in (list(range(HOURS + 1)), [0, HOURS - LONG_HOURS, HOURS]):
        stepped = in_steps(tidy, events, cuts)
        for name, rows in wanted.items():
            assert stepped[name] == rows, (name, cuts)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_rows_do_not_depend_on_partitions(tidy: SparkSession):
    chance = random.Random(3)
    events = numbered([row for n in range(60) for row in random_task(chance, f"t{n:02d}")])
    rows = frame(tidy, events, TaskAggregation.columns).repartition(5, "seq", "at")
    before = tidy.conf.get("spark.sql.shuffle.partitions", "1")
    tidy.conf.set("spark.sql.shuffle.partitions", "3")
    try:
        state = tidy.createDataFrame([], STATE.schema)
        made = TaskAggregation().step(state, {"events": rows}, hours(0, HOURS), Parameters())
        found = ordered(made["tasks"].select(*TASKS.schema.fieldNames(), "part").collect())
    finally:
        tidy.conf.set("spark.sql.shuffle.partitions", before or "1")
    assert found == expected(events)["tasks"]


def one(rows: Rows) -> dict[str, Any]:
    assert len(rows) == 1
    return dict(zip([*TASKS.schema.fieldNames(), "part"], rows[0], strict=True))


def test_a_task_tells_its_wait_its_delay_its_run_and_what_was_wasted(tidy: SparkSession):
    events = [
        submitted(10.0, "t"),
        tried(20.0, "t", 1, seconds=3.0, waited=2.0, state="timeout"),
        completed(40.0, "t", 2, seconds=4.0, waited=1.0, code=None),
    ]
    row = one(step(tidy, events, hours(0, 1))["tasks"])
    assert row["first_assigned"] == events[1]["at"] - datetime.timedelta(seconds=3)
    assert (row["wait_seconds"], row["delay_seconds"]) == (2.0, 5.0)
    assert (row["run_seconds"], row["wasted_seconds"], row["attempts"]) == (4.0, 3.0, 2)
    assert (row["client"], row["group"], row["priority"], row["node"]) == ("c", "main", 5, "n2")
    assert row["part"] == START_HOUR


def test_an_attempt_that_was_lost_and_ended_the_task_counts_once(tidy: SparkSession):
    """The broker records the lost attempt, and with it, at the same instant, the task's end."""
    events = [
        submitted(1.0, "t"),
        tried(9.0, "t", 1, seconds=5.0),
        completed(9.0, "t", 1, seconds=5.0, state="failed", code=LOST_ALL, identity="n1"),
    ]
    row = one(step(tidy, events, hours(0, 1))["tasks"])
    assert (row["outcome"], row["run_seconds"], row["wasted_seconds"]) == ("failed", None, 5.0)


def test_an_event_at_the_horizon_counts_and_an_open_task_is_open(tidy: SparkSession):
    events = [submitted(10.0, "ends"), completed(1800.0, "ends"), submitted(20.0, "stays")]
    made = step(tidy, events, hours(0, 1, 0.5))
    assert [row[0] for row in made["tasks"]] == ["ends"]
    assert [row[0] for row in made["tasks.open"]] == ["stays"]
    assert made["carry.tasks"] == []


def test_a_completion_without_a_submission_is_a_row_and_a_late_submission_opens_nothing(tidy: SparkSession):
    events = [completed(3599.0, "t"), submitted(3601.0, "t")]
    made = step(tidy, events, hours(0, 2))
    assert one(made["tasks"])["submitted"] is None
    assert made["tasks.open"] == []


def test_what_no_task_can_have_harms_nothing(tidy: SparkSession):
    huge = {"seconds": 1e300, "waited": float("nan")}
    events = [
        submitted(1.0, "t", data="{not json"),
        completed(2.0, "t", -(2**31), **huge),
        submitted(1.0, "u", data={"priority": "high", "group": {"a": 1}}),
        completed(2.0, "u", 2**31 - 1, seconds=float("inf"), waited=-1.0, state="elsewhere"),
        {**completed(3.0, "t"), "ref": None},
    ]
    made = step(tidy, events, hours(0, 1))
    row = one(made["tasks"])
    assert (row["ref"], row["attempts"], row["run_seconds"], row["wait_seconds"]) == ("t", 0, 0.0, None)
    assert [row[0] for row in made["tasks.open"]] == ["u"]

"""Regular tasks: one grouping by task, with numbers only, so that Spark hashes instead of sorting.

Repeated texts are replaced by dictionary numbers. A task is irregular if anything could depend on the order of its
events, or on what was known about it at an hour's end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from scale0.pipeline.aggregations.tasks_events import (
    ATTEMPT_ENDED,
    COMPLETED,
    LIFE,
    NUMBER,
    OUTCOMES,
    REOPENED,
    SUBMITTED,
    TEXT,
    attempt,
    closes_attempt,
    known,
    submission_text,
)
from scale0.pipeline.histograms import micros
from scale0.pipeline.schemas import PART
from scale0.pipeline.time_ranges import HOUR_US, part_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from scale0.pipeline.time_ranges import TimeRange

KEY: Final = ("ref", "method")

DROPPED: Final = 0
"""Known to have ended, and no event followed."""
REGULAR: Final = 1
IRREGULAR: Final = 2

_HALF: Final = 1 << 32
"""Two counts share a number: a task has fewer than 2^32 events."""

_NUMBERS: Final = (
    *("start_us", "client", "options", "ended_us", "node", "code", "outcome", "done_attempt", "done_wait_us", "run_us"),
    *("attempts", "first_us", "wait_us", "tried_last_us"),
)
"""A task has one value of each, or the largest is used."""


def grouped(
    events: DataFrame, state: DataFrame, names: DataFrame, submissions: DataFrame, time_range: TimeRange
) -> DataFrame:
    """One row per task, all numbers: counts, its values, and `sort`."""
    inputs = _of_events(events, names, submissions).unionByName(_of_state(state, names, submissions))
    rows = inputs.groupBy(*KEY).agg(
        f.sum("ends").alias("ends"),
        f.sum("tries").alias("tries"),
        f.sum("oddities").alias("oddities"),
        f.sum("wasted_us").alias("wasted_us"),
        f.min("tried_first_us").alias("tried_first_us"),
        *(f.max(name).alias(name) for name in _NUMBERS),
    )
    return rows.withColumn("sort", _sort(time_range))


def _of_events(events: DataFrame, names: DataFrame, submissions: DataFrame) -> DataFrame:
    kind = f.col("kind")
    submitted, tried, completed = kind == SUBMITTED, kind == ATTEMPT_ENDED, kind == COMPLETED
    rows = (
        events.filter(known() & f.col("ref").isNotNull())
        .join(
            f.broadcast(names.select(f.col(TEXT).alias("identity"), f.col(NUMBER).alias("who"))), "identity", how="left"
        )
        .join(
            f.broadcast(submissions.select(f.col(TEXT).alias("data"), f.col(NUMBER).alias("options"))),
            "data",
            how="left",
        )
    )
    at, run, wait = f.unix_micros("at"), f.coalesce(micros(f.col("seconds")), f.lit(0)), micros(f.col("waited"))
    number, closes = attempt(), closes_attempt()
    first = closes & (f.coalesce(number, f.lit(1)) == 1)
    outcome = f.coalesce(*(f.when(f.col("state") == name, number) for number, name in enumerate(OUTCOMES)))
    return rows.select(
        "ref",
        f.coalesce("service", f.lit("")).alias("method"),
        _two(submitted, completed).alias("ends"),
        _two(first, tried).alias("tries"),
        _two(kind == REOPENED, f.lit(False)).alias("oddities"),
        f.when(tried, run).otherwise(0).alias("wasted_us"),
        f.when(tried, at).alias("tried_first_us"),
        f.when(submitted, at).alias("start_us"),
        f.when(submitted, f.col("who")).alias("client"),
        f.when(submitted, f.col("options")).alias("options"),
        f.when(completed, at).alias("ended_us"),
        f.when(completed, f.col("who")).alias("node"),
        f.when(completed, f.col("code")).alias("code"),
        f.when(completed, outcome).alias("outcome"),
        f.when(completed, number).alias("done_attempt"),
        f.when(completed, wait).alias("done_wait_us"),
        f.when(completed & closes, run).alias("run_us"),
        f.when(tried, number).alias("attempts"),
        f.when(tried & first, at - run).alias("first_us"),
        f.when(tried & first, wait).alias("wait_us"),
        f.when(tried, at).alias("tried_last_us"),
    )


def _of_state(state: DataFrame, names: DataFrame, submissions: DataFrame) -> DataFrame:
    rows = (
        state.withColumn(TEXT, submission_text())
        .join(f.broadcast(submissions.select(TEXT, f.col(NUMBER).alias("options"))), TEXT, "left")
        .drop(TEXT)
        .join(f.broadcast(names.select(f.col(TEXT).alias("client"), f.col(NUMBER).alias("who"))), "client", how="left")
    )
    first = f.col("first_us").isNotNull()
    absent = {name: f.lit(None).cast("bigint").alias(name) for name in ("tried_first_us", *_NUMBERS)}
    present = {
        "start_us": f.col("start_us"),
        "client": f.col("who").alias("client"),
        "options": f.col("options"),
        "attempts": f.col("attempts"),
        "first_us": f.col("first_us"),
        "wait_us": f.col("wait_us"),
    }
    return rows.select(
        *KEY,
        _two(~f.col("ended"), f.lit(False)).alias("ends"),
        _two(first, f.lit(False)).alias("tries"),
        _two(f.coalesce("reopened", f.lit(False)), f.col("ended")).alias("oddities"),
        f.coalesce("wasted_us", f.lit(0)).alias("wasted_us"),
        *(absent | present).values(),
    )


def _two(low: Column, high: Column) -> Column:
    return low.cast("bigint") + high.cast("bigint") * _HALF


def _low(name: str) -> Column:
    return f.col(name).bitwiseAND(f.lit(_HALF - 1))


def _high(name: str) -> Column:
    return f.shiftright(f.col(name), 32)


def _sort(time_range: TimeRange) -> Column:
    """DROPPED, ORDINARY or ODD. The order of a regular task's events is irrelevant, and its state is the same at every
    hour at which it is open.
    """
    opened, completed, firsts, tried = _low("ends"), _high("ends"), _low("tries"), _high("tries")
    hour = open_from(time_range)
    end_hour = f.coalesce(_hour("ended_us"), f.lit(time_range.end))
    single = (opened <= 1) & (completed <= 1) & (firsts <= 1) & (opened + completed >= 1)
    in_order = (opened == 0) | (hour <= end_hour)
    state_of = f.least(end_hour, f.lit(time_range.last_state)) > hour
    tries_fit = (
        (opened == 1)
        & (_hour("tried_first_us") >= hour)
        & (f.coalesce(f.col("ended_us") >= f.col("tried_last_us"), f.lit(True)))
        & ((_hour("tried_last_us") <= hour) | ~state_of)
    )
    regular = single & (f.col("oddities") == 0) & in_order & ((tried == 0) | tries_fit)
    silent = (f.col("ends") == 0) & (f.col("tries") == 0) & (f.col("oddities") == _HALF)
    return f.when(regular, REGULAR).when(silent, DROPPED).otherwise(IRREGULAR)


def _hour(name: str) -> Column:
    return part_column(f.col(name), HOUR_US)


def open_from(time_range: TimeRange) -> Column:
    """The first hour of the range in which a task is open: the first one for a task of the state."""
    return f.greatest(_hour("start_us"), f.lit(time_range.first))


def ended(rows: DataFrame, names: DataFrame, submissions: DataFrame) -> DataFrame:
    """(ref, method, LIFE, how it ended) of the regular tasks that ended."""
    done = rows.filter((f.col("sort") == REGULAR) & f.col("ended_us").isNotNull())
    nodes = names.select(f.col(NUMBER).alias("node"), f.col(TEXT).alias("node_name"))
    named = _named(done, names, submissions).join(f.broadcast(nodes), "node", how="left")
    at_once = f.col("first_us").isNull() & f.col("run_us").isNotNull() & (_attempt() == 1)
    life = {
        "attempts": f.greatest(f.col("attempts"), f.col("done_attempt"), f.lit(0)),
        "first_us": f.when(at_once, f.col("ended_us") - f.col("run_us")).otherwise(f.col("first_us")),
        "wait_us": f.when(at_once, f.col("done_wait_us")).otherwise(f.col("wait_us")),
    }
    names_of = f.array(*(f.lit(name) for name in OUTCOMES))
    return named.select(
        *KEY,
        *_life(life),
        "ended_us",
        f.get(names_of, f.col("outcome").cast("int")).alias("outcome"),
        f.col("node_name").alias("node"),
        "code",
        "run_us",
    )


def _attempt() -> Column:
    return f.coalesce("done_attempt", f.lit(1))


def still_open(rows: DataFrame, names: DataFrame, submissions: DataFrame) -> DataFrame:
    """(ref, method, LIFE) of the regular tasks that have not ended."""
    left = rows.filter((f.col("sort") == REGULAR) & f.col("ended_us").isNull())
    return _named(left, names, submissions).select(*KEY, *_life({}))


def state_of(rows: DataFrame, names: DataFrame, submissions: DataFrame, time_range: TimeRange) -> DataFrame:
    """(ref, method, ended, LIFE, part) for every hour's start: open tasks, and those that ended without a
    submission.
    """
    end_hour = f.coalesce(_hour("ended_us"), f.lit(time_range.end))
    submitted = f.col("start_us").isNotNull()
    first = f.when(submitted, open_from(time_range)).otherwise(end_hour) + 1
    last = f.least(f.when(submitted, end_hour).otherwise(end_hour + 1), f.lit(time_range.last_state))
    kept = rows.filter((f.col("sort") == REGULAR) & (first <= last)).withColumns({"from": first, "to": last})
    named = _named(kept, names, submissions)
    life = [f.when(submitted, column).alias(x.name) for column, x in zip(_life({}), LIFE, strict=True)]
    return named.select(
        *KEY, (~submitted).alias("ended"), *life, f.explode(f.sequence(f.col("from"), f.col("to"))).alias(PART)
    )


def _named(rows: DataFrame, names: DataFrame, submissions: DataFrame) -> DataFrame:
    clients = names.select(f.col(NUMBER).alias("client"), f.col(TEXT).alias("client_name"))
    options = submissions.select(f.col(NUMBER).alias("options"), "group", "priority")
    return rows.join(f.broadcast(clients), "client", how="left").join(f.broadcast(options), "options", how="left")


def _life(others: dict[str, Column]) -> list[Column]:
    usual = {
        "client": f.col("client_name"),
        "reopened": f.lit(False),
        "base": f.lit(0),
        "attempts": f.coalesce("attempts", f.lit(0)),
    }
    columns = usual | others
    return [columns.get(x.name, f.col(x.name)).cast(x.dataType).alias(x.name) for x in LIFE]

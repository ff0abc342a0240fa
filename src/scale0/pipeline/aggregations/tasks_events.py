"""Kinds of task events, dictionaries of repeated texts, and the schemas of `tasks`.

An attempt is closed by one event, so that the times of attempts can be summed over events without looking at others.
Dictionary numbers are exact, not hashes: a client could choose a name with another's hash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.window import Window

from scale0.history.events.tasks import TaskAttemptEnded, TaskCompleted, TaskReopened, TaskSubmitted
from scale0.pipeline.histograms import seconds_of
from scale0.pipeline.schemas import PART, DataSet, fields
from scale0.pipeline.time_ranges import HOUR_US, OPEN_PART, part_column
from scale0.tasks.jsonrpc.messages import ATTEMPTS_LOST

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SUBMITTED: Final = TaskSubmitted.kind
ATTEMPT_ENDED: Final = TaskAttemptEnded.kind
COMPLETED: Final = TaskCompleted.kind
REOPENED: Final = TaskReopened.kind

FINISHED: Final = "finished"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"
OUTCOMES: Final = (FINISHED, FAILED, CANCELLED)
LOST: Final = "lost"


def known() -> Column:
    """False for a completion in an unknown state: it is ignored, like unknown kinds."""
    return (f.col("kind") != COMPLETED) | f.coalesce(f.col("state").isin(*OUTCOMES), f.lit(False))


def attempt() -> Column:
    """The number of the attempt; null if it is invalid."""
    return f.when(f.col("attempt") >= 0, f.col("attempt"))


def closes_attempt() -> Column:
    """True if the event closes an attempt that a node had, never null.

    A completion does not if the task was never assigned, or waited to be assigned again (there is no node), or if its
    last attempt was lost: that one is closed by an event of its own.
    """
    handed_out = (f.coalesce(attempt(), f.lit(1)) >= 1) & (f.coalesce(f.col("identity"), f.lit("")) != "")
    already_lost = f.coalesce(f.col("code") == ATTEMPTS_LOST, f.lit(False))
    finished = f.coalesce(f.col("state") == FINISHED, f.lit(False))
    completing = (f.col("kind") == COMPLETED) & (finished | (handed_out & ~already_lost))
    return (f.col("kind") == ATTEMPT_ENDED) | completing


TEXT: Final = "text"
NUMBER: Final = "number"


def identities(events: DataFrame, state: DataFrame) -> DataFrame:
    """(number, text): every client and node."""
    return _numbered(events.select(f.col("identity").alias(TEXT)), state.select(f.col("client").alias(TEXT)))


def submission_data(events: DataFrame, state: DataFrame) -> DataFrame:
    """(number, text, group, priority): the `data` of submissions; few, because clients and ids are not in it."""
    submitted = events.filter(f.col("kind") == SUBMITTED).select(f.col("data").alias(TEXT))
    rows = _numbered(submitted, state.select(submission_text().alias(TEXT)))
    return rows.select(NUMBER, TEXT, group_in(f.col(TEXT)).alias("group"), priority_in(f.col(TEXT)).alias("priority"))


def submission_text() -> Column:
    """The `data` of a submission, reconstructed from a row of the state."""
    return f.to_json(f.struct("group", "priority"))


def group_in(data: Column) -> Column:
    return f.get_json_object(data, "$.group")


def priority_in(data: Column) -> Column:
    """Null if it is not a number."""
    return f.get_json_object(data, "$.priority").try_cast("int")


def _numbered(*columns: DataFrame) -> DataFrame:
    first, second = columns
    texts = first.unionByName(second).filter(f.col(TEXT).isNotNull()).distinct()
    return texts.select(f.row_number().over(Window.orderBy(TEXT)).alias(NUMBER), TEXT)


OPEN: Final = "open"
"""The outcome of a task that has not ended."""

SCHEMA: Final = fields(
    ("ref", t.StringType()),
    ("submitted", t.TimestampType()),
    ("client", t.StringType()),
    ("method", t.StringType()),
    ("group", t.StringType()),
    ("priority", t.IntegerType()),
    ("first_assigned", t.TimestampType()),
    ("ended", t.TimestampType()),
    ("outcome", t.StringType()),
    ("attempts", t.IntegerType()),
    ("node", t.StringType()),
    ("code", t.IntegerType()),
    ("wait_seconds", t.DoubleType()),
    ("delay_seconds", t.DoubleType()),
    ("run_seconds", t.DoubleType()),
    ("wasted_seconds", t.DoubleType()),
)

LIFE: Final = fields(
    ("start_us", t.LongType()),
    ("client", t.StringType()),
    ("group", t.StringType()),
    ("priority", t.IntegerType()),
    ("reopened", t.BooleanType()),
    ("base", t.IntegerType()),
    ("attempts", t.IntegerType()),
    ("first_us", t.LongType()),
    ("wait_us", t.LongType()),
    ("wasted_us", t.LongType()),
)
"""What is known about an open task.

`base` is the number of the attempt before its first one: 0, or null for a reopened task until an attempt ends.
`attempts` counts from there. `first_us` and `wait_us` are of its first assignment, null until that attempt ends.
"""

TASKS: Final = DataSet("tasks", "tasks", "hour", SCHEMA, key="ref")
OPEN_TASKS: Final = DataSet("tasks.open", "tasks", "open", SCHEMA, key="ref")
STATE: Final = DataSet(
    "carry.tasks",
    "",
    "hour",
    fields(
        ("ref", t.StringType()),
        ("method", t.StringType()),
        ("ended", t.BooleanType()),
        *((x.name, x.dataType) for x in LIFE),
    ),
    key="ref",
)
"""Open tasks; and, with `ended` and nothing else, those that ended in the hour before without a known submission: it
may still arrive, by another broker's clock.
"""

_END: Final = ("ended_us", "outcome", "node", "code", "run_us")


def ended_rows(rows: DataFrame) -> DataFrame:
    """From (ref, method, LIFE, how it ended): rows of `tasks`."""
    return rows.select(*_columns(), part_column(f.col("ended_us"), HOUR_US).alias(PART))


def open_rows(rows: DataFrame) -> DataFrame:
    """From (ref, method, LIFE): rows of `tasks` that have not ended."""
    whole = rows.withColumns(
        {
            "ended_us": f.lit(None).cast("bigint"),
            "outcome": f.lit(OPEN),
            "node": f.lit(None).cast("string"),
            "code": f.lit(None).cast("int"),
            "run_us": f.lit(None).cast("bigint"),
        }
    )
    return whole.select(*_columns(), f.lit(OPEN_PART).alias(PART))


def state_rows(rows: DataFrame) -> DataFrame:
    """From (ref, method, ended, LIFE, part): the state."""
    return rows.select(*(f.col(x.name).cast(x.dataType).alias(x.name) for x in STATE.schema), f.col(PART).cast("int"))


def _columns() -> list[Column]:
    start, first, wait = f.col("start_us"), f.col("first_us"), f.col("wait_us")
    delay = f.greatest(f.lit(0), first - start - f.coalesce(wait, f.lit(0)))
    return [
        f.col("ref"),
        f.timestamp_micros(start).alias("submitted"),
        f.col("client"),
        f.col("method"),
        f.col("group"),
        f.col("priority"),
        f.timestamp_micros(first).alias("first_assigned"),
        f.timestamp_micros("ended_us").alias("ended"),
        f.col("outcome"),
        f.col("attempts"),
        f.col("node"),
        f.col("code"),
        seconds_of(wait).alias("wait_seconds"),
        # `greatest` skips nulls: without an assignment or a submission, the delay is unknown.
        seconds_of(f.when(first.isNotNull() & start.isNotNull(), delay)).alias("delay_seconds"),
        seconds_of(f.col("run_us")).alias("run_seconds"),
        seconds_of(f.col("wasted_us")).alias("wasted_seconds"),
    ]

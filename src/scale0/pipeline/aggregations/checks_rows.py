"""Input rows of the checks: results, removals and the previous state, deduplicated, in one shape and order; and the
state.

Whatever `data` holds, a row results or none, never an error. Rows of the previous state precede all rows of the range.
A result with a missing or invalid interval is valid for its instant only; one with an invalid timeout for its interval;
without a `max_attempts` of at least 1 a problem is hard at once; an invalid state is unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from pyspark.sql import Window
from pyspark.sql import functions as f

from scale0.config.monitoring import MAX_INTERVAL
from scale0.monitoring.protocol.results import CRITICAL, OK, UNKNOWN, WARNING
from scale0.pipeline.schemas import DataSet, event_id, fields
from scale0.pipeline.time_ranges import HOUR_US, SECOND_US, part_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, WindowSpec

    from scale0.pipeline.time_ranges import TimeRange

KEY: Final = ("agent", "check")
ORDER: Final = ("at_us", "source", "boot", "seq")
"""At one instant, source and seq decide. Rows of the previous state come before all others."""


def ordered() -> WindowSpec:
    return Window.partitionBy(*KEY).orderBy(*ORDER)


def up_to() -> WindowSpec:
    """All rows up to and including the current one."""
    return ordered().rowsBetween(Window.unboundedPreceding, Window.currentRow)


def before() -> WindowSpec:
    """All rows before the current one."""
    return ordered().rowsBetween(Window.unboundedPreceding, -1)


def nth_known(way: Literal["lag", "lead"], column: str, nth: int) -> Column:
    """The n-th non-null value before or after a row; only Spark's SQL expresses it without a costly frame."""
    keys, order = (", ".join(f"`{name}`" for name in names) for names in (KEY, ORDER))
    return f.expr(f"{way}(`{column}`, {nth}) ignore nulls over (partition by {keys} order by {order})")


ANSWERED: Final = "check.answered"
REMOVED_KIND: Final = "check.removed"

FROM_STATE: Final = 0
RESULT: Final = 1
REMOVED: Final = 2
"""Values of column `what`."""

STATES: Final = (OK, WARNING, CRITICAL, UNKNOWN)
"""The code of a state is its index."""
OK_CODE: Final = STATES.index(OK)
WARNING_CODE: Final = STATES.index(WARNING)
UNKNOWN_CODE: Final = STATES.index(UNKNOWN)

MAX_VOUCH_SECONDS: Final = MAX_INTERVAL
"""A longer interval or timeout is invalid."""

_DATA: Final = fields(("scheduled", "boolean"), ("interval", "double"), ("timeout", "double"), ("max_attempts", "int"))
_SHAPE: Final = (
    *("agent", "check", "at_us", "source", "boot", "seq", "what", "state", "vouched_us", "max_attempts"),
    *("id", "changes", "known", "attempt", "hard_problem", "flapping"),
)
"""`vouched_us` is the end of the result's validity. The columns from `id` on are set in rows of the previous state
only.
"""


def code_of(state: Column) -> Column:
    """A state's index in STATES; unknown for anything else."""
    chain = f.when(state == STATES[0], 0)
    for code, name in enumerate(STATES[1:], 1):
        chain = chain.when(state == name, code)
    return chain.otherwise(UNKNOWN_CODE)


def name_of(code: Column) -> Column:
    """The state at an index; null for null. (`element_at` returned the last one.)"""
    chain = f.when(code == 0, STATES[0])
    for position, name in enumerate(STATES[1:], 1):
        chain = chain.when(code == position, name)
    return chain


def deduplicated(events: DataFrame, state: DataFrame | None) -> DataFrame:
    """Every row of the checks, in `_SHAPE`, all of an agent in one partition.

    Two Helens may record one result: of results with one `ref` of an agent in one hour, the first counts.
    """
    rows = _events(events)
    if state is not None:
        rows = rows.unionByName(_from_state(state))
    rows = rows.repartition("agent").withColumn("hour", part_column(f.col("at_us"), HOUR_US))
    # The hash decides nearly every comparison of the sort; the other columns make it exact.
    same = Window.partitionBy(f.xxhash64("agent", "ref", "hour"), "agent", "ref", "hour").orderBy(*ORDER)
    return rows.withColumn("nth", f.row_number().over(same)).where(f.col("nth") == 1).select(*_SHAPE)


def _events(events: DataFrame) -> DataFrame:
    """The scheduled results and the removals."""
    at_us, result = f.unix_micros("at"), f.col("what") == RESULT
    wanted = f.col("kind").isin(ANSWERED, REMOVED_KIND) & (f.col("identity") != "") & (f.col("service") != "")
    rows = events.where(wanted).select(
        f.col("identity").alias("agent"),
        f.col("service").alias("check"),
        at_us.alias("at_us"),
        *("source", "boot", "seq", "state", "ref"),
        f.when(f.col("kind") == ANSWERED, RESULT).otherwise(REMOVED).alias("what"),
        # A generator, so that the JSON is parsed once: a plain column would be parsed by the filter and again.
        f.inline(f.array(f.from_json("data", _DATA))),
    )
    return rows.where(~result | f.col("scheduled")).select(
        *("agent", "check", "at_us", "source", "boot", "seq", "what"),
        f.when(result, code_of(f.col("state"))).alias("state"),
        f.when(result, f.col("at_us") + _vouched_us()).alias("vouched_us"),
        f.when(f.col("max_attempts") >= 1, f.col("max_attempts")).otherwise(1).alias("max_attempts"),
        f.coalesce(f.when(result & (f.col("ref") != ""), f.col("ref")), _unique(event_id())).alias("ref"),
        f.lit(None).cast("string").alias("id"),
        f.lit(None).cast("bigint").alias("changes"),
        *(f.lit(None).cast("int").alias(name) for name in ("known", "attempt")),
        *(f.lit(None).cast("boolean").alias(name) for name in ("hard_problem", "flapping")),
    )


def _vouched_us() -> Column:
    """How long a result is valid. NaN is larger than any bound."""
    interval, timeout = f.col("interval"), f.col("timeout")
    wait = f.when(timeout.between(0, MAX_VOUCH_SECONDS), timeout).otherwise(f.lit(0.0))
    seconds = f.when(interval.between(0, MAX_VOUCH_SECONDS), interval + wait).otherwise(f.lit(0.0))
    return f.rint(seconds * SECOND_US).cast("bigint")


def _from_state(state: DataFrame) -> DataFrame:
    """The last result of every live check."""
    return state.where(f.col("downtime").isNull()).select(
        *("agent", "check", "at_us"),
        f.lit(None).cast("string").alias("source"),
        *(f.lit(None).cast("bigint").alias(name) for name in ("boot", "seq")),
        f.lit(FROM_STATE).alias("what"),
        code_of(f.col("state")).alias("state"),
        f.col("vouched_us"),
        f.lit(1).alias("max_attempts"),
        _unique(f.col("check")).alias("ref"),
        *("id", f.col("changes").cast("bigint").alias("changes"), "known", "attempt", "hard_problem", "flapping"),
    )


def _unique(text: Column) -> Column:
    """Replaces a missing `ref`: Helen never writes such a value."""
    return f.concat(f.lit("\0"), text)


STATE: Final = DataSet(
    "carry.checks",
    "",
    "hour",
    fields(
        ("agent", "string"),
        ("check", "string"),
        ("downtime", "string"),
        ("id", "string"),
        ("at_us", "bigint"),
        ("vouched_us", "bigint"),
        ("state", "string"),
        ("changes", "int"),
        ("known", "int"),
        ("attempt", "int"),
        ("hard_problem", "boolean"),
        ("flapping", "boolean"),
        ("ends_us", "bigint"),
    ),
    key="agent",
)
"""`downtime` is null: a check's last result. Otherwise the id of an open downtime of the check (blank: of all checks of
the agent), its start and its planned end (null: none).

A row has a bounded size and does not refer to the start of a run, so a late result stops mattering soon: after the next
result for the id, after 20 for the changes. A check stays live until it is removed; a removed one is dropped at the end
of its hour.
"""


def hours_between(after: Column, last: Column) -> Column:
    """One row for each hour in (after, last]."""
    none = f.array().cast("array<int>")
    return f.explode(f.when(after < last, f.sequence(after + 1, last)).otherwise(none))


def check_state(kept: DataFrame, time_range: TimeRange) -> DataFrame:
    """The live checks at the start of each hour."""
    after = f.greatest(part_column(f.col("at_us"), HOUR_US), f.lit(time_range.first))
    last = f.least(part_column(f.col("until_us"), HOUR_US), f.lit(time_range.last_state))
    return kept.where(f.col("what") != REMOVED).select(
        *("agent", "check"),
        f.lit(None).cast("string").alias("downtime"),
        *("id", "at_us", "vouched_us"),
        name_of(f.col("state")).alias("state"),
        f.col("changes_now").cast("int").alias("changes"),
        f.col("known_now").alias("known"),
        f.col("attempt_now").alias("attempt"),
        f.col("problem").alias("hard_problem"),
        f.col("flaps").alias("flapping"),
        f.lit(None).cast("bigint").alias("ends_us"),
        hours_between(after, last).alias("part"),
    )

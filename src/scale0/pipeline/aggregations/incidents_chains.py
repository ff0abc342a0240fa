"""Incidents from timeline rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql import types as t

from scale0.monitoring.protocol.results import SEVERITY
from scale0.pipeline.data_file import fields
from scale0.pipeline.tables import DOWN, DOWNTIME, UNOBSERVED
from scale0.pipeline.time_ranges import HOUR_US, TimeRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEEPS_OPEN: Final = (DOWN, DOWNTIME, UNOBSERVED)
"""The classes that do not close an incident."""

SUBJECT: Final = ("subject_kind", "subject")

CARRY: Final = fields(
    ("subject_kind", "string"),
    ("subject", "string"),
    ("opened_us", "bigint"),
    ("closed_us", "bigint"),
    ("worst", "int"),
    ("down_us", "bigint"),
    ("flapping", "boolean"),
    ("also_failing", "bigint"),
    ("also_failing_first", t.ArrayType(fields(("subject_kind", "string"), ("subject", "string")))),
)
"""Incidents that are open, or whose opening may still matter to others; `closed_us` is null while it is open.

`worst` is the severity plus one; 0 for a subject without states. `also_failing` is null until no later opening can add
to it.
"""

FIRST_FAILING: Final = CARRY["also_failing_first"].dataType

_RANKS: Final = {name: rank + 1 for name, rank in SEVERITY.items()}
_SEVERITY: Final = " ".join(
    ("CASE state", *(f"WHEN '{name}' THEN {rank}" for name, rank in _RANKS.items()), "ELSE 0 END")
)
WORST_STATE: Final = " ".join(
    ("CASE worst", *(f"WHEN {rank} THEN '{name}'" for name, rank in _RANKS.items()), f"ELSE '{DOWN}' END")
)
"""`worst` as shown in the table."""

_PIECES: Final = (
    *SUBJECT,
    "unix_micros(`from`) AS from_us",
    "unix_micros(`to`) AS to_us",
    # A piece that makes an incident by itself.
    f"IF(class = '{DOWN}', unix_micros(`from`), NULL) AS opened_us",
    "CAST(NULL AS BIGINT) AS closed_us",
    f"IF(class = '{DOWN}', {_SEVERITY}, 0) AS worst",
    f"IF(class = '{DOWN}', unix_micros(`to`) - unix_micros(`from`), 0L) AS down_us",
    "coalesce(flapping, false) AS flapping",
    "CAST(NULL AS BIGINT) AS also_failing",
    f"CAST(NULL AS {FIRST_FAILING.simpleString()}) AS also_failing_first",
)

_GROWING: Final = ("to_us", "closed_us", "worst", "down_us", "flapping", "also_failing")

_ALONG: Final = "PARTITION BY subject_kind, subject ORDER BY from_us, to_us"
_SO_FAR: Final = (
    "PARTITION BY subject_kind, subject, chain ORDER BY from_us, to_us ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
)


def incidents(timeline: DataFrame, carry: DataFrame | None, stretch: TimeRange) -> DataFrame:
    """One row per incident of the range or the previous state, at time_range.until_us, and `marks`.

    A mark is the incident at the start of an hour (`part`) at which it was open, for the hours that need a state.
    `also_failing` is what the state knows, or null. Partitioned by subject. The state's rows enter as pieces without
    length, so there is one exchange.
    """
    kept = ", ".join(f"'{name}'" for name in KEEPS_OPEN)
    pieces = timeline.filter(f"class IN ({kept})").selectExpr(*_PIECES)
    if carry is not None:
        pieces = pieces.unionByName(_carried(carry, stretch))
    inside = _accumulated(_chained(pieces))
    part = f"CAST(to_us DIV {HOUR_US} AS INT)"
    marked = f"to_us % {HOUR_US} = 0 AND {part} > {stretch.first} AND {part} <= {stretch.last_carry}"
    mark = f"IF({marked}, named_struct('part', {part}, 'worst', worst, 'down_us', down_us, 'flapping', flapping), NULL)"
    inside = inside.selectExpr("*", f"{mark} AS mark")
    grouped = inside.groupBy(*SUBJECT, "opened_us").agg(
        # Sums only grow, so the largest value is the last.
        *(f.expr(f"max({name}) AS {name}") for name in _GROWING),
        f.expr("first(also_failing_first, true) AS also_failing_first"),
        f.expr("collect_list(mark) AS marks"),
    )
    closed = f"coalesce(closed_us, IF(to_us < {stretch.until_us}, to_us, NULL)) AS closed_us"
    return grouped.selectExpr(*SUBJECT, "opened_us", closed, *CARRY.fieldNames()[4:], "marks")


def _carried(carry: DataFrame, stretch: TimeRange) -> DataFrame:
    """An open incident is placed at the start of the range, where its subject's first piece may touch it; a closed one
    at its own opening, where nothing can.
    """
    stands = f"IF(closed_us IS NULL, {stretch.from_us}L, opened_us)"
    return carry.selectExpr(*SUBJECT, f"{stands} AS from_us", f"{stands} AS to_us", *CARRY.fieldNames()[2:])


def _chained(pieces: DataFrame) -> DataFrame:
    """Adds `chain`: the start of the run of touching pieces to which a piece belongs."""
    touches = f"coalesce(lag(to_us) OVER ({_ALONG}) = from_us, false)"
    return pieces.selectExpr("*", f"IF({touches}, NULL, from_us) AS starts_us").selectExpr(
        "*", f"max(starts_us) OVER ({_ALONG}) AS chain"
    )


def _accumulated(chained: DataFrame) -> DataFrame:
    """The pieces within incidents, with `worst`, `down_us` and `flapping` of the incident up to the piece's end."""
    before = [name for name in chained.columns if name != "opened_us"]
    opened = chained.selectExpr(*before, f"min(opened_us) OVER ({_SO_FAR}) AS opened_us")
    return opened.filter("opened_us IS NOT NULL").selectExpr(
        *SUBJECT,
        "to_us",
        "opened_us",
        "closed_us",
        f"max(worst) OVER ({_SO_FAR}) AS worst",
        f"sum(down_us) OVER ({_SO_FAR}) AS down_us",
        f"max(flapping) OVER ({_SO_FAR}) AS flapping",
        "also_failing",
        "also_failing_first",
    )

"""Noise: which checks alert most, over all agents, by month.

An alert belongs to the month in which it opened, so a share is at most 1. Every check that was a subject in the month
has a row, a silent one with 0 alerts. Ranks have no ties.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from scale0.pipeline.aggregations.incidents import CLOSED, EDGES, OPENED
from scale0.pipeline.marts.availability import AVAILABILITY_MONTHS, month_of_time, month_start_us
from scale0.pipeline.schemas import CHECK, PART, DataSet, fields
from scale0.pipeline.time_ranges import DAY_HOURS, MINUTE_US, SECOND_US, day_of, days_of_month, month_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Set

    from pyspark.sql import DataFrame

    from scale0.pipeline.aggregation import Parameters

QUICK_US: Final = 5 * MINUTE_US
"""An alert that closes within this time ended before anybody could act."""
BEYOND_HOURS: Final = 1
"""Hours after a month in which an alert of the month can still close quickly."""

NOISE: Final = DataSet(
    "noise",
    "noise",
    "month",
    fields(
        ("check", "string"),
        ("month", "timestamp"),
        ("alerts", "bigint"),
        ("closed_quickly_share", "double"),
        ("flapping_seconds", "double"),
        ("rank", "int"),
    ),
)


_SUMS: Final = ("alerts", "quick", "flapping_us")

_CHECK: Final = "substr(subject, locate('/', subject) + 1) AS `check`"
"""A check's subject is `agent/check`; an agent's name has no slash, a check's may."""

_OF_EDGES: Final = (
    _CHECK,
    f"{month_of_time('opened')} AS {PART}",
    f"IF(edge = '{OPENED}', 1L, 0L) AS alerts",
    f"IF(edge = '{CLOSED}' AND unix_micros(at) - unix_micros(opened) <= {QUICK_US}, 1L, 0L) AS quick",
    "0L AS flapping_us",
)
_OF_MONTHS: Final = (_CHECK, PART, "0L AS alerts", "0L AS quick", "flapping_us")


class Noise:
    name = NOISE.name
    data_sets = (NOISE,)
    inputs = (EDGES.name, AVAILABILITY_MONTHS.name)

    def touched(self, changed: Mapping[str, Set[int]], horizon_us: int) -> Set[int]:
        edges = changed.get(EDGES.name, frozenset())
        hours = edges | {hour - BEYOND_HOURS for hour in edges}
        return frozenset(month_of(day_of(hour)) for hour in hours) | changed.get(AVAILABILITY_MONTHS.name, frozenset())

    def wants(self, parts: Set[int]) -> Mapping[str, Set[int]]:
        hours: set[int] = set()
        for month in parts:
            days = days_of_month(month)
            hours |= set(range(days.start * DAY_HOURS, days.stop * DAY_HOURS + BEYOND_HOURS))
        return {EDGES.name: hours, AVAILABILITY_MONTHS.name: parts}

    def compute(
        self, inputs: Mapping[str, DataFrame], parts: Set[int], horizon_us: int, parameters: Parameters
    ) -> Mapping[str, DataFrame]:
        ours = ", ".join(str(part) for part in sorted(parts))
        alerts = inputs[EDGES.name].filter(f"subject_kind = '{CHECK}'").selectExpr(*_OF_EDGES)
        present = inputs[AVAILABILITY_MONTHS.name].filter(f"subject_kind = '{CHECK}'").selectExpr(*_OF_MONTHS)
        # Alerts of other months do not count.
        rows = alerts.filter(f"{PART} IN ({ours})").unionByName(present)
        sums = rows.groupBy("check", PART).agg(*(f.expr(f"sum({name}) AS {name}") for name in _SUMS))
        noise = sums.selectExpr(
            "`check`",
            f"timestamp_micros({month_start_us(PART)}) AS month",
            "alerts",
            "IF(alerts > 0, quick / alerts, NULL) AS closed_quickly_share",
            f"flapping_us / {SECOND_US} AS flapping_seconds",
            f"row_number() OVER (PARTITION BY {PART} ORDER BY alerts DESC, flapping_us DESC, `check`) AS rank",
            PART,
        )
        return {NOISE.name: noise}

"""The aggregation of incidents, computed from the timeline.

An incident lasts from the first down second to the next up or absent one. Up, absent and missing rows are equivalent: a
gap between the rows that keep an incident open, so only those few rows are sorted. The timeline is split at hours, so
an incident that is open at an hour's end has a piece that ends there: its mark.

An incident is in the hour of the later of its closing and its opening + `together_seconds`: by then all of its columns
are final. Before, it is in `incidents.open`. A closing at an hour's border belongs to the hour that begins. The state
holds open incidents, and openings so recent that a later one may be correlated with them.

Expressions are Spark SQL: a call for each operator costs a round trip to the JVM, a second for a step of this size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scale0.pipeline.aggregations.incidents_chains import CARRY, FIRST_FAILING, SUBJECT, WORST_STATE, incidents
from scale0.pipeline.aggregations.incidents_correlation import with_also_failing
from scale0.pipeline.caching import hold
from scale0.pipeline.data_file import PART, DataSet, fields
from scale0.pipeline.time_ranges import HOUR_US, OPEN_PART, SECOND_US, TimeRange

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from scale0.pipeline.parameters import Parameters

TIMELINE: Final = "timeline"

OPENED: Final = "opened"
CLOSED: Final = "closed"

_SCHEMA: Final = fields(
    ("subject_kind", "string"),
    ("subject", "string"),
    ("opened", "timestamp"),
    ("closed", "timestamp"),
    ("worst_state", "string"),
    ("down_seconds", "double"),
    ("flapping", "boolean"),
    ("also_failing", "bigint"),
    ("also_failing_first", FIRST_FAILING),
)

_EDGES_SCHEMA: Final = fields(
    ("subject_kind", "string"),
    ("subject", "string"),
    ("at", "timestamp"),
    ("edge", "string"),
    ("opened", "timestamp"),
    ("down_us", "bigint"),
)
"""`edge` is opened or closed; `down_us`, for closed, is the incident's total down time."""

INCIDENTS_SLAB: Final = DataSet("incidents", "incidents", "hour", _SCHEMA)
OPEN_SLAB: Final = DataSet("incidents.open", "incidents", "open", _SCHEMA)
EDGES: Final = DataSet("incident_edges", "", "hour", _EDGES_SCHEMA)
CARRY_SLAB: Final = DataSet("carry.incidents", "", "hour", CARRY)


class IncidentAggregation:
    name = "incidents"
    reads = (TIMELINE,)
    kinds: frozenset[str] = frozenset()
    columns: tuple[str, ...] = ()
    key = ""
    slabs = (INCIDENTS_SLAB, OPEN_SLAB, EDGES)
    carry: DataSet | None = CARRY_SLAB

    def step(
        self, carry: DataFrame | None, rows: Mapping[str, DataFrame], stretch: TimeRange, parameters: Parameters
    ) -> Mapping[str, DataFrame]:
        """All data sets are views of one small cached frame."""
        reach_us = parameters.together_seconds * SECOND_US
        known = hold(with_also_failing(incidents(rows[TIMELINE], carry, stretch), reach_us))
        settled_us = f"greatest(closed_us, opened_us + {reach_us}L)"
        settled = f"closed_us IS NOT NULL AND {settled_us} < {stretch.until_us}"
        here = known.filter(f"{settled} AND {settled_us} >= {stretch.from_us}")
        return {
            INCIDENTS_SLAB.name: here.selectExpr(*_SHOWN, f"CAST({settled_us} DIV {HOUR_US} AS INT) AS {PART}"),
            OPEN_SLAB.name: known.filter(f"NOT ({settled})").selectExpr(*_SHOWN, f"{OPEN_PART} AS {PART}"),
            EDGES.name: _edges(known, stretch),
            CARRY_SLAB.name: _carries(known, stretch, reach_us),
        }


_SHOWN: Final = (
    *SUBJECT,
    "timestamp_micros(opened_us) AS opened",
    "timestamp_micros(closed_us) AS closed",
    f"{WORST_STATE} AS worst_state",
    f"down_us / {SECOND_US} AS down_seconds",
    "flapping",
    "also_failing",
    "also_failing_first",
)


def _edges(known: DataFrame, stretch: TimeRange) -> DataFrame:
    """The openings and closings of the range."""
    edges = (
        f"named_struct('at_us', opened_us, 'edge', '{OPENED}', 'down_us', CAST(NULL AS BIGINT))",
        f"named_struct('at_us', closed_us, 'edge', '{CLOSED}', 'down_us', down_us)",
    )
    exploded = known.selectExpr(*SUBJECT, "opened_us", f"inline(array({', '.join(edges)}))")
    return exploded.filter(f"at_us >= {stretch.from_us} AND at_us < {stretch.until_us}").selectExpr(
        *SUBJECT,
        "timestamp_micros(at_us) AS at",
        "edge",
        "timestamp_micros(opened_us) AS opened",
        "down_us",
        f"CAST(at_us DIV {HOUR_US} AS INT) AS {PART}",
    )


def _carries(known: DataFrame, stretch: TimeRange, reach_us: int) -> DataFrame:
    """Each incident at the hours that must know it: as it was while open, and as it ended while it is recent.

    At T, openings from T - 2 * reach on are kept: one at T - reach may still be correlated with one at T, and must then
    know those `reach` before itself.
    """
    first = f"greatest(CAST(closed_us DIV {HOUR_US} AS INT), {stretch.first}) + 1"
    last = f"least(CAST((opened_us + {2 * reach_us}L) DIV {HOUR_US} AS INT), {stretch.last_carry})"
    as_it_ended = _stands("h", f"sequence({first}, {last})", "h", "closed_us", "")
    while_open = _stands("m", "marks", "m.part", "CAST(NULL AS BIGINT)", "m.")
    young = f"closed_us IS NOT NULL AND {first} <= {last}"
    complete = f"opened_us + {reach_us}L < stands.{PART} * {HOUR_US}L"
    exploded = known.selectExpr(
        *SUBJECT,
        "opened_us",
        "also_failing",
        "also_failing_first",
        f"explode(IF({young}, concat({while_open}, {as_it_ended}), {while_open})) AS stands",
    )
    return exploded.selectExpr(
        *SUBJECT,
        "opened_us",
        *(f"stands.{name}" for name in ("closed_us", "worst", "down_us", "flapping")),
        *(f"IF({complete}, {name}, NULL) AS {name}" for name in ("also_failing", "also_failing_first")),
        f"stands.{PART}",
    )


def _stands(each: str, array: str, part: str, closed_us: str, of: str) -> str:
    """An array of an incident's values at several hours."""
    rest = ", ".join(f"'{name}', {of}{name}" for name in ("worst", "down_us", "flapping"))
    return f"transform({array}, {each} -> named_struct('{PART}', {part}, 'closed_us', {closed_us}, {rest}))"

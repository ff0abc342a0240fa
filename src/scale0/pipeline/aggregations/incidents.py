"""Incidents: a family that steps over the timeline.

Lives here: its slabs, and which incident stands in which part. Never here: what closes an incident
(`incidents_chains.py`) or who failed together (`incidents_together.py`). Invariants:
- an incident stands in the hour of the later of its closing and its opening + `together_seconds`: by then all of its
  columns are known for ever; until that is before the end of what is known it stands in `incidents.open`;
- only what happened before an instant is known at it: a closing at an hour's border belongs to the hour that begins;
- the carry holds what is open, and openings so young that a later one may look back at them.
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
"""`edge` is opened or closed; `down_us`, of a closed one, is the whole incident's down time."""

INCIDENTS_SLAB: Final = DataSet("incidents", "incidents", "hour", _SCHEMA)
OPEN_SLAB: Final = DataSet("incidents.open", "incidents", "open", _SCHEMA)
EDGES: Final = DataSet("incident_edges", "", "hour", _EDGES_SCHEMA)
CARRY_SLAB: Final = DataSet("carry.incidents", "", "hour", CARRY)


class IncidentAggregation:
    """From the first down second to the next up or absent one, for every subject of the timeline."""

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
        """All slabs are views of one small frame, which is kept for them until the engine clears its cache."""
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
    """The openings and closings of the stretch."""
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
    """Each incident at the hours that must know it: as it stood while it was open, and as it ended while it is young.

    At T, openings from T - 2 * reach on are kept: one at T - reach may still find another that opens at T, and must
    then know those `reach` before itself.
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
    """An array of how an incident stands at hours, from one of the hours or marks."""
    rest = ", ".join(f"'{name}', {of}{name}" for name in ("worst", "down_us", "flapping"))
    return f"transform({array}, {each} -> named_struct('{PART}', {part}, 'closed_us', {closed_us}, {rest}))"

"""The family of checks: their timeline, their states, and what they carry from hour to hour.

Lives here: what the engine sees. Never here: how it is computed (`checks_*`). Invariant: agents never meet, so that a
step over some agents gives their rows of the whole.

    events, carry ─▶ checks_rows: each once ─▶ checks_states: kept rows ─┬▶ check_states
                     checks_downtimes ──────────────┐                    ├▶ checks_carry
                                                    └▶ laid over ◀───────┴─ checks_timeline: pieces

The kept rows are read three times, so they are persisted; whoever runs the step clears the cache when all is written.
The states stand first: once they are written, Spark knows how the kept rows lie, and does not move pieces to lay over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scale0.pipeline.aggregations.checks_downtimes import ENDED, STARTED, downtimes_carried, downtimes_of, lay_over
from scale0.pipeline.aggregations.checks_flapping import rule_from
from scale0.pipeline.aggregations.checks_results import CHECK_STATES, kept_rows, states_of
from scale0.pipeline.aggregations.checks_rows import ANSWERED, REMOVED_KIND, each_once
from scale0.pipeline.aggregations.checks_state import CARRY, checks_carried
from scale0.pipeline.aggregations.checks_timeline import CHECKS_TIMELINE, pieces_of, timeline_of
from scale0.pipeline.caching import hold

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from scale0.pipeline.data_file import DataSet
    from scale0.pipeline.parameters import Parameters
    from scale0.pipeline.time_ranges import TimeRange

EVENTS: Final = "events"


class CheckAggregation:
    """timeline.checks, check_states and carry.checks."""

    name: Final = "checks"
    reads: Final = (EVENTS,)
    kinds: Final = frozenset({ANSWERED, REMOVED_KIND, STARTED, ENDED})
    columns: Final = ("source", "boot", "seq", "at", "kind", "identity", "service", "ref", "state", "data")
    key: Final = "identity"
    slabs: Final[tuple[DataSet, ...]] = (CHECK_STATES, CHECKS_TIMELINE)
    carry: Final[DataSet | None] = CARRY

    def step(
        self, carry: DataFrame | None, rows: Mapping[str, DataFrame], stretch: TimeRange, parameters: Parameters
    ) -> Mapping[str, DataFrame]:
        """One sort of an agent's rows serves every window; downtimes are few and go beside them."""
        rule = rule_from(parameters)
        kept = hold(kept_rows(each_once(rows[EVENTS], carry), stretch, rule))
        downtimes = downtimes_of(rows[EVENTS], carry)
        carried = checks_carried(kept, stretch).unionByName(downtimes_carried(downtimes, stretch))
        return {
            CHECK_STATES.name: states_of(kept, rule),
            CHECKS_TIMELINE.name: timeline_of(lay_over(pieces_of(kept, stretch), downtimes)),
            CARRY.name: carried,
        }

"""The aggregation of checks: their timeline and their state changes.

    events, state ─▶ checks_rows: deduplicated ─▶ checks_results: kept rows ─┬▶ check_states
                     downtimes ─────────────────────┐                        ├▶ state of the next hour
                                                    └▶ overlay ◀─────────────┴─ timeline pieces

Agents are independent: a step over some agents gives exactly their rows.

Downtimes: a downtime is (agent, check, id), and its newest start says when it ends, unless its next event comes
earlier. Events of one downtime at one instant count in recording order, because Helen moves an end by recording an end
and a start. An end without a start is ignored. A start without a readable `ends` lasts until it is ended. Downtime
overrides every class except absent; of overlapping downtimes the one that started first is shown (then by id), so that
splitting at hours changes nothing.

Timeline: in an hour in which a check has pieces, they cover the hour up to the horizon without gap or overlap, and
every hour starts a new piece. Before a check's first scheduled result the hour is absent (`unseen`); after a removal
the rest of the hour is absent (`removed`), and later hours have no rows until the next result. The evidence of a piece
is the result that began it, or the last result before it. While unobserved, state and flapping are null.
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
        """One sort of an agent's rows serves every window. The kept rows are read three times, so they are cached. The
        states come first: once they are written, Spark knows the partitioning of the kept rows and needs no exchange
        for the overlay.
        """
        rule = rule_from(parameters)
        kept = hold(kept_rows(each_once(rows[EVENTS], carry), stretch, rule))
        downtimes = downtimes_of(rows[EVENTS], carry)
        carried = checks_carried(kept, stretch).unionByName(downtimes_carried(downtimes, stretch))
        return {
            CHECK_STATES.name: states_of(kept, rule),
            CHECKS_TIMELINE.name: timeline_of(lay_over(pieces_of(kept, stretch), downtimes)),
            CARRY.name: carried,
        }

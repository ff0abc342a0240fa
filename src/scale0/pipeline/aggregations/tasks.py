"""The aggregation of tasks: one row for each, from submission to end.

Rules for one task (a ref of a method): - Events count hour by hour. Within an hour a submission counts first, because
the broker that accepted a task and the one that ended it have different clocks; the others by `at`, at one instant
ended attempts first, then by source, boot and seq. - A submission or a reopening opens a row; neither changes an open
one. An ended attempt adds to the open row, a completion closes it. - A completion of a task that is not open is a row
without a submission. A submission that arrives in the next hour belongs to it, and opens nothing. - Until the end of
the hour in which it ended (without a submission: of the next hour) a task is known to have ended, and a second
completion is ignored. A state with every ended task would be as large as the table.

These rules use only the state and one hour, so many hours at once give the same result as each alone.

Nearly all tasks are regular: one submission, one end. One grouping of numbers computes those and detects the few
irregular ones, whose events are processed one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scale0.pipeline.aggregations import tasks_dictionaries
from scale0.pipeline.aggregations import tasks_irregular as odd
from scale0.pipeline.aggregations import tasks_regular as ordinary
from scale0.pipeline.aggregations.tasks_events import ATTEMPT_ENDED, COMPLETED, REOPENED, SUBMITTED
from scale0.pipeline.aggregations.tasks_table import CARRY, OPEN_SLAB, TASKS_SLAB, carry_rows, ended_rows, open_rows
from scale0.pipeline.caching import hold

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from scale0.pipeline.parameters import Parameters
    from scale0.pipeline.time_ranges import TimeRange

EVENTS_NAME: Final = "events"

LONG_HOURS: Final = 4
"""In a shorter range all tasks are processed as irregular: one query instead of nine."""


class TaskAggregation:
    name: Final = "tasks"
    reads: Final = (EVENTS_NAME,)
    kinds: Final = frozenset((SUBMITTED, ATTEMPT_ENDED, COMPLETED, REOPENED))
    columns: Final = (
        *("source", "boot", "seq", "at", "kind", "identity", "service", "ref"),
        *("attempt", "code", "state", "seconds", "waited", "data"),
    )
    key: Final = "ref"
    slabs: Final = (TASKS_SLAB, OPEN_SLAB)
    carry: Final = CARRY

    def step(
        self, carry: DataFrame | None, rows: Mapping[str, DataFrame], stretch: TimeRange, parameters: Parameters
    ) -> Mapping[str, DataFrame]:
        """In a long range regular tasks by grouping, irregular ones by their events; in a short one all by their
        events.
        """
        del parameters
        if carry is None:
            raise ValueError("the tasks aggregation needs a state: pass an empty one for the first step")
        events = rows[EVENTS_NAME]
        if stretch.end - stretch.first < LONG_HOURS:
            lives = hold(odd.lives(events, carry, None, stretch))
            return odd_slabs(lives, stretch)
        names, sayings = hold(tasks_dictionaries.names(events, carry)), hold(tasks_dictionaries.sayings(events, carry))
        grouped = hold(ordinary.grouped(events, carry, names, sayings, stretch))
        others = odd_slabs(hold(odd.lives(events, carry, odd.keys(grouped), stretch)), stretch)
        done = ended_rows(ordinary.ended(grouped, names, sayings))
        left = open_rows(ordinary.still_open(grouped, names, sayings))
        kept = carry_rows(ordinary.carried(grouped, names, sayings, stretch))
        mine = {TASKS_SLAB.name: done, OPEN_SLAB.name: left, CARRY.name: kept}
        return {name: frame.unionByName(others[name]) for name, frame in mine.items()}


def odd_slabs(lives: DataFrame, stretch: TimeRange) -> dict[str, DataFrame]:
    return {
        TASKS_SLAB.name: ended_rows(odd.ended(lives)),
        OPEN_SLAB.name: open_rows(odd.still_open(lives)),
        CARRY.name: carry_rows(odd.carried(lives, stretch)),
    }

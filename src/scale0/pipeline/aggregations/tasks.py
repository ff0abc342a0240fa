"""Tasks, one row each: from submission to end.

Lives here: the family, and the rules. Never here: the two ways to compute them. The rules, for one task (a ref of a
method):
- Its events count hour by hour. Within an hour a submission counts before everything else, because the broker that took
  a task and the one that ended it have clocks of their own; the others by `at`, at one instant ended attempts first,
  then by source, boot and seq.
- A submission opens a row, a reopening too; neither does anything to an open one. An ended attempt adds to the open
  row, a completion closes it.
- A completion of what is not open is a row without a submission. A submission that comes in the next hour is that
  task's, and opens nothing.
- Until the end of the hour in which it ended (of one without a submission: of the next hour) a task is known to have
  ended, and a second completion is ignored. A carry that knew every ended task would be as large as the table.
Invariant: these rules look at nothing but the carry and one hour, so many hours at once equal each by itself.

Nearly all tasks are ordinary: one submission, one end. Those take one grouping of numbers; the few others are told
apart by it, and their events are gone through one by one.
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
"""In a shorter stretch all tasks are taken for odd: one query, not nine, and few tasks are quick either way."""


class TaskAggregation:
    """The family."""

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
        """In a long stretch ordinary tasks by numbers, odd ones by their events; in a short one all by their events."""
        del parameters
        if carry is None:
            raise ValueError("tasks have a memory: a first step has an empty carry, not none")
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
    """What the events of odd tasks come to."""
    return {
        TASKS_SLAB.name: ended_rows(odd.ended(lives)),
        OPEN_SLAB.name: open_rows(odd.still_open(lives)),
        CARRY.name: carry_rows(odd.carried(lives, stretch)),
    }

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

from scale0.pipeline.aggregations import tasks_irregular as irregular
from scale0.pipeline.aggregations import tasks_regular as regular
from scale0.pipeline.aggregations.tasks_events import (
    ATTEMPT_ENDED,
    COMPLETED,
    OPEN_TASKS,
    REOPENED,
    STATE,
    SUBMITTED,
    TASKS,
    ended_rows,
    identities,
    open_rows,
    state_rows,
    submission_data,
)
from scale0.pipeline.caching import cache

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from scale0.pipeline.aggregation import Parameters
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
    data_sets: Final = (TASKS, OPEN_TASKS)
    state: Final = STATE

    def step(
        self, state: DataFrame | None, rows: Mapping[str, DataFrame], time_range: TimeRange, parameters: Parameters
    ) -> Mapping[str, DataFrame]:
        """In a long range regular tasks by grouping, irregular ones by their events; in a short one all by their
        events.
        """
        del parameters
        if state is None:
            raise ValueError("the tasks aggregation needs a state: pass an empty one for the first step")
        events = rows[EVENTS_NAME]
        if time_range.end - time_range.first < LONG_HOURS:
            lives = cache(irregular.lives(events, state, None, time_range))
            return irregular_data_sets(lives, time_range)
        names, submissions = (
            cache(identities(events, state)),
            cache(submission_data(events, state)),
        )
        grouped = cache(regular.grouped(events, state, names, submissions, time_range))
        irregular_rows = irregular_data_sets(
            cache(irregular.lives(events, state, irregular.keys(grouped), time_range)), time_range
        )
        done = ended_rows(regular.ended(grouped, names, submissions))
        left = open_rows(regular.still_open(grouped, names, submissions))
        kept = state_rows(regular.state_of(grouped, names, submissions, time_range))
        regular_rows = {TASKS.name: done, OPEN_TASKS.name: left, STATE.name: kept}
        return {name: frame.unionByName(irregular_rows[name]) for name, frame in regular_rows.items()}


def irregular_data_sets(lives: DataFrame, time_range: TimeRange) -> dict[str, DataFrame]:
    return {
        TASKS.name: ended_rows(irregular.ended(lives)),
        OPEN_TASKS.name: open_rows(irregular.still_open(lives)),
        STATE.name: state_rows(irregular.state_of(lives, time_range)),
    }

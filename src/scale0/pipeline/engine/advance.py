"""Advances all tables of a transaction to a new horizon; used by run, stream and backfill.

- Hours from that of the old horizon on (the frontier) are computed for every key, from the state at their start.
- Earlier hours are computed only where events are new, and onwards only for keys whose state changed, in ranges that
  double until the state equals the stored one: the cost depends on what was touched, never on the length of history.
- If only few events lie between the first touched hour and the frontier, that hour becomes the frontier.
- Stateless aggregations compute the touched hours alone.
- Marts compute exactly the parts that depend on changed inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial, reduce
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import DataFrame

from scale0.pipeline.caching import cache, release_cached
from scale0.pipeline.engine.frames import WarehouseFrames, runs_of, write_data_set
from scale0.pipeline.engine.restatements import NOTHING, RestatedValue
from scale0.pipeline.registry import AGGREGATIONS, DATA_SETS, MARTS, data_sets_of
from scale0.pipeline.schemas import PART, DataSet
from scale0.pipeline.time_ranges import DAY_HOURS, OPEN_PART, SECOND_US, TimeRange, day_of, hour_of, month_of
from scale0.pipeline.warehouse.records import EVENTS, LIVENESS
from scale0.pipeline.warehouse.retention import whole_parts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from scale0.pipeline.aggregation import Aggregation, Mart, Parameters
    from scale0.pipeline.warehouse.records import Sum
    from scale0.pipeline.warehouse.transaction import Transaction


class ConcurrentWork(NamedTuple):
    name: str
    makes: frozenset[str]
    needs: frozenset[str]
    do: Callable[[], None]


def run_all(
    works: Sequence[ConcurrentWork], limit: int, progress: Callable[[str, int], None], stop: Callable[[], None]
) -> None:
    """Run everything, at most `limit` at a time; nothing starts before the work that makes its inputs has ended.

    `progress` is called with the name of what starts and the number of ended works. After a failure `stop` must shorten
    what still runs; the error is raised when that has ended.
    """
    left, ended = list(works), 0
    running: dict[Future[None], ConcurrentWork] = {}
    with ThreadPoolExecutor(limit, thread_name_prefix="scale0-table") as pool:
        try:
            while left or running:
                for work in ready(left, list(running.values()))[: limit - len(running)]:
                    left.remove(work)
                    progress(work.name, ended)
                    running[pool.submit(work.do)] = work
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    del running[future]
                    ended += 1
                    future.result()
        except BaseException:
            if running:
                stop()
            raise


def ready(left: Sequence[ConcurrentWork], running: Sequence[ConcurrentWork]) -> list[ConcurrentWork]:
    """Work whose inputs are all made, in order."""
    out: list[ConcurrentWork] = []
    for number, work in enumerate(left):
        makers = (*running, *left[:number])
        if not any(work.needs & maker.makes for maker in makers):
            out.append(work)
    return out


OLDEST_HOURS: Final = 400 * DAY_HOURS
"""Older events are in `events` but in no other table."""
CONCURRENT_TABLES: Final = 2
"""Tables computed concurrently: Spark plans one while it computes another."""
FIRST_REACH_HOURS: Final = 1
"""How many hours after a touched hour are computed at first, before the state is compared with the stored one; then
doubled.
"""
NEAR_EVENTS: Final = 50_000
"""Late hours with at most this many events up to the frontier are computed together with the newest hours: separate
steps for each aggregation took 30 of 50 seconds of a small run, regardless of the number of events.
"""
NEAR_HOURS: Final = DAY_HOURS
"""The longest such range: every live key has rows in every hour, even without events."""


class NewInput(NamedTuple):
    """What was ingested since the tables were last computed."""

    hours: Mapping[int, Set[str]]
    """By hour of `at`: the kinds of new events."""
    liveness_hours: Set[int]
    gap_hours: Set[int]
    """Hours in which a source was last seen before a gap or restart that only became visible now."""
    paths: tuple[str, ...]
    """The files with the new events."""


class BackfillRange(NamedTuple):
    """Hours [first, end) to recompute for every key, whether events are new or not."""

    first: int
    end: int


Progress = Callable[[str, int, int], None]
"""Progress: the current work, the number done, and the total."""


class Advance:
    def __init__(
        self,
        spark: SparkSession,
        transaction: Transaction,
        parameters: Parameters,
        horizons: tuple[int | None, int],
        progress: Progress,
    ) -> None:
        self._old_us, self._horizon_us = horizons
        self._spark = spark
        self._transaction = transaction
        self._parameters = parameters
        self._progress = progress
        self._frames = WarehouseFrames(spark, transaction)
        self._tasks = spark.sparkContext.defaultParallelism * 2
        self._frontier = oldest_hour(transaction, self._horizon_us) if self._old_us is None else hour_of(self._old_us)
        self._newest = TimeRange(self._frontier, hour_of(self._horizon_us) + 1, self._horizon_us)
        # Time passed in these hours: an hour may be complete or longer now although none of its rows changed.
        self._passed = BackfillRange(self._newest.first, self._newest.end)
        self.changed: dict[str, set[int]] = {}
        """By data set: the parts whose rows changed."""
        self.changes: dict[tuple[str, int], RestatedValue] = {}
        """Their sums before and after."""

    def go(self, new: NewInput, backfill: BackfillRange | None = None) -> None:
        if backfill is None and self._old_us is not None:
            self._move_frontier(new)
        works = [
            concurrent_work(
                one,
                (data_set.name for read in one.reads for data_set in data_sets_of(read, "hour")),
                partial(self._run_aggregation, one, new, backfill),
            )
            for one in AGGREGATIONS
        ]
        works += [concurrent_work(one, one.inputs, partial(self._run_mart, one, backfill)) for one in MARTS]
        whole = len(works)
        cancel = self._spark.sparkContext.cancelAllJobs
        with release_cached():
            self._share_newest()
            run_all(works, CONCURRENT_TABLES, lambda name, ended: self._progress(name, ended, whole), cancel)
        self._progress("tables", whole, whole)

    def _share_newest(self) -> None:
        """All aggregations compute the newest hours: their events are read once for all, if they are few."""
        readers = [aggregation for aggregation in AGGREGATIONS if EVENTS in aggregation.reads]
        kinds = frozenset(kind for aggregation in readers for kind in aggregation.kinds)
        columns = sorted({column for aggregation in readers for column in aggregation.columns})
        assert all(aggregation.kinds for aggregation in readers), "an aggregation of all kinds would miss some"
        self._frames.share(self._newest, kinds, columns)

    def _move_frontier(self, new: NewInput) -> None:
        """If late hours are near, compute them together with the newest hours."""
        first = min(
            (hour for aggregation in AGGREGATIONS for hour in self._new_hours(aggregation, new)), default=self._frontier
        )
        between = range(first, self._frontier)
        if len(between) <= NEAR_HOURS and sum(self._transaction.kinds_in(between).values()) <= NEAR_EVENTS:
            self._frontier = min(first, self._frontier)
            self._newest = TimeRange(self._frontier, self._newest.end, self._horizon_us)

    def _run_aggregation(self, aggregation: Aggregation, new: NewInput, backfill: BackfillRange | None) -> None:
        late = {hour for hour in self._new_hours(aggregation, new) if hour < self._frontier}
        if backfill is not None:
            self._recompute(aggregation, backfill)
            late -= set(range(backfill.first, backfill.end))
        if late and aggregation.state is None:
            self._step_hours(aggregation, late)
        elif late:
            self._catch_up(
                aggregation, TimeRange(min(late), max(late) + 1, self._horizon_us), self._new_keys(aggregation, new)
            )
        kinds = self._transaction.kinds_in(self._newest.hours).keys()
        if aggregation.state is not None or not aggregation.kinds or aggregation.kinds & kinds:
            self._step(aggregation, self._newest, None)

    def _new_hours(self, aggregation: Aggregation, new: NewInput) -> set[int]:
        hours: set[int] = set()
        for name in aggregation.reads:
            if name == EVENTS:
                hours |= {
                    hour for hour, kinds in new.hours.items() if not aggregation.kinds or kinds & aggregation.kinds
                }
            elif name == LIVENESS:
                hours |= new.liveness_hours | new.gap_hours | self._uncertain_hours()
            else:
                hours |= {
                    part for data_set in data_sets_of(name, "hour") for part in self.changed.get(data_set.name, ())
                }
        return hours

    def _uncertain_hours(self) -> set[int]:
        """Hours of sources that counted as observing at the old horizon although they may not have been."""
        if self._old_us is None:
            return set()
        return {hour_of(self._old_us - self._parameters.silence_seconds * SECOND_US)}

    def _new_keys(self, aggregation: Aggregation, new: NewInput) -> DataFrame | None:
        """The keys of new events before the frontier; None: the aggregation is not separable."""
        if not aggregation.key:
            return None
        time_range = TimeRange(min(new.hours), self._frontier, self._horizon_us)
        return cache(self._frames.events_of(new.paths, time_range, aggregation.kinds, aggregation.key).distinct())

    def _recompute(self, aggregation: Aggregation, backfill: BackfillRange) -> None:
        """Recompute all keys over a range, a day at a time, and then whatever depends on it."""
        first, end = backfill.first, min(backfill.end, self._frontier)
        while first < end:
            stop = min(end, (day_of(first) + 1) * DAY_HOURS)
            if aggregation.state is None:
                self._step_hours(aggregation, set(range(first, stop)))
            elif stop < end:
                self._step(aggregation, TimeRange(first, stop, self._horizon_us), None)
            else:
                self._catch_up(aggregation, TimeRange(first, stop, self._horizon_us), None)
            first = stop

    def _catch_up(self, aggregation: Aggregation, time_range: TimeRange, keys: DataFrame | None) -> None:
        """Compute late hours, and continue until the state equals the stored one, or the frontier is reached."""
        reach = FIRST_REACH_HOURS
        while True:
            assert aggregation.state is not None
            stored = self._frames.data_set(aggregation.state, {time_range.end})
            before = self._transaction.sums(aggregation.state.name, {time_range.end})
            self._step(aggregation, time_range, keys)
            after = self._transaction.sums(aggregation.state.name, {time_range.end})
            if before == after or time_range.end >= self._frontier:
                return
            if keys is not None:
                current = self._frames.data_set(aggregation.state, {time_range.end})
                differing = stored.exceptAll(current).unionByName(current.exceptAll(stored))
                keys = cache(differing.select(aggregation.state.key).distinct())
            time_range = TimeRange(time_range.end, min(self._frontier, time_range.end + reach), self._horizon_us)
            reach *= 2

    def _step_hours(self, aggregation: Aggregation, hours: set[int]) -> None:
        """For stateless aggregations: consecutive hours together."""
        for first, last in runs_of(hours):
            self._step(aggregation, TimeRange(first, last + 1, self._horizon_us), None)

    def _step(self, aggregation: Aggregation, time_range: TimeRange, keys: DataFrame | None) -> None:
        """Compute these keys (None: all) for the range, and replace their rows."""
        state = None
        if aggregation.state is not None:
            state = self._frames.data_set(aggregation.state, {time_range.first}).drop(PART)
            state = state if keys is None else rows_of_keys(state, keys, aggregation.state.key)
        rows = {name: self._rows(aggregation, name, time_range, keys) for name in aggregation.reads}
        output = aggregation.step(state, rows, time_range, self._parameters)
        for data_set in aggregation.data_sets:
            if data_set.period != "open":
                self._put(data_set, output[data_set.name], set(time_range.hours), keys)
            elif time_range.end > hour_of(self._horizon_us):
                self._put(data_set, output[data_set.name], {OPEN_PART}, None)
        if aggregation.state is not None and time_range.last_state > time_range.first:
            parts = set(range(time_range.first + 1, time_range.last_state + 1))
            self._put(aggregation.state, output[aggregation.state.name], parts, keys)

    def _rows(self, aggregation: Aggregation, name: str, time_range: TimeRange, keys: DataFrame | None) -> DataFrame:
        if name == LIVENESS:
            return self._frames.liveness_samples(time_range)
        if name == EVENTS:
            events = self._frames.events(time_range, aggregation.kinds, aggregation.columns)
            return events if keys is None else rows_of_keys(events, keys, aggregation.key)
        data_sets = data_sets_of(name, "hour")
        shown = [field.name for field in data_sets[0].schema if field.name not in data_sets[0].hidden]
        frames = (self._frames.data_set(data_set, time_range.hours).select(*shown, PART) for data_set in data_sets)
        return reduce(DataFrame.unionByName, frames)

    def _put(self, data_set: DataSet, frame: DataFrame, parts: set[int], keys: DataFrame | None) -> None:
        """Replace these parts of a data set by this frame; with keys, only their rows."""
        if keys is not None:
            kept = self._frames.data_set(data_set, parts)
            kept = kept.join(keys.toDF(data_set.key), on=data_set.key, how="left_anti").select(*kept.columns)
            frame = frame.select(*kept.columns).unionByName(kept)
        days = len({day_of(part) for part in parts}) if data_set.period == "hour" else 1
        entries = write_data_set(self._transaction.staging, data_set, frame, days, self._tasks)
        before = self._transaction.sums(data_set.name, parts)
        self._transaction.replace(data_set.name, data_set.period, parts, entries)
        after = self._transaction.sums(data_set.name, parts)
        self._note(data_set, before, after)

    def _note(self, data_set: DataSet, before: Mapping[int, Sum], after: Mapping[int, Sum]) -> None:
        """Record what changed, with its sums before the first change."""
        for part in before.keys() | after.keys():
            old, current = before.get(part, NOTHING), after.get(part, NOTHING)
            if old != current:
                self.changed.setdefault(data_set.name, set()).add(part)
                earlier = self.changes.get((data_set.name, part))
                self.changes[data_set.name, part] = RestatedValue(
                    data_set, part, old if earlier is None else earlier.before, current
                )

    def _run_mart(self, mart: Mart, backfill: BackfillRange | None) -> None:
        changed = {
            name: {
                *self.changed.get(name, ()),
                *parts_of(DATA_SETS[name], self._passed),
                *parts_of(DATA_SETS[name], backfill),
            }
            for name in mart.inputs
        }
        parts = whole_parts(self._transaction, mart.data_sets[0].period, mart.touched(changed, self._horizon_us))
        if not parts:
            return
        wanted = mart.wants(parts)
        inputs = {name: self._frames.data_set(DATA_SETS[name], wanted.get(name, frozenset())) for name in mart.inputs}
        output = mart.compute(inputs, parts, self._horizon_us, self._parameters)
        for data_set in mart.data_sets:
            self._put(data_set, output[data_set.name], set(parts), None)


def concurrent_work(one: Aggregation | Mart, needs: Iterable[str], compute: Callable[[], None]) -> ConcurrentWork:
    """Releases its cached frames when it is done."""

    def do() -> None:
        with release_cached():
            compute()

    return ConcurrentWork(one.name, frozenset(data_set.name for data_set in one.data_sets), frozenset(needs), do)


def oldest_hour(transaction: Transaction, horizon_us: int) -> int:
    """The first hour of all tables: that of the first event that is not too old."""
    end = hour_of(horizon_us)
    return next(iter(transaction.hours_with_events(end - OLDEST_HOURS, end + 1)), end)


def rows_of_keys(rows: DataFrame, keys: DataFrame, column: str) -> DataFrame:
    return rows.join(keys.toDF(column), on=column, how="left_semi").select(*rows.columns)


def parts_of(data_set: DataSet, backfill: BackfillRange | None) -> set[int]:
    hours = range(0) if backfill is None else range(backfill.first, backfill.end)
    match data_set.period:
        case "hour":
            return set(hours)
        case "day":
            return {day_of(hour) for hour in hours}
        case "month":
            return {month_of(day) for day in {day_of(hour) for hour in hours}}
        case "open":
            return {OPEN_PART}

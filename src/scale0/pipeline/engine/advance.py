"""Advances all tables of a transaction to a new horizon; used by run, stream and backfill.

- Hours from that of the old horizon on (the frontier) are computed for every key, from the state at their start.
- Earlier hours are computed only where events are new, and onwards only for keys whose state changed, in ranges that
  double until the state equals the stored one: the cost depends on what was touched, never on the length of history.
- If only few events lie between the first touched hour and the frontier, that hour becomes the frontier.
- Stateless aggregations compute the touched hours alone.
- Marts compute exactly the parts that depend on changed inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from functools import partial, reduce
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import DataFrame

from scale0.pipeline.caching import hold, holding
from scale0.pipeline.data_file import PART, DataSet
from scale0.pipeline.engine.concurrency import ConcurrentWork, do_all
from scale0.pipeline.engine.frames import EVENTS_NAME, PULSES_NAME, WarehouseFrames, runs_of
from scale0.pipeline.engine.restatements import NOTHING, RestatedValue
from scale0.pipeline.engine.writing import write_slab
from scale0.pipeline.registry import DERIVATIONS, FAMILIES, SLABS, slabs_of
from scale0.pipeline.time_ranges import DAY_HOURS, OPEN_PART, SECOND_US, TimeRange, day_of, hour_of, month_of
from scale0.pipeline.warehouse.retention import whole_parts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from scale0.pipeline.aggregation import Aggregation, Mart
    from scale0.pipeline.parameters import Parameters
    from scale0.pipeline.warehouse.records import Sum
    from scale0.pipeline.warehouse.staging import StagingDirectory
    from scale0.pipeline.warehouse.transaction import Transaction

OLDEST_HOURS: Final = 400 * DAY_HOURS
"""Older events are in `events` but in no other table."""
ABREAST: Final = 2
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
    pulse_hours: Set[int]
    silent_hours: Set[int]
    """Hours in which a source was last seen before a gap or restart that only became visible now."""
    paths: tuple[str, ...]
    """The files with the new events."""


class BackfillRange(NamedTuple):
    """Hours [first, end) to recompute for every key, whether events are new or not."""

    first: int
    end: int


Told = Callable[[str, int, int], None]
"""Progress: the current work, the number done, and the total."""


class Advance:
    def __init__(
        self,
        spark: SparkSession,
        draft: Transaction,
        attempt: StagingDirectory,
        parameters: Parameters,
        horizons: tuple[int | None, int],
        told: Told,
    ) -> None:
        self._old_us, self._horizon_us = horizons
        self._spark = spark
        self._draft = draft
        self._attempt = attempt
        self._parameters = parameters
        self._told = told
        self._frames = WarehouseFrames(spark, draft)
        self._tasks = spark.sparkContext.defaultParallelism * 2
        self._frontier = oldest_hour(draft, self._horizon_us) if self._old_us is None else hour_of(self._old_us)
        self._newest = TimeRange(self._frontier, hour_of(self._horizon_us) + 1, self._horizon_us)
        # Time passed in these hours: an hour may be complete or longer now although none of its rows changed.
        self._passed = BackfillRange(self._newest.first, self._newest.end)
        self.changed: dict[str, set[int]] = {}
        """By data set: the parts whose rows changed."""
        self.changes: dict[tuple[str, int], RestatedValue] = {}
        """Their sums before and after."""

    def go(self, fresh: NewInput, span: BackfillRange | None = None) -> None:
        if span is None and self._old_us is not None:
            self._move_frontier(fresh)
        works = [work(one, read_by(one), partial(self._family, one, fresh, span)) for one in FAMILIES]
        works += [work(one, one.inputs, partial(self._derive, one, span)) for one in DERIVATIONS]
        whole = len(works)
        cancel = self._spark.sparkContext.cancelAllJobs
        with holding():
            self._share_newest()
            do_all(works, ABREAST, lambda name, ended: self._told(name, ended, whole), cancel)
        self._told("tables", whole, whole)

    def _share_newest(self) -> None:
        """All aggregations compute the newest hours: their events are read once for all, if they are few."""
        readers = [family for family in FAMILIES if EVENTS_NAME in family.reads]
        kinds = frozenset(kind for family in readers for kind in family.kinds)
        columns = sorted({column for family in readers for column in family.columns})
        assert all(family.kinds for family in readers), "an aggregation of all kinds would miss some"
        self._frames.share(self._newest, kinds, columns)

    def _move_frontier(self, fresh: NewInput) -> None:
        """If late hours are near, compute them together with the newest hours."""
        first = min((hour for family in FAMILIES for hour in self._new_hours(family, fresh)), default=self._frontier)
        between = range(first, self._frontier)
        if len(between) <= NEAR_HOURS and sum(self._draft.kinds_in(between).values()) <= NEAR_EVENTS:
            self._frontier = min(first, self._frontier)
            self._newest = TimeRange(self._frontier, self._newest.end, self._horizon_us)

    def _family(self, family: Aggregation, fresh: NewInput, span: BackfillRange | None) -> None:
        late = {hour for hour in self._new_hours(family, fresh) if hour < self._frontier}
        if span is not None:
            self._again(family, span)
            late -= set(range(span.first, span.end))
        if late and family.carry is None:
            self._step_hours(family, late)
        elif late:
            self._catch_up(family, TimeRange(min(late), max(late) + 1, self._horizon_us), self._new_keys(family, fresh))
        if family.carry is not None or self._has_input(family):
            self._step(family, self._newest, None)

    def _new_hours(self, family: Aggregation, fresh: NewInput) -> set[int]:
        hours: set[int] = set()
        for name in family.reads:
            if name == EVENTS_NAME:
                hours |= {hour for hour, kinds in fresh.hours.items() if not family.kinds or kinds & family.kinds}
            elif name == PULSES_NAME:
                hours |= fresh.pulse_hours | fresh.silent_hours | self._judged_hours()
            else:
                hours |= {part for slab in slabs_of(name, "hour") for part in self.changed.get(slab.name, ())}
        return hours

    def _judged_hours(self) -> set[int]:
        """Hours of sources that counted as observing at the old horizon although they may not have been."""
        if self._old_us is None:
            return set()
        return {hour_of(self._old_us - self._parameters.silence_seconds * SECOND_US)}

    def _has_input(self, family: Aggregation) -> bool:
        return bool(family.kinds & self._draft.kinds_in(self._newest.hours).keys()) or not family.kinds

    def _new_keys(self, family: Aggregation, fresh: NewInput) -> DataFrame | None:
        """The keys of new events before the frontier; None: the aggregation is not separable."""
        if not family.key:
            return None
        stretch = TimeRange(min(fresh.hours), self._frontier, self._horizon_us)
        return hold(self._frames.events_of(fresh.paths, stretch, family.kinds, family.key).distinct())

    def _again(self, family: Aggregation, span: BackfillRange) -> None:
        """Recompute all keys over a range, a day at a time, and then whatever depends on it."""
        first, end = span.first, min(span.end, self._frontier)
        while first < end:
            stop = min(end, (day_of(first) + 1) * DAY_HOURS)
            if family.carry is None:
                self._step_hours(family, set(range(first, stop)))
            elif stop < end:
                self._step(family, TimeRange(first, stop, self._horizon_us), None)
            else:
                self._catch_up(family, TimeRange(first, stop, self._horizon_us), None)
            first = stop

    def _catch_up(self, family: Aggregation, stretch: TimeRange, keys: DataFrame | None) -> None:
        """Compute late hours, and continue until the state equals the stored one, or the frontier is reached."""
        reach = FIRST_REACH_HOURS
        while True:
            assert family.carry is not None
            stored = self._frames.slab(family.carry, {stretch.end})
            before = self._draft.sums(family.carry.name, {stretch.end})
            self._step(family, stretch, keys)
            after = self._draft.sums(family.carry.name, {stretch.end})
            if before == after or stretch.end >= self._frontier:
                return
            if keys is not None:
                keys = hold(differing(stored, self._frames.slab(family.carry, {stretch.end}), family.carry.key))
            stretch = TimeRange(stretch.end, min(self._frontier, stretch.end + reach), self._horizon_us)
            reach *= 2

    def _step_hours(self, family: Aggregation, hours: set[int]) -> None:
        """For stateless aggregations: consecutive hours together."""
        for first, last in runs_of(hours):
            self._step(family, TimeRange(first, last + 1, self._horizon_us), None)

    def _step(self, family: Aggregation, stretch: TimeRange, keys: DataFrame | None) -> None:
        """Compute these keys (None: all) for the range, and replace their rows."""
        carry = None
        if family.carry is not None:
            carry = self._frames.slab(family.carry, {stretch.first}).drop(PART)
            carry = carry if keys is None else only(carry, keys, family.carry.key)
        rows = {name: self._rows(family, name, stretch, keys) for name in family.reads}
        made = family.step(carry, rows, stretch, self._parameters)
        for slab in family.slabs:
            if slab.period != "open":
                self._put(slab, made[slab.name], set(stretch.hours), keys)
            elif stretch.end > hour_of(self._horizon_us):
                self._put(slab, made[slab.name], {OPEN_PART}, None)
        if family.carry is not None and stretch.last_carry > stretch.first:
            parts = set(range(stretch.first + 1, stretch.last_carry + 1))
            self._put(family.carry, made[family.carry.name], parts, keys)

    def _rows(self, family: Aggregation, name: str, stretch: TimeRange, keys: DataFrame | None) -> DataFrame:
        if name == PULSES_NAME:
            return self._frames.pulses(stretch)
        if name == EVENTS_NAME:
            events = self._frames.events(stretch, family.kinds, family.columns)
            return events if keys is None else only(events, keys, family.key)
        slabs = slabs_of(name, "hour")
        shown = [field.name for field in slabs[0].schema if field.name not in slabs[0].hidden]
        frames = (self._frames.slab(slab, stretch.hours).select(*shown, PART) for slab in slabs)
        return reduce(DataFrame.unionByName, frames)

    def _put(self, slab: DataSet, frame: DataFrame, parts: set[int], keys: DataFrame | None) -> None:
        """Replace these parts of a data set by this frame; with keys, only their rows."""
        if keys is not None:
            kept = self._frames.slab(slab, parts)
            kept = kept.join(keys.toDF(slab.key), on=slab.key, how="left_anti").select(*kept.columns)
            frame = frame.select(*kept.columns).unionByName(kept)
        days = len({day_of(part) for part in parts}) if slab.period == "hour" else 1
        entries = write_slab(self._attempt, slab, frame, days, self._tasks)
        before = self._draft.sums(slab.name, parts)
        self._draft.replace(slab.name, slab.period, parts, entries)
        after = self._draft.sums(slab.name, parts)
        self._note(slab, before, after)

    def _note(self, slab: DataSet, before: Mapping[int, Sum], after: Mapping[int, Sum]) -> None:
        """Record what changed, with its sums before the first change."""
        for part in before.keys() | after.keys():
            was, now = before.get(part, NOTHING), after.get(part, NOTHING)
            if was != now:
                self.changed.setdefault(slab.name, set()).add(part)
                known = self.changes.get((slab.name, part))
                self.changes[slab.name, part] = RestatedValue(slab, part, was if known is None else known.before, now)

    def _derive(self, derivation: Mart, span: BackfillRange | None) -> None:
        changed = {
            name: {*self.changed.get(name, ()), *parts_of(SLABS[name], self._passed), *parts_of(SLABS[name], span)}
            for name in derivation.inputs
        }
        parts = whole_parts(self._draft, derivation.slabs[0].period, derivation.touched(changed, self._horizon_us))
        if not parts:
            return
        wanted = derivation.wants(parts)
        inputs = {name: self._frames.slab(SLABS[name], wanted.get(name, frozenset())) for name in derivation.inputs}
        made = derivation.compute(inputs, parts, self._horizon_us, self._parameters)
        for slab in derivation.slabs:
            self._put(slab, made[slab.name], set(parts), None)


def work(one: Aggregation | Mart, needs: Iterable[str], compute: Callable[[], None]) -> ConcurrentWork:
    """Releases its cached frames when it is done."""

    def do() -> None:
        with holding():
            compute()

    return ConcurrentWork(one.name, frozenset(slab.name for slab in one.slabs), frozenset(needs), do)


def read_by(family: Aggregation) -> set[str]:
    """The data sets of the tables that an aggregation reads."""
    return {slab.name for read in family.reads for slab in slabs_of(read, "hour")}


def oldest_hour(draft: Transaction, horizon_us: int) -> int:
    """The first hour of all tables: that of the first event that is not too old."""
    end = hour_of(horizon_us)
    return next(iter(draft.hours_with_events(end - OLDEST_HOURS, end + 1)), end)


def only(rows: DataFrame, keys: DataFrame, column: str) -> DataFrame:
    return rows.join(keys.toDF(column), on=column, how="left_semi").select(*rows.columns)


def differing(one: DataFrame, other: DataFrame, key: str) -> DataFrame:
    """The keys of rows that only one of the two frames has."""
    return one.exceptAll(other).unionByName(other.exceptAll(one)).select(key).distinct()


def parts_of(slab: DataSet, span: BackfillRange | None) -> set[int]:
    """The parts of a data set in a range of hours."""
    hours = range(0) if span is None else range(span.first, span.end)
    match slab.period:
        case "hour":
            return set(hours)
        case "day":
            return {day_of(hour) for hour in hours}
        case "month":
            return {month_of(day) for day in {day_of(hour) for hour in hours}}
        case "open":
            return {OPEN_PART}

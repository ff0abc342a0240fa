"""The interfaces between the engine and what computes tables: aggregations, marts and the run's parameters.

Implementations build frames and run no Spark action (except `caching.truncate_plan`). They use no clock and no
randomness, and do not depend on the order or the partitioning of rows. A step over many hours gives the same rows as
one step per hour with the state passed between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from scale0.pipeline.time_ranges import days_of, days_of_month, hours_of, month_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Set

    from pyspark.sql import DataFrame

    from scale0.pipeline.schemas import DataSet
    from scale0.pipeline.time_ranges import TimeRange


class Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What tables depend on besides events and code. Changed parameters require a backfill of the whole warehouse."""

    flapping: Literal["icinga", "nagios", "sensu"] = "icinga"
    flapping_start: float | None = None
    """Percent; None: the formula's own default."""
    flapping_end: float | None = None
    silence_seconds: int = 150
    """A source that records nothing for longer was not observing."""
    absent_days: int = 7
    """A service without a backend for longer is no longer a subject."""
    anomaly_score: float = 3.5
    """Deviations above this are anomalies."""
    together_seconds: int = 60
    """Incidents that open within this time of each other are correlated."""


class Aggregation(Protocol):
    """Tables that are computed together, hour by hour, with one shared state (or without state)."""

    @property
    def name(self) -> str: ...

    @property
    def reads(self) -> tuple[str, ...]:
        """The inputs of a step: `events`, `pulses` (up to the horizon), or tables (the union of their hourly data
        sets).
        """
        ...

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of events that it needs; empty means every kind (or that it reads a table)."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """The event columns that it needs."""
        ...

    @property
    def key(self) -> str:
        """The event column by which it is separable: rows with another value never matter. Empty: not separable."""
        ...

    @property
    def data_sets(self) -> tuple[DataSet, ...]:
        """Its output, without the state."""
        ...

    @property
    def state(self) -> DataSet | None:
        """One row per live key; `part` p is the state at the start of hour p. None: the aggregation is stateless."""
        ...

    def step(
        self, state: DataFrame | None, rows: Mapping[str, DataFrame], time_range: TimeRange, parameters: Parameters
    ) -> Mapping[str, DataFrame]:
        """Return frames by data set name, with `part`; also the state for the hours (time_range.first,
        time_range.last_state].

        `state` is the one at time_range.first, without `part`. `rows` holds, by input name, the rows of the hours of
        the range up to the horizon, in no order: events with the requested columns, tables with `part`. An `open` data
        set holds what is open at time_range.until_us, with part OPEN_PART.
        """
        ...


class Mart(Protocol):
    """A table computed from parts of stored data sets, without state of its own."""

    @property
    def name(self) -> str: ...

    @property
    def data_sets(self) -> tuple[DataSet, ...]:
        """Its output; all data sets have one period."""
        ...

    @property
    def inputs(self) -> tuple[str, ...]:
        """The data sets that it reads."""
        ...

    def touched(self, changed: Mapping[str, Set[int]], horizon_us: int) -> Set[int]:
        """Return its own parts that must be computed again when these parts of its inputs changed."""
        ...

    def wants(self, parts: Set[int]) -> Mapping[str, Set[int]]:
        """Return the parts of its inputs that are needed to compute these parts of its own."""
        ...

    def compute(
        self, inputs: Mapping[str, DataFrame], parts: Set[int], horizon_us: int, parameters: Parameters
    ) -> Mapping[str, DataFrame]:
        """Return frames by data set name, with `part`, that hold all of these parts. Inputs have `part` and hold what
        `wants` returned.
        """
        ...


class PeriodMart:
    """A mart whose part depends only on the same hour of its inputs, on the hours of its day, or on the days of its
    month.
    """

    def __init__(
        self,
        name: str,
        data_set: DataSet,
        inputs: tuple[str, ...],
        compute: Callable[[Mapping[str, DataFrame], int], DataFrame],
    ) -> None:
        """`compute` gets the frames by input name, and the horizon."""
        self.name = name
        self.data_sets = (data_set,)
        self.inputs = inputs
        self._compute = compute

    def touched(self, changed: Mapping[str, Set[int]], horizon_us: int) -> Set[int]:
        parts: frozenset[int] = frozenset().union(*(changed.get(name, ()) for name in self.inputs))
        match self.data_sets[0].period:
            case "day":
                return days_of(parts)
            case "month":
                return frozenset(month_of(day) for day in parts)
            case _:
                return parts

    def wants(self, parts: Set[int]) -> Mapping[str, Set[int]]:
        match self.data_sets[0].period:
            case "day":
                parts = hours_of(parts)
            case "month":
                parts = frozenset(day for month in parts for day in days_of_month(month))
        return dict.fromkeys(self.inputs, parts)

    def compute(
        self, inputs: Mapping[str, DataFrame], parts: Set[int], horizon_us: int, parameters: Parameters
    ) -> Mapping[str, DataFrame]:
        return {self.data_sets[0].name: self._compute(inputs, horizon_us)}

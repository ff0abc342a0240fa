"""What the engine asks of those who compute: families step from hour to hour, derivations look at whole parts.

Lives here: the two Protocols. Never here: Spark jobs, files, or the order in which things run (`engine.py`).
Invariants: everything here builds frames and runs no action (but for those that are cut, `holding.py`); no clock,
nothing random, nothing that depends on the order or the partitioning of rows; a step over many hours equals the steps
over each, with the carry between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Set

    from pyspark.sql import DataFrame

    from scale0.pipeline.data_file import DataSet
    from scale0.pipeline.parameters import Parameters
    from scale0.pipeline.time_ranges import TimeRange


class Aggregation(Protocol):
    """Tables that are computed together, by one step with one carry (or none: tables without memory)."""

    @property
    def name(self) -> str: ...

    @property
    def reads(self) -> tuple[str, ...]:
        """What it steps over: `events`, `pulses` (up to the horizon), or tables (all their hour slabs united)."""
        ...

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of events that it wants; empty: every kind (or it reads a table)."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it wants of the events."""
        ...

    @property
    def key(self) -> str:
        """The column of the events that separates it: rows of other keys never matter. "": not separable."""
        ...

    @property
    def slabs(self) -> tuple[DataSet, ...]:
        """What it makes, besides the carry."""
        ...

    @property
    def carry(self) -> DataSet | None:
        """One row per live key; `part` p is the carry at the start of hour p. None: it has no memory."""
        ...

    def step(
        self, carry: DataFrame | None, rows: Mapping[str, DataFrame], stretch: TimeRange, parameters: Parameters
    ) -> Mapping[str, DataFrame]:
        """By slab name, with `part`; the carry too, for the hours (stretch.first, stretch.last_carry].

        `carry` is the one at stretch.first, without `part`. `rows`, by what it reads, are those of the hours of the
        stretch, at or before the horizon, in no order: events with the columns asked for, tables with `part`. An `open`
        slab holds what is open at stretch.until_us, with part OPEN_PART.
        """
        ...


class Mart(Protocol):
    """A table that is a function of parts of stored slabs, without memory of its own."""

    @property
    def name(self) -> str: ...

    @property
    def slabs(self) -> tuple[DataSet, ...]:
        """What it makes: all of one period."""
        ...

    @property
    def inputs(self) -> tuple[str, ...]:
        """The slabs that it reads."""
        ...

    def touched(self, changed: Mapping[str, Set[int]], horizon_us: int) -> Set[int]:
        """The parts of its own to compute again, when these parts of its inputs changed."""
        ...

    def wants(self, parts: Set[int]) -> Mapping[str, Set[int]]:
        """The parts of its inputs from which to compute these parts of its own."""
        ...

    def compute(
        self, inputs: Mapping[str, DataFrame], parts: Set[int], horizon_us: int, parameters: Parameters
    ) -> Mapping[str, DataFrame]:
        """By slab name, with `part`: the whole of these parts. Inputs have `part` too, and hold what `wants` said."""
        ...

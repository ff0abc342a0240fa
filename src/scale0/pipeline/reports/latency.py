"""Durations of a period: histograms merged exactly, their ranks, and how they changed.

Lives here: what the reports of tasks and of requests share. Never here: which table. Invariant: a percentile of a
period is read from the merged histogram of all its values; percentiles are never averaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from scale0.events.histogram import GAMMA, ZERO_BUCKET, Histogram, from_counts, merge, quantile
from scale0.pipeline.reports.desk import Row
from scale0.pipeline.reports.period import Period
from scale0.pipeline.reports.shape import Bars, Line, Lines

RANKS: Final = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
MAX_BARS: Final = 48
"""Of a drawn histogram: neighbouring buckets are drawn as one."""


class Part(NamedTuple):
    """Counts by log bucket, of one name in one step of the period."""

    name: str
    step_us: int
    histogram: Histogram


def parts_of(rows: Iterable[Row]) -> list[Part]:
    """From rows of (name, step, bucket, count)."""
    counts: dict[tuple[str, int], dict[int, int]] = {}
    for name, step_us, bucket, count in rows:
        of_step = counts.setdefault((name, step_us), {})
        of_step[bucket] = of_step.get(bucket, 0) + int(count)
    return [Part(name, step, from_counts(of_step)) for (name, step), of_step in counts.items()]


def by_name(parts: Iterable[Part]) -> dict[str, Histogram]:
    """Each name's histogram of the whole."""
    found: dict[str, list[Histogram]] = {}
    for part in parts:
        found.setdefault(part.name, []).append(part.histogram)
    return {name: merge(histograms) for name, histograms in found.items()}


def by_step(parts: Iterable[Part]) -> dict[int, Histogram]:
    """Each step's histogram of all names."""
    found: dict[int, list[Histogram]] = {}
    for part in parts:
        found.setdefault(part.step_us, []).append(part.histogram)
    return {step: merge(histograms) for step, histograms in found.items()}


def whole(parts: Iterable[Part]) -> Histogram:
    """The histogram of everything."""
    return merge(part.histogram for part in parts)


def ranks(histogram: Histogram | None) -> tuple[float | None, ...]:
    """p50, p90, p99."""
    return tuple(quantile(histogram or [], share) for _, share in RANKS)


def change(before: float | None, after: float | None) -> float | None:
    """How much more, as a share of before; None where there is nothing to compare."""
    return after / before - 1 if before and after is not None else None


def p99_changes(parts: Iterable[Part], middle_us: int) -> dict[str, float | None]:
    """By name: the p99 of the second half of a period against that of the first."""
    parts = list(parts)
    first = by_name(part for part in parts if part.step_us < middle_us)
    second = by_name(part for part in parts if part.step_us >= middle_us)
    return {
        name: change(quantile(first.get(name, []), 0.99), quantile(second.get(name, []), 0.99))
        for name in {*first, *second}
    }


def lines(title: str, about: str, parts: Iterable[Part], period: Period) -> Lines:
    """The ranks of every step."""
    steps = by_step(parts)
    return Lines(
        title,
        about,
        "seconds",
        tuple(
            Line(rank, tuple((step, quantile(steps.get(step, []), share)) for step in period.steps()))
            for rank, share in RANKS
        ),
    )


def bars(title: str, about: str, histogram: Histogram) -> Bars:
    """A histogram with few enough bars to be seen."""
    known = [(bucket, count) for bucket, count in histogram if bucket > ZERO_BUCKET]
    marks = tuple((name, value) for name, share in RANKS if (value := quantile(histogram, share)))
    if not known:
        return Bars(title, about, (), marks)
    low, high = known[0][0], known[-1][0]
    width = max(1, -(-(high - low + 1) // MAX_BARS))
    counts: Mapping[int, int] = merge_wide(known, low, width)
    found = tuple(
        (GAMMA ** (low + at * width - 1), GAMMA ** (low + (at + 1) * width - 1), counts.get(at, 0))
        for at in range((high - low) // width + 1)
    )
    return Bars(title, about, found, marks)


def merge_wide(known: list[tuple[int, int]], low: int, width: int) -> dict[int, int]:
    """Counts of neighbours together."""
    found: dict[int, int] = {}
    for bucket, count in known:
        at = (bucket - low) // width
        found[at] = found.get(at, 0) + count
    return found

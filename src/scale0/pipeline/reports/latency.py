"""Durations of a period: merged histograms, their percentiles, and how they changed.

A percentile of a period is computed from the merged histogram of all its values; percentiles are never averaged. The
database merges the histograms: a month has hundreds of thousands of entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from scale0.history.events.histogram import GAMMA, QUANTILES, ZERO_BUCKET, Histogram, from_counts, merge, quantile
from scale0.pipeline.reports.model import Bars, LinePlot, PlotLine
from scale0.pipeline.reports.period import Period
from scale0.pipeline.reports.query import ReportReader

TREND_NOTE: Final = "Trends compare the second half of the period with the first."
MAX_BARS: Final = 48
"""Bars of a drawn histogram: adjacent buckets are merged."""


class Durations(NamedTuple):
    """All histograms of one kind of duration in a period."""

    first: dict[str, Histogram]
    """By name: of the first half of the period."""
    second: dict[str, Histogram]
    """By name: of the second half."""
    steps: dict[int, Histogram]
    """By step: of all names."""

    def named(self, name: str) -> Histogram:
        return merge((self.first.get(name, []), self.second.get(name, [])))

    def whole(self) -> Histogram:
        return merge(self.steps.values())


def durations_of(reader: ReportReader, table: str, column: str, name: str, pattern: str) -> Durations:
    """From a column of histograms, by the names that match; an empty pattern matches all."""
    rows = reader.covered(
        f"SELECT {name}, late, step, list(bucket), list(n) FROM (SELECT {name}, late, step, h.bucket AS bucket,"  # noqa: S608
        f" sum(h.count)::BIGINT AS n FROM (SELECT {name}, epoch_us(start) >= $middle AS late,"
        f" epoch_us(start) // $unit * $unit AS step, unnest({column}) AS h FROM {table}"
        f" WHERE $pattern = '' OR {name} GLOB $pattern)"
        f" GROUP BY GROUPING SETS (({name}, late, bucket), (step, bucket))) GROUP BY ALL",
        table,
        unit=reader.period.unit_us,
        middle=reader.period.middle_us,
        pattern=pattern,
    )
    found = Durations({}, {}, {})
    for key, late, step_us, buckets, counts in rows:
        histogram = from_counts(dict(zip(buckets, counts, strict=True)))
        if step_us is not None:
            found.steps[step_us] = histogram
        else:
            (found.second if late else found.first)[key] = histogram
    return found


def ranks(histogram: Histogram) -> tuple[float | None, ...]:
    return tuple(quantile(histogram, share) for _, share in QUANTILES)


def change(before: float | None, after: float | None) -> float | None:
    return after / before - 1 if before and after is not None else None


def share_of(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def failed_points(steps: Iterable[tuple[int, int, int]], period: Period) -> float | None:
    """The share that failed in the second half of a period, minus that of the first; from (step, failed, ended)."""
    halves = {False: [0, 0], True: [0, 0]}
    for step_us, failed, ended in steps:
        half = halves[step_us >= period.middle_us]
        half[0] += failed
        half[1] += ended
    first, second = share_of(*halves[False]), share_of(*halves[True])
    return None if first is None or second is None else second - first


def p99_change(durations: Durations, name: str) -> float | None:
    """The p99 of the second half of a period compared with the first."""
    first, second = durations.first.get(name, []), durations.second.get(name, [])
    return change(quantile(first, 0.99), quantile(second, 0.99))


def lines(title: str, about: str, steps: Mapping[int, Histogram], period: Period) -> LinePlot:
    return LinePlot(
        title,
        about,
        "seconds",
        tuple(
            PlotLine(rank, tuple((step, quantile(steps.get(step, []), share)) for step in period.steps()))
            for rank, share in QUANTILES
        ),
    )


def bars(title: str, about: str, histogram: Histogram) -> Bars:
    known = [(bucket, count) for bucket, count in histogram if bucket > ZERO_BUCKET]
    marks = tuple((name, value) for name, share in QUANTILES if (value := quantile(histogram, share)))
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
    found: dict[int, int] = {}
    for bucket, count in known:
        at = (bucket - low) // width
        found[at] = found.get(at, 0) + count
    return found

"""The tasks report: what each method did, how long tasks waited and ran, and the trends.

Each event counts in its own period, so more tasks may finish than were submitted. Percentiles are of the merged
histograms.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from scale0.pipeline.reports import latency
from scale0.pipeline.reports.data_quality import document
from scale0.pipeline.reports.formatting import counted, share
from scale0.pipeline.reports.latency import Durations
from scale0.pipeline.reports.model import Plot, ReportColumn, ReportDocument, ReportTable, stacked
from scale0.pipeline.reports.period import Period
from scale0.pipeline.reports.query import ReportReader, Row

TABLES: Final = ("task_stats",)
_COUNTS: Final = ("submitted", "finished", "failed", "cancelled", "retried")

COLUMNS: Final = (
    ReportColumn("method", "Method"),
    ReportColumn("submitted", "Submitted", "count"),
    ReportColumn("finished", "Finished", "count"),
    ReportColumn("failed", "Failed", "count"),
    ReportColumn("cancelled", "Cancelled", "count", detail=True),
    ReportColumn("retried", "Retried", "count"),
    ReportColumn("failed_share", "Failed share", "share", detail=True),
    ReportColumn("wait_p50_seconds", "Wait p50", "seconds", detail=True),
    ReportColumn("wait_p90_seconds", "Wait p90", "seconds", detail=True),
    ReportColumn("wait_p99_seconds", "Wait p99", "seconds"),
    ReportColumn("run_p50_seconds", "Run p50", "seconds"),
    ReportColumn("run_p90_seconds", "Run p90", "seconds", detail=True),
    ReportColumn("run_p99_seconds", "Run p99", "seconds"),
    ReportColumn("run_max_seconds", "Run max", "seconds", detail=True),
    ReportColumn("run_p99_change", "p99 trend", "change"),
    ReportColumn("failed_points", "Failures trend", "points"),
    ReportColumn("busy_seconds", "Busy", "seconds", detail=True),
)


class Count(NamedTuple):
    method: str
    step_us: int
    submitted: int
    finished: int
    failed: int
    cancelled: int
    retried: int
    run_max: float | None
    busy: float


def counts_of(reader: ReportReader) -> list[Count]:
    sums = ", ".join(f"sum({name})::BIGINT" for name in _COUNTS)
    rows = reader.covered(
        f"SELECT method, epoch_us(start) // $unit * $unit, {sums}, max(run_max),"  # noqa: S608
        " sum(round(busy_seconds * 1e6)::BIGINT)::BIGINT / 1e6"
        " FROM task_stats WHERE $method = '' OR method GLOB $method GROUP BY ALL ORDER BY ALL",
        "task_stats",
        unit=reader.period.unit_us,
        method=reader.filters.method,
    )
    return [Count(*row) for row in rows]


def durations_of(reader: ReportReader, measure: str) -> Durations:
    """The histograms of `wait` or `run`."""
    return latency.durations_of(reader, "task_stats", f"{measure}_histogram", "method", reader.filters.method)


def report(reader: ReportReader) -> ReportDocument:
    counts = counts_of(reader)
    known: tuple[str, ...] = ()
    if not counts and reader.filters.method:
        names = reader.rows("SELECT DISTINCT method FROM task_stats WHERE grain = 'hour' ORDER BY ALL", TABLES)
        known = tuple(method for (method,) in names)
    waits, runs = durations_of(reader, "wait"), durations_of(reader, "run")
    rows = rows_of(reader.period, counts, waits, runs)
    return document(
        reader,
        "tasks",
        _summary(counts),
        (ReportTable("tasks", "Tasks by method", COLUMNS, rows, "no tasks"),),
        reads=TABLES,
        plots=_plots(reader.period, counts, waits, runs) if counts else (),
        notes=(latency.TREND_NOTE,),
        found=bool(counts),
        known=known,
    )


def rows_of(period: Period, counts: list[Count], waits: Durations, runs: Durations) -> tuple[Row, ...]:
    """One row per method; those with most failures first, then the busiest."""
    methods: dict[str, list[Count]] = {}
    for count in counts:
        methods.setdefault(count.method, []).append(count)
    found = []
    for method, steps in methods.items():
        submitted, finished, failed, cancelled, retried = (sum(getattr(one, name) for one in steps) for name in _COUNTS)
        wait_ranks, run_ranks = latency.ranks(waits.named(method)), latency.ranks(runs.named(method))
        longest = max((one.run_max for one in steps if one.run_max is not None), default=None)
        row = (
            *(method, submitted, finished, failed, cancelled, retried, latency.share_of(failed, finished + failed)),
            *(*wait_ranks, *run_ranks, longest, latency.p99_change(runs, method)),
            *(
                latency.failed_points([(one.step_us, one.failed, one.finished + one.failed) for one in steps], period),
                sum(one.busy for one in steps),
            ),
        )
        found.append((-failed, -submitted, method, row))
    return tuple(entry[-1] for entry in sorted(found, key=lambda entry: entry[:3]))


def _plots(period: Period, counts: list[Count], waits: Durations, runs: Durations) -> tuple[Plot, ...]:
    unit = period.unit
    ended = stacked(
        f"Tasks that ended by {unit}",
        f"The number of tasks that finished, failed or were cancelled in each {unit}.",
        ("finished", "failed", "cancelled"),
        period,
        ((one.step_us, (one.finished, one.failed, one.cancelled)) for one in counts),
    )
    return (
        ended,
        latency.lines(f"Run time by {unit}", f"p50, p90 and p99 of run times in each {unit}.", runs.steps, period),
        latency.lines(f"Wait by {unit}", f"p50, p90 and p99 of waits in each {unit}.", waits.steps, period),
        latency.bars("Run times of all tasks", "The distribution of run times.", runs.whole()),
    )


def _summary(counts: list[Count]) -> str:
    if not counts:
        return "There were no tasks."
    submitted, finished, failed = (sum(getattr(one, name) for one in counts) for name in _COUNTS[:3])
    methods = len({one.method for one in counts})
    bad = f"{failed:,} failed ({share(failed / (finished + failed))})" if failed else "none failed"
    return f"{counted(submitted, 'task')} of {counted(methods, 'method')} submitted, {finished:,} finished, {bad}."

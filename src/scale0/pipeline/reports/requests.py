"""The requests report: what each service answered, how fast, and what failed.

Percentiles are of the merged histograms, from acceptance to answer.
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

TABLES: Final = ("request_stats",)
MAX_CODES: Final = 3
"""The most frequent codes of a service, which are named."""

COLUMNS: Final = (
    ReportColumn("service", "Service"),
    ReportColumn("answered", "Answered", "count"),
    ReportColumn("failed", "Failed", "count"),
    ReportColumn("failed_share", "Failed share", "share"),
    ReportColumn("codes", "Most by code"),
    ReportColumn("p50_seconds", "p50", "seconds"),
    ReportColumn("p90_seconds", "p90", "seconds", detail=True),
    ReportColumn("p99_seconds", "p99", "seconds"),
    ReportColumn("max_seconds", "Max", "seconds"),
    ReportColumn("p99_change", "p99 trend", "change"),
    ReportColumn("failed_points", "Failures trend", "points", detail=True),
    ReportColumn("bytes", "Bytes", "bytes", detail=True),
)


class Count(NamedTuple):
    service: str
    step_us: int
    answered: int
    failed: int
    longest: float | None
    bytes: int


def counts_of(reader: ReportReader) -> list[Count]:
    rows = reader.covered(
        "SELECT service, epoch_us(start) // $unit * $unit, sum(answered)::BIGINT,"
        " coalesce(sum(list_sum(map_values(failed))), 0)::BIGINT, max(max), coalesce(sum(bytes), 0)::BIGINT"
        " FROM request_stats WHERE $service = '' OR service GLOB $service GROUP BY ALL ORDER BY ALL",
        "request_stats",
        unit=reader.period.unit_us,
        service=reader.filters.service,
    )
    return [Count(*row) for row in rows]


def codes_of(reader: ReportReader) -> dict[str, list[tuple[int, int]]]:
    """By service: (code, count), the most frequent first."""
    rows = reader.covered(
        "SELECT service, e.key, sum(e.value)::BIGINT AS n FROM (SELECT service, unnest(map_entries(failed)) AS e"
        " FROM request_stats WHERE $service = '' OR service GLOB $service) GROUP BY ALL"
        " ORDER BY service, n DESC, e.key",
        "request_stats",
        service=reader.filters.service,
    )
    found: dict[str, list[tuple[int, int]]] = {}
    for service, code, count in rows:
        found.setdefault(service, []).append((code, count))
    return found


def report(reader: ReportReader) -> ReportDocument:
    counts = counts_of(reader)
    known: tuple[str, ...] = ()
    if not counts and reader.filters.service:
        names = reader.rows("SELECT DISTINCT service FROM request_stats WHERE grain = 'hour' ORDER BY ALL", TABLES)
        known = tuple(service for (service,) in names)
    durations = latency.durations_of(reader, "request_stats", "histogram", "service", reader.filters.service)
    rows = rows_of(reader.period, counts, codes_of(reader), durations)
    return document(
        reader,
        "requests",
        _summary(counts),
        (ReportTable("requests", "Requests by service", COLUMNS, rows, "no requests"),),
        reads=TABLES,
        plots=_plots(reader.period, counts, durations) if counts else (),
        notes=(latency.TREND_NOTE,),
        found=bool(counts),
        known=known,
    )


def rows_of(
    period: Period, counts: list[Count], codes: dict[str, list[tuple[int, int]]], durations: Durations
) -> tuple[Row, ...]:
    """One row per service; those with most failures first, then the busiest."""
    services: dict[str, list[Count]] = {}
    for count in counts:
        services.setdefault(count.service, []).append(count)
    found = []
    for service, steps in services.items():
        answered, failed = sum(one.answered for one in steps), sum(one.failed for one in steps)
        longest = max((one.longest for one in steps if one.longest is not None), default=None)
        named = ", ".join(f"{code}: {count:,}" for code, count in codes.get(service, [])[:MAX_CODES])
        ranks = latency.ranks(durations.named(service))
        row = (
            *(service, answered, failed, latency.share_of(failed, answered + failed), named, *ranks, longest),
            *(
                latency.p99_change(durations, service),
                latency.failed_points([(one.step_us, one.failed, one.answered + one.failed) for one in steps], period),
                sum(one.bytes for one in steps),
            ),
        )
        found.append((-failed, -answered, service, row))
    return tuple(entry[-1] for entry in sorted(found, key=lambda entry: entry[:3]))


def _plots(period: Period, counts: list[Count], durations: Durations) -> tuple[Plot, ...]:
    unit = period.unit
    stacks = stacked(
        f"Requests by {unit}",
        f"The number of requests that were answered or failed in each {unit}.",
        ("answered", "failed"),
        period,
        ((one.step_us, (one.answered, one.failed)) for one in counts),
    )
    return (
        stacks,
        latency.lines(f"Response time by {unit}", f"p50, p90 and p99 in each {unit}.", durations.steps, period),
        latency.bars("Response times", "The distribution of response times.", durations.whole()),
    )


def _summary(counts: list[Count]) -> str:
    if not counts:
        return "There were no requests."
    answered, failed = sum(one.answered for one in counts), sum(one.failed for one in counts)
    services = len({one.service for one in counts})
    bad = f"{failed:,} failed ({share(failed / (answered + failed))})" if failed else "none failed"
    return f"{answered:,} requests to {counted(services, 'service')} answered, {bad}."

"""A warehouse from rows, without Spark: ten days of a small network in which a few things went wrong.

Every hour's numbers follow from small rules, so that a test can add them up by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from scale0.history.events.histogram import bucket_of, from_counts, merge, quantile
from scale0.pipeline.time_ranges import DAY_HOURS, DAY_US, HOUR_US, Period, month_of, to_time
from scale0.pipeline.warehouse.records import RESTATEMENTS, DataSetInfo, FileEntry, TableInfo
from scale0.pipeline.warehouse.transaction import Transaction
from scale0.pipeline.warehouse.types import arrow_type
from scale0.pipeline.warehouse.warehouse import Warehouse
from tests.pipeline.reports_tables import RESTATEMENT_COLUMNS, TABLES
from tests.pipeline.warehouse_made import NOW_US, begin, put

FIRST_DAY: Final = 20_583
"""2026-05-10."""
DAYS: Final = 10
START_US: Final = FIRST_DAY * DAY_US
HORIZON_US: Final = START_US + DAYS * DAY_US + 9 * HOUR_US + HOUR_US // 2
"""In the eleventh day, in the middle of an hour."""
SECOND: Final = 1_000_000
HOURS: Final = range(FIRST_DAY * 24, HORIZON_US // HOUR_US + 1)

Row = dict[str, Any]
Rows = list[tuple[int, Row]]
"""(part, row) each."""

# What happened. Everything that is not listed here was up, or answered as always.

EVIL: Final = "<script>alert('\"&x')</script>"
SUBJECTS: Final[tuple[tuple[str, str], ...]] = (
    ("broker", "broker-1"),
    ("client", "node-1"),
    ("service", "thumbs.make"),
    ("service", EVIL),
    ("agent", "web-1"),
    ("check", "web-1/disk"),
    ("check", "web-1/load"),
    ("check", "web-2/load"),
)
DOWN: Final = {
    ("service", "thumbs.make"): [(START_US + 30 * HOUR_US + 600 * SECOND, START_US + 33 * HOUR_US)],
    ("check", "web-1/load"): [
        (START_US + 50 * HOUR_US, START_US + 50 * HOUR_US + 120 * SECOND),
        (START_US + 200 * HOUR_US + 1800 * SECOND, START_US + 201 * HOUR_US + 1800 * SECOND),
    ],
    ("check", "web-2/load"): [(START_US + 246 * HOUR_US, HORIZON_US)],
}
UNOBSERVED: Final = {
    ("client", "node-1"): [(START_US + 100 * HOUR_US, START_US + 130 * HOUR_US + 900 * SECOND)],
    ("broker", "broker-1"): [(START_US + 100 * HOUR_US, START_US + 101 * HOUR_US)],
}
DOWNTIME: Final = {("agent", "web-1"): [(START_US + 24 * HOUR_US, START_US + 36 * HOUR_US)]}
METHODS: Final = ("thumbs.make", "report.daily", EVIL)
SERVICES: Final = ("thumbs.make", "search", EVIL)


def overlap_us(spans: Iterable[tuple[int, int]], from_us: int, to_us: int) -> int:
    """How much of the spans lies in [from, to)."""
    return sum(max(0, min(end, to_us) - max(start, from_us)) for start, end in spans)


def seconds_of(subject: tuple[str, str], from_us: int, to_us: int) -> dict[str, float]:
    classes = {"down": DOWN, "unobserved": UNOBSERVED, "downtime": DOWNTIME}
    found = {name: overlap_us(spans.get(subject, ()), from_us, to_us) for name, spans in classes.items()}
    up = to_us - from_us - sum(found.values())
    return {f"{name}_seconds": us / 1e6 for name, us in {"up": up, "absent": 0, "soft": 0, **found}.items()}


def opened_in(subject: tuple[str, str], from_us: int, to_us: int) -> int:
    return sum(from_us <= start < to_us for start, _ in DOWN.get(subject, ()))


def availability_rows(grain: str, parts: Iterable[int], part_us: int) -> Rows:
    """Of hours or days, up to the horizon."""
    found: Rows = []
    for part in parts:
        start, end = part * part_us, min((part + 1) * part_us, HORIZON_US)
        for subject in SUBJECTS:
            found.append((part, availability_row(subject, grain, start, end)))
    return found


def availability_row(subject: tuple[str, str], grain: str, start: int, end: int) -> Row:
    row: Row = {"subject_kind": subject[0], "subject": subject[1], "grain": grain, "start": to_time(start)}
    return {**row, **seconds_of(subject, start, end), "incidents": opened_in(subject, start, end)}


def timeline_rows(checks: bool) -> Rows:
    """Pieces that are cut at every hour."""
    found: Rows = []
    for subject in SUBJECTS:
        if (subject[0] == "check") is not checks:
            continue
        for hour in HOURS:
            found += [(hour, piece) for piece in pieces_of(subject, hour * HOUR_US)]
    return found


def pieces_of(subject: tuple[str, str], start: int) -> list[Row]:
    end = min(start + HOUR_US, HORIZON_US)
    spans = [
        (max(one, start), min(other, end), name, f"{name} it was", f"broker-1:7:{one // SECOND}")
        for name, of in (("down", DOWN), ("unobserved", UNOBSERVED), ("downtime", DOWNTIME))
        for one, other in of.get(subject, ())
        if one < end and other > start
    ]
    found, at = [], start
    for one, other, name, reason, evidence in sorted(spans):
        if one > at:
            found.append(piece(subject, at, one, "up", "", ""))
        found.append(piece(subject, one, other, name, reason, evidence))
        at = other
    return found + ([piece(subject, at, end, "up", "", "")] if at < end else [])


def piece(subject: tuple[str, str], start: int, end: int, name: str, reason: str, evidence: str) -> Row:
    state = ("critical" if name == "down" else "ok") if subject[0] == "check" else None
    return {
        **dict(zip(("subject_kind", "subject"), subject, strict=True)),
        "from": to_time(start),
        "to": to_time(end),
        "class": name,
        "reason": reason or None,
        "evidence": evidence or None,
        "state": state,
        "flapping": False if state else None,
    }


def incident_rows() -> tuple[Rows, Rows]:
    """Closed ones by the hour of their end, and open ones."""
    closed: Rows = []
    still_open: Rows = []
    for subject, spans in DOWN.items():
        for start, end in spans:
            is_open = end >= HORIZON_US
            row: Row = {
                **dict(zip(("subject_kind", "subject"), subject, strict=True)),
                "opened": to_time(start),
                "closed": None if is_open else to_time(end),
                "worst_state": "critical",
                "down_seconds": (end - start) / 1e6,
                "flapping": False,
                "also_failing": 1,
                "also_failing_first": [{"subject_kind": "agent", "subject": "web-1"}],
            }
            (still_open if is_open else closed).append((0 if is_open else end // HOUR_US, row))
    return closed, still_open


def durations(name: str, hour: int) -> list[float]:
    """The durations of a method or service in an hour: a hundredth is slow, and in the second half twice so."""
    base = 0.01 * (1 + sum(map(ord, name)) % 7)
    late = 2.0 if hour >= FIRST_DAY * 24 + 5 * DAY_HOURS else 1.0
    return [base * (1 + at / 40) * (50 * late if at == 39 else 1) for at in range(40)]


def histogram_of(values: Iterable[float]) -> list[tuple[int, int]]:
    counts: dict[int, int] = {}
    for value in values:
        counts[bucket_of(value)] = counts.get(bucket_of(value), 0) + 1
    return from_counts(counts)


def stats(grain: str, parts: Iterable[int], hours_each: int, names: tuple[str, ...], service: bool) -> Rows:
    found: Rows = []
    for part in parts:
        hours = [hour for hour in range(part * hours_each, (part + 1) * hours_each) if hour in HOURS]
        for name in names:
            values = [value for hour in hours for value in durations(name, hour)]
            histogram = merge(histogram_of(durations(name, hour)) for hour in hours)
            packed = [{"bucket": bucket, "count": count} for bucket, count in histogram]
            shared: Row = {"grain": grain, "start": to_time(part * hours_each * HOUR_US)}
            row = service_row(name, values, packed) if service else method_row(name, values, packed, histogram)
            found.append((part, {**shared, **row}))
    return found


def method_row(name: str, values: list[float], packed: list[Row], histogram: list[tuple[int, int]]) -> Row:
    failed = len(values) // 40 if name == "report.daily" else 0
    return {
        "method": name,
        "submitted": len(values),
        "finished": len(values) - failed,
        "failed": failed,
        "cancelled": 0,
        "retried": failed,
        "run_max": max(values),
        "wait_max": max(values),
        "run_p99": quantile(histogram, 0.99),
        "busy_seconds": sum(values),
        "run_histogram": packed,
        "wait_histogram": packed,
    }


def service_row(name: str, values: list[float], packed: list[Row]) -> Row:
    failed = [(504, len(values) // 40), (404, len(values) // 20)] if name == "search" else []
    return {
        "service": name,
        "answered": len(values),
        "failed": failed,
        "max": max(values),
        "bytes": 100 * len(values),
        "histogram": packed,
    }


def other_rows() -> dict[str, Rows]:
    """What has no rule: nodes, checks, metrics, forecasts, noise, audit."""
    days = range(FIRST_DAY, FIRST_DAY + DAYS + 1)
    month = month_of(FIRST_DAY)
    nodes = [
        (hour, {"node": node, "hour": to_time(hour * HOUR_US), "attempts": 5, "busy_seconds": busy, "slots": 2,
                "lost": int(hour % 24 == 0)})
        for hour in HOURS[:-1] for node, busy in (("node-1", 3600.0 + 60 * (hour % 24)), ("node-2", 720.0))
    ]  # fmt: skip
    disk: Row = {"agent": "web-1", "check": "disk", "metric": "used"}
    trends = [
        (hour, {**disk, "grain": "hour", "start": to_time(hour * HOUR_US), "count": 60, "avg": disk_at(hour)})
        for hour in HOURS
    ]
    forecasts = [
        (day, {**disk, "as_of": to_time(day * DAY_US), "slope": 2.4, "fitted_from": to_time(START_US),
               "fitted_to": to_time(min((day + 1) * DAY_US, HORIZON_US // HOUR_US * HOUR_US)), "limit": 95.0,
               "exhausted_at": to_time(HORIZON_US + (20 + day - FIRST_DAY) * DAY_US),
               "exhausted_low": to_time(HORIZON_US + 15 * DAY_US), "exhausted_high": to_time(HORIZON_US + 40 * DAY_US),
               "r2": 0.97, "value": disk_at(min((day + 1) * 24, HOURS[-1])), "points": 200})
        for day in days
    ]  # fmt: skip
    forecasts.append((days[-1], {**disk, "check": "load", "as_of": to_time(days[-1] * DAY_US), "slope": -0.1}))
    noise = [
        (month, {"check": "load", "month": to_time(FIRST_DAY // 1 * DAY_US - 9 * DAY_US), "alerts": 3, "rank": 1,
                 "closed_quickly_share": 1 / 3, "flapping_seconds": 700.0}),
    ]  # fmt: skip
    audit = [
        (day, {"source": "broker-1", "day": to_time(day * DAY_US).date(), "events": 10, "holes": int(day % 5 == 0),
               "rewinds": 0, "duplicates": 0, "rejected": 0})
        for day in days
    ]  # fmt: skip
    return {
        "node_stats": nodes,
        "metric_trends.hour": trends,
        "forecasts": forecasts,
        "noise": noise,
        "audit": audit,
        "check_states": check_states(),
    }


def disk_at(hour: int) -> float:
    return 20.0 + 0.1 * (hour - HOURS[0]) + (hour % 5) * 0.2


def check_states() -> Rows:
    """Every problem, first soft and then hard, and its end; web-1/disk flaps for an hour."""
    found: Rows = []

    def add(subject: str, us: int, state: str, previous: str, **more: Any) -> None:
        agent, check = subject.split("/")
        row = {"agent": agent, "check": check, "id": f"helen-1:1:{us // SECOND}", "time": to_time(us), "state": state}
        found.append((us // HOUR_US, {**row, "previous": previous, "flapping": False, "hard": True, **more}))

    for (kind, subject), spans in DOWN.items():
        for start, end in spans if kind == "check" else ():
            add(subject, start - 60 * SECOND, "critical", "ok", hard=False, staging=1)
            add(subject, start, "critical", "critical", staging=2)
            if end < HORIZON_US:
                add(subject, end, "ok", "critical")
    flap = START_US + 80 * HOUR_US
    add("web-1/disk", flap, "warning", "ok", flapping=True, flapping_percent=39.1)
    add("web-1/disk", flap + HOUR_US, "ok", "warning", flapping_percent=20.0)
    return found


def data_sets() -> dict[str, Rows]:
    days = range(FIRST_DAY, FIRST_DAY + DAYS + 1)
    closed, still_open = incident_rows()
    month = month_of(FIRST_DAY)
    months = [(month, availability_row(subject, "month", START_US, HORIZON_US)) for subject in SUBJECTS]
    return {
        "availability.hour": availability_rows("hour", HOURS, HOUR_US),
        "availability.day": availability_rows("day", days, DAY_US),
        "availability.month": months,
        "timeline.checks": timeline_rows(True),
        "timeline.world": timeline_rows(False),
        "incidents": closed,
        "incidents.open": still_open,
        "task_stats.hour": stats("hour", HOURS, 1, METHODS, False),
        "task_stats.day": stats("day", days, 24, METHODS, False),
        "request_stats.hour": stats("hour", HOURS, 1, SERVICES, True),
        "request_stats.day": stats("day", days, 24, SERVICES, True),
        **other_rows(),
    }


def write(root: Path, rows: dict[str, Rows], segments: Path | None = None, restated: bool = True) -> Warehouse:
    """A warehouse with these rows; with the events of `segments`, if there are any."""
    from scale0.pipeline.warehouse.ingestion import ingest_segments

    warehouse = Warehouse(root)
    infos = {
        table: TableInfo(columns, {data_set: DataSetInfo(period) for data_set, period in made_of.items()})
        for table, (columns, made_of) in TABLES.items()
    }
    infos[RESTATEMENTS] = TableInfo(RESTATEMENT_COLUMNS, {RESTATEMENTS: DataSetInfo("open")})
    with begin(warehouse) as transaction:
        if segments is not None:
            ingest_segments(transaction, str(segments), NOW_US)
        for columns, made_of in TABLES.values():
            for data_set, period in made_of.items():
                add(transaction, data_set, period, columns, rows.get(data_set, []))
        if restated:
            restate(transaction)
        transaction.commit(HORIZON_US, now_us=NOW_US, parameters={}, code_version="1", tables=infos)
    return warehouse


def add(transaction: Transaction, data_set: str, period: Period, columns: dict[str, str], rows: Rows) -> None:
    if not rows:
        return
    kinds = pa.schema([(name, arrow_type(word)) for name, word in columns.items()])
    table = pa.Table.from_pylist([row for _, row in rows], schema=kinds)
    table = table.append_column("part", pa.array([part for part, _ in rows], pa.int32()))
    table = table.append_column("row_hash", pa.array(range(len(rows)), pa.int64()))
    path = transaction.staging.new_file(data_set, "made")
    pq.write_table(table, path)
    transaction.replace(data_set, period, {part for part, _ in rows}, transaction.staging.register(data_set, [path]))


def restate(transaction: Transaction) -> None:
    """One hour of task_stats was different before."""
    path = transaction.staging.new_file(RESTATEMENTS, "made")
    part = to_time(START_US + 30 * HOUR_US)
    row = {"run": 2, "table": "task_stats.hour", "part": part, "period": "hour", "rows_before": 2, "rows_after": 3}
    kinds = pa.schema([(name, arrow_type(word)) for name, word in RESTATEMENT_COLUMNS.items()])
    pq.write_table(pa.Table.from_pylist([{**row, "cause": "late events"}], schema=kinds), path)
    transaction.append_restatements([FileEntry(transaction.staging.relative(path), 1, {2: (1, 0)}, True)])


def results(segments: Path) -> Path:
    """Check results for two hours: web-2/load is slow."""
    rows = [
        {
            "seq": seq,
            "time": HORIZON_US - (400 - seq) * SECOND,
            "at": HORIZON_US - (400 - seq) * SECOND,
            "kind": "check.answered",
            "identity": f"web-{1 + seq % 2}",
            "service": "load",
            "state": "ok",
            "seconds": 4.0 if seq % 2 else 0.25,
        }
        for seq in range(1, 301)
    ]
    put(segments, rows, source="helen-1", day="2026-05-20")
    return segments


def made(folder: Path) -> Path:
    """The whole network's warehouse, in a new folder below this one."""
    root = folder / "warehouse"
    write(root, data_sets(), results(folder / "segments"))
    return root

"""The tables of a warehouse as the registry describes them, in words that need no Spark.

A test of the reports compares them with the registry's own, so that they cannot drift apart.
"""

from __future__ import annotations

from typing import Final

from scale0.pipeline.time_ranges import Period

HISTOGRAM: Final = "array<struct<bucket:int,count:bigint>>"


def _columns(text: str) -> dict[str, str]:
    """`name type, name type`, as Spark writes a schema."""
    columns = " ".join(text.split()).split(", ")
    return {name: kind for name, _, kind in (column.partition(" ") for column in columns)}


def _by_grain(table: str, **periods: Period) -> dict[str, Period]:
    return {f"{table}.{grain}": period for grain, period in periods.items()}


TABLES: Final[dict[str, tuple[dict[str, str], dict[str, Period]]]] = {
    "availability": (
        _columns("""
            subject_kind string, subject string, grain string, start timestamp, up_seconds double, down_seconds double,
            downtime_seconds double, unobserved_seconds double, absent_seconds double, soft_seconds double,
            availability_low double, availability_high double, incidents bigint, mttr_seconds double,
            mtbf_seconds double"""),
        _by_grain("availability", hour="hour", day="day", month="month"),
    ),
    "timeline": (
        _columns("""
            subject_kind string, subject string, from timestamp, to timestamp, class string, reason string,
            evidence string, state string, flapping boolean"""),
        _by_grain("timeline", checks="hour", world="hour"),
    ),
    "incidents": (
        _columns("""
            subject_kind string, subject string, opened timestamp, closed timestamp, worst_state string,
            down_seconds double, flapping boolean, also_failing bigint,
            also_failing_first array<struct<subject_kind:string,subject:string>>"""),
        {"incidents": "hour", "incidents.open": "open"},
    ),
    "task_stats": (
        _columns(f"""
            method string, grain string, start timestamp, submitted bigint, finished bigint, failed bigint,
            cancelled bigint, retried bigint, wait_p50 double, wait_p90 double, wait_p99 double, wait_max double,
            run_p50 double, run_p90 double, run_p99 double, run_max double, busy_seconds double,
            wait_histogram {HISTOGRAM}, run_histogram {HISTOGRAM}"""),
        _by_grain("task_stats", minute="hour", hour="hour", day="day"),
    ),
    "request_stats": (
        _columns(f"""
            service string, grain string, start timestamp, answered bigint, failed map<int,bigint>, p50 double,
            p90 double, p99 double, max double, bytes bigint, histogram {HISTOGRAM}"""),
        _by_grain("request_stats", minute="hour", hour="hour", day="day"),
    ),
    "node_stats": (
        _columns("node string, hour timestamp, attempts bigint, busy_seconds double, slots bigint, lost bigint"),
        {"node_stats": "hour"},
    ),
    "check_states": (
        _columns("""
            agent string, check string, id string, time timestamp, state string, hard boolean, attempt int,
            previous string, flapping boolean, flapping_percent double"""),
        {"check_states": "hour"},
    ),
    "metric_trends": (
        _columns("""
            agent string, check string, metric string, grain string, start timestamp, count bigint, min double,
            avg double, max double, p95 double, last double, unit string"""),
        _by_grain("metric_trends", hour="hour", day="day"),
    ),
    "forecasts": (
        _columns("""
            agent string, check string, metric string, as_of timestamp, slope double, fitted_from timestamp,
            fitted_to timestamp, limit double, exhausted_at timestamp, exhausted_low timestamp,
            exhausted_high timestamp, r2 double, value double, points int"""),
        {"forecasts": "day"},
    ),
    "noise": (
        _columns(
            "check string, month timestamp, alerts bigint, closed_quickly_share double, flapping_seconds double, "
            "rank int"
        ),
        {"noise": "month"},
    ),
    "audit": (
        _columns("""
            source string, day date, events bigint, first_seq bigint, last_seq bigint, holes bigint, rewinds bigint,
            duplicates bigint, rejected bigint"""),
        {"audit": "day"},
    ),
    "sessions": (
        _columns("""
            identity string, id string, joined timestamp, left timestamp, reason string, broker string, role string,
            services array<string>, slots bigint"""),
        {"sessions": "hour", "sessions.open": "open"},
    ),
    "tasks": (
        _columns("""
            ref string, submitted timestamp, client string, method string, group string, priority int,
            first_assigned timestamp, ended timestamp, outcome string, attempts int, node string, code int,
            wait_seconds double, delay_seconds double, run_seconds double, wasted_seconds double"""),
        {"tasks": "hour", "tasks.open": "open"},
    ),
}
RESTATEMENT_COLUMNS: Final = _columns("""
    run bigint, table string, part timestamp, period string, rows_before bigint, rows_after bigint,
    hash_before bigint, hash_after bigint, cause string""")

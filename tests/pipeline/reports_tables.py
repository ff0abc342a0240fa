"""The tables of a warehouse as the registry describes them, in words that need no Spark.

A test of the reports compares them with the registry's own, so that they cannot drift apart.
"""

from __future__ import annotations

from typing import Final

from scale0.pipeline.time_ranges import Period

HISTOGRAM: Final = "array<struct<bucket:int,count:bigint>>"
AVAILABILITY: Final = {
    **dict.fromkeys(("subject_kind", "subject", "grain"), "string"),
    "start": "timestamp",
    **{f"{name}_seconds": "double" for name in ("up", "down", "downtime", "unobserved", "absent", "soft")},
    **dict.fromkeys(("availability_low", "availability_high"), "double"),
    "incidents": "bigint",
    **dict.fromkeys(("mttr_seconds", "mtbf_seconds"), "double"),
}
TABLES: Final[dict[str, tuple[dict[str, str], dict[str, Period]]]] = {
    "availability": (
        AVAILABILITY,
        {"availability.hour": "hour", "availability.day": "day", "availability.month": "month"},
    ),
    "timeline": (
        {
            **dict.fromkeys(("subject_kind", "subject"), "string"),
            **dict.fromkeys(("from", "to"), "timestamp"),
            **dict.fromkeys(("class", "reason", "evidence", "state"), "string"),
            "flapping": "boolean",
        },
        {"timeline.checks": "hour", "timeline.world": "hour"},
    ),
    "incidents": (
        {
            **dict.fromkeys(("subject_kind", "subject"), "string"),
            **dict.fromkeys(("opened", "closed"), "timestamp"),
            "worst_state": "string",
            "down_seconds": "double",
            "flapping": "boolean",
            "also_failing": "bigint",
            "also_failing_first": "array<struct<subject_kind:string,subject:string>>",
        },
        {"incidents": "hour", "incidents.open": "open"},
    ),
    "task_stats": (
        {
            **dict.fromkeys(("method", "grain"), "string"),
            "start": "timestamp",
            **dict.fromkeys(("submitted", "finished", "failed", "cancelled", "retried"), "bigint"),
            **{f"{what}_{rank}": "double" for what in ("wait", "run") for rank in ("p50", "p90", "p99", "max")},
            "busy_seconds": "double",
            **dict.fromkeys(("wait_histogram", "run_histogram"), HISTOGRAM),
        },
        {"task_stats.minute": "hour", "task_stats.hour": "hour", "task_stats.day": "day"},
    ),
    "request_stats": (
        {
            **dict.fromkeys(("service", "grain"), "string"),
            "start": "timestamp",
            "answered": "bigint",
            "failed": "map<int,bigint>",
            **dict.fromkeys(("p50", "p90", "p99", "max"), "double"),
            "bytes": "bigint",
            "histogram": HISTOGRAM,
        },
        {"request_stats.minute": "hour", "request_stats.hour": "hour", "request_stats.day": "day"},
    ),
    "node_stats": (
        {
            "node": "string",
            "hour": "timestamp",
            "attempts": "bigint",
            "busy_seconds": "double",
            **dict.fromkeys(("slots", "lost"), "bigint"),
        },
        {"node_stats": "hour"},
    ),
    "check_states": (
        {
            **dict.fromkeys(("agent", "check", "id"), "string"),
            "time": "timestamp",
            "state": "string",
            "hard": "boolean",
            "attempt": "int",
            "previous": "string",
            "flapping": "boolean",
            "flapping_percent": "double",
        },
        {"check_states": "hour"},
    ),
    "metric_trends": (
        {
            **dict.fromkeys(("agent", "check", "metric", "grain"), "string"),
            "start": "timestamp",
            "count": "bigint",
            **dict.fromkeys(("min", "avg", "max", "p95", "last"), "double"),
            "unit": "string",
        },
        {"metric_trends.hour": "hour", "metric_trends.day": "day"},
    ),
    "forecasts": (
        {
            **dict.fromkeys(("agent", "check", "metric"), "string"),
            "as_of": "timestamp",
            "slope": "double",
            **dict.fromkeys(("fitted_from", "fitted_to"), "timestamp"),
            "limit": "double",
            **dict.fromkeys(("exhausted_at", "exhausted_low", "exhausted_high"), "timestamp"),
            **dict.fromkeys(("r2", "value"), "double"),
            "points": "int",
        },
        {"forecasts": "day"},
    ),
    "noise": (
        {
            "check": "string",
            "month": "timestamp",
            "alerts": "bigint",
            **dict.fromkeys(("closed_quickly_share", "flapping_seconds"), "double"),
            "rank": "int",
        },
        {"noise": "month"},
    ),
    "audit": (
        {
            "source": "string",
            "day": "date",
            **dict.fromkeys(
                ("events", "first_seq", "last_seq", "holes", "rewinds", "duplicates", "rejected"), "bigint"
            ),
        },
        {"audit": "day"},
    ),
    "sessions": (
        {
            **dict.fromkeys(("identity", "id"), "string"),
            **dict.fromkeys(("joined", "left"), "timestamp"),
            **dict.fromkeys(("reason", "broker", "role"), "string"),
            "services": "array<string>",
            "slots": "bigint",
        },
        {"sessions": "hour", "sessions.open": "open"},
    ),
    "tasks": (
        {
            "ref": "string",
            "submitted": "timestamp",
            **dict.fromkeys(("client", "method", "group"), "string"),
            "priority": "int",
            **dict.fromkeys(("first_assigned", "ended"), "timestamp"),
            "outcome": "string",
            "attempts": "int",
            "node": "string",
            "code": "int",
            **dict.fromkeys(("wait_seconds", "delay_seconds", "run_seconds", "wasted_seconds"), "double"),
        },
        {"tasks": "hour", "tasks.open": "open"},
    ),
}
LEDGER_COLUMNS: Final = {
    "run": "bigint",
    "table": "string",
    "part": "timestamp",
    "period": "string",
    **dict.fromkeys(("rows_before", "rows_after", "hash_before", "hash_after"), "bigint"),
    "cause": "string",
}

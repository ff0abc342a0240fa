"""Statistics of tasks and requests by plain Python, event by event."""

from __future__ import annotations

import json
import math
from typing import Any

from scale0.history.events import histogram
from scale0.pipeline.time_ranges import to_time, to_us
from tests.pipeline.oracle_tasks import closes, micros

Event = dict[str, Any]
Row = dict[str, Any]

GRAINS = {"minute": 60_000_000, "hour": 3_600_000_000, "day": 86_400_000_000}
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def by_period(events: list[Event], grain: str) -> dict[tuple[str, int], list[Event]]:
    found: dict[tuple[str, int], list[Event]] = {}
    for event in events:
        found.setdefault((event["service"], to_us(event["at"]) // GRAINS[grain]), []).append(event)
    return found


def nearest_rank(values: list[int], share: float) -> int:
    return sorted(values)[max(1, math.ceil(share * len(values))) - 1]


def counted(values: list[int]) -> histogram.Histogram:
    counts: dict[int, int] = {}
    for us in values:
        bucket = histogram.bucket_of(us / 1e6)
        counts[bucket] = counts.get(bucket, 0) + 1
    return histogram.from_counts(counts)


def measured(name: str, values: list[int], grain: str) -> Row:
    """The columns of one measure."""
    row: Row = {f"{name}_{share}": None for share in SHARES}
    row[f"{name}_max"] = max(values) / 1e6 if values else None
    row[f"{name}_histogram"] = None if grain == "minute" else counted(values)
    for share, part in SHARES.items():
        if values and grain == "minute":
            row[f"{name}_{share}"] = nearest_rank(values, part) / 1e6
        elif values:
            row[f"{name}_{share}"] = histogram.quantile(counted(values), part)
    return row


def task_stats(events: list[Event], grain: str) -> list[Row]:
    rows = []
    for (method, period), mine in by_period(events, grain).items():
        ended = [event for event in mine if closes(event)]
        completed = [event for event in mine if event["kind"] == "task.completed"]
        runs = [micros(event["seconds"]) or 0 for event in ended if event["kind"] == "task.completed"]
        waits = [micros(event["waited"]) or 0 for event in ended]
        rows.append(
            {
                "method": method,
                "grain": grain,
                "start": to_time(period * GRAINS[grain]),
                "submitted": sum(event["kind"] == "task.submitted" for event in mine),
                **{state: sum(event["state"] == state for event in completed) for state in OUTCOMES},
                "retried": sum(event["kind"] == "task.attempt_ended" for event in mine),
                **measured("wait", waits, grain),
                **measured("run", runs, grain),
                "busy_seconds": sum(micros(event["seconds"]) or 0 for event in ended) / 1e6,
                "part": period * GRAINS[grain] // GRAINS["day" if grain == "day" else "hour"],
            }
        )
    return rows


OUTCOMES = ("finished", "failed", "cancelled")


def node_work(events: list[Event]) -> list[Row]:
    found: dict[tuple[str, int], list[Event]] = {}
    for event in events:
        if closes(event) and event["identity"]:
            found.setdefault((event["identity"], to_us(event["at"]) // GRAINS["hour"]), []).append(event)
    return [
        {
            "node": node,
            "attempts": len(mine),
            "busy_us": sum(micros(event["seconds"]) or 0 for event in mine),
            "lost": sum(event["state"] == "lost" for event in mine),
            "part": hour,
        }
        for (node, hour), mine in found.items()
    ]


def request_stats(events: list[Event], grain: str) -> list[Row]:
    rows = []
    for (service, period), mine in by_period(events, grain).items():
        summed = [event for event in mine if event["kind"] == "request.summed"]
        failed: dict[int, int] = {}
        for event in mine:
            if event["kind"] == "request.failed":
                failed[event["code"]] = failed.get(event["code"], 0) + 1
            elif event["data"]:
                for code, count in json.loads(event["data"])["failed"].items():
                    failed[int(code)] = failed.get(int(code), 0) + count
        merged = histogram.merge(event["histogram"] or [] for event in summed)
        longest = [micros(event["seconds"]) or 0 for event in summed]
        rows.append(
            {
                "service": service,
                "grain": grain,
                "start": to_time(period * GRAINS[grain]),
                "answered": sum(event["code"] for event in summed),
                "failed": failed,
                **{name: histogram.quantile(merged, share) for name, share in SHARES.items()},
                "max": max(longest) / 1e6 if longest else None,
                "bytes": sum(event["bytes"] for event in summed),
                "histogram": merged,
                "part": period * GRAINS[grain] // GRAINS["day" if grain == "day" else "hour"],
            }
        )
    return rows

"""Samples for tests of metrics: one that holds something of everything, and big ones."""

from __future__ import annotations

import random
from typing import Any

from scale0.history.events.histogram import bucket_of, from_counts
from scale0.http.metrics.sample import ExportHealth, MonitoringCounts, NetworkSample, sample_of

STATUS: dict[str, Any] = {
    "broker": "east-1",
    "version": "0.1.0",
    "state": "active",
    "draining": False,
    "group": "east",
    "time": 1_000.0,
    "uptime": 60.5,
    "config_version": 7,
    "connections": 12,
    "clients": {"backend": 3, "frontend": 9},
    "services": 2,
    "requests": {"waiting": 4, "under_way": 5, "answered": 8, "failed": 1},
    "tasks": {
        "open": 6,
        "leased": 2,
        "in_memory": 6,
        "submitted": 20,
        "finished": 13,
        "failed": 1,
        "waits": 1,
    },
    "error_clients": 1,
    "counters": {"messages_flooded": 3, "passwords_wrong": 1},
}


def rates(service: str, *seconds: float, failed: int = 0) -> dict[str, Any]:
    """A row of `list_rates`."""
    counts: dict[int, int] = {}
    for each in seconds:
        counts[bucket_of(each)] = counts.get(bucket_of(each), 0) + 1
    return {
        "service": service,
        "answered": len(seconds),
        "failed": failed,
        "seconds": sum(seconds),
        "longest": max(seconds, default=0.0),
        "bytes": 100 * len(seconds),
        "histogram": [list(pair) for pair in from_counts(counts)],
    }


def queue(service: str, waiting: int = 0, oldest: float | None = None, slots: int = 4, busy: int = 1) -> dict[str, Any]:
    """A row of `list_queues`."""
    return {
        "service": service,
        "waiting": waiting,
        "oldest_seconds": oldest,
        "lru": [{"identity": "b", "slots": slots, "busy": busy}],
        "backends": 1,
        "tasks_queued": None,
    }


def whole(time: float = 1_000.0, **status: Any) -> NetworkSample:
    sample = sample_of(
        time,
        status={**STATUS, **status},
        rates=[rates("thumbs.make", 0.002, 0.02, 0.02, 0.2), rates("hello", 0.001, failed=1), rates("", failed=2)],
        queues=[queue("thumbs.make", 3, 1.5), queue("hello")],
        peers=[{"broker": "east-2", "state": "active"}, {"broker": "west-1", "state": "lost"}, {"broker": ""}],
        monitoring=MonitoringCounts(
            helens=1, agents={"connected": 2}, checks={"ok": 5, "critical": 1}, incidents={"critical": 1}
        ),
        seconds=0.01,
    )
    return with_exports(sample, ExportHealth(kind="graphite", address="127.0.0.1:2003", up=True, pushed=4, dropped=2))


def with_exports(sample: NetworkSample, *exports: ExportHealth) -> NetworkSample:
    import msgspec

    return msgspec.structs.replace(sample, exports=exports)


def big(services: int, buckets: int = 150) -> NetworkSample:
    chance = random.Random(services)
    counts = {bucket_of(0.001 * 1.02**step): chance.randrange(1, 100) for step in range(buckets)}
    histogram = [list(pair) for pair in from_counts(counts)]
    names = [f"service.{number:05d}" for number in range(services)]
    return sample_of(
        1_000.0,
        status={**STATUS, "clients": {"backend": 9_000, "frontend": 1_000}},
        rates=[{**rates(name, 0.1), "answered": 5_000, "histogram": histogram} for name in names],
        queues=[queue(name) for name in names],
    )

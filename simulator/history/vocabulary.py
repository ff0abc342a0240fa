"""The methods, services, checks and metrics of a synthetic network, with their usual values."""

from __future__ import annotations

from typing import Final, NamedTuple


class Method(NamedTuple):
    name: str
    share: float
    """Of all tasks, before normalising."""
    run_seconds: float
    """The median."""
    spread: float
    """The standard deviation of the logarithm of the run time."""
    peak_hour: float
    """When most of them are submitted."""


_METHOD_WORDS: Final = (
    *("mail.send", "thumbs.make", "invoice.render", "search.index", "feed.refresh", "audio.convert"),
    *("video.probe", "report.daily", "cache.warm", "sms.send", "page.crawl", "image.resize", "pdf.merge"),
    *("export.csv", "import.rows", "label.print", "stock.count", "price.update", "score.compute"),
    *("token.expire", "backup.copy", "log.rotate", "text.translate", "map.tile", "route.plan", "spam.judge"),
    *("link.verify", "order.settle", "user.merge", "model.predict"),
)

METHODS: Final = tuple(
    Method(name, 1.0 / (rank + 2.0), 0.02 * 1.25 ** ((rank * 11) % 30), 0.4 + 0.02 * (rank % 10), (13 + rank * 7) % 24)
    for rank, name in enumerate(_METHOD_WORDS)
)
"""30 methods: the busiest first, run times from 20 ms to 13 s, each with its own peak hour."""


class Service(NamedTuple):
    name: str
    share: float
    seconds: float
    """The usual response time."""


SERVICES: Final = (
    Service("auth.check", 8.0, 0.003),
    Service("geo.lookup", 6.0, 0.008),
    Service("price.quote", 5.0, 0.015),
    Service("stock.read", 4.0, 0.006),
    Service("user.load", 3.0, 0.012),
    Service("text.suggest", 2.0, 0.040),
)
"""Each is offered by several backends."""

SOLO_SERVICES: Final = ("ledger.post", "fax.send", "crypto.sign", "badge.open", "voice.dial", "meter.read")
"""Each is offered by one backend alone: if that is down, the service is down."""
SOLO_SHARE: Final = 1.5
SOLO_SECONDS: Final = 0.025

QUIET_SERVICE: Final = "archive.fetch"
"""Rarely requested, and healthy."""
QUIET_SECONDS: Final = 0.4


class Metric(NamedTuple):
    """A metric of a check: its limits, and its usual values."""

    name: str
    unit: str | None
    warn: float | None
    crit: float | None
    min: float | None
    max: float | None
    usual: float
    noise: float
    rhythm: float
    """How much it follows the hours of the day."""


class Check(NamedTuple):
    """One kind of check; every agent has it."""

    name: str
    interval_seconds: int
    timeout_seconds: int
    max_attempts: int
    run_seconds: float
    metrics: tuple[Metric, ...]


CHECKS: Final = (
    Check("load", 300, 10, 3, 0.02, (Metric("load1", None, 4.0, 8.0, 0.0, None, 1.2, 0.15, 0.8),)),
    Check(
        "disk",
        900,
        20,
        3,
        0.05,
        (
            Metric("used", "GB", None, None, 0.0, 500.0, 210.0, 0.8, 0.0),
            Metric("inodes", "%", 80.0, 90.0, 0.0, 100.0, 22.0, 0.1, 0.0),
        ),
    ),
    Check("http", 600, 15, 3, 0.25, (Metric("seconds", "s", 1.0, 3.0, 0.0, None, 0.18, 0.03, 0.05),)),
    Check(
        "memory",
        300,
        10,
        3,
        0.01,
        (
            Metric("used", "MB", 28_000.0, 31_000.0, 0.0, 32_768.0, 14_000.0, 300.0, 1_500.0),
            Metric("swap", "MB", 2_000.0, 4_000.0, 0.0, 8_192.0, 120.0, 5.0, 0.0),
        ),
    ),
    Check("dns", 900, 10, 2, 0.04, (Metric("seconds", "s", 0.5, 2.0, 0.0, None, 0.02, 0.004, 0.004),)),
    Check("disk-home", 1800, 20, 3, 0.06, (Metric("used", "GB", None, None, 0.0, 200.0, 74.0, 0.3, 0.0),)),
    Check("ntp", 3600, 10, 3, 0.1, (Metric("offset", "s", 0.1, 1.0, None, None, 0.001, 0.0004, 0.0),)),
    Check("backup", 3600, 60, 2, 2.0, (Metric("age", "h", 26.0, 50.0, 0.0, None, 12.0, 3.0, 0.0),)),
    Check("certs", 3600, 30, 2, 0.4, (Metric("days", "d", None, None, 0.0, None, 61.0, 0.01, 0.0),)),
    Check("updates", 3600, 60, 3, 1.5, (Metric("pending", None, 50.0, 200.0, 0.0, None, 6.0, 0.5, 0.0),)),
)
"""The checks of a large network. A small one has the first SMALL_CHECKS, all with one interval."""

SMALL_CHECKS: Final = 3
LOAD: Final = 0
DISK: Final = 1
"""Indexes of the checks in which truths are planted: a small network has them too."""

OK: Final = "ok"
WARNING: Final = "warning"
CRITICAL: Final = "critical"
UNKNOWN: Final = "unknown"
STATES: Final = (OK, WARNING, CRITICAL, UNKNOWN)

GROUP: Final = "main"
"""The group of the brokers."""
VERSION: Final = "0.1.0"
FUTURE_KIND: Final = "turbine.spun"
"""A kind that no program knows."""

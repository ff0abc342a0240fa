"""A sample: the state of the broker and its network at one moment, as far as metrics need it.

A sample is immutable, so that a thread may format it while the next one is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

Row = Mapping[str, Any]
Rows = Iterable[Row]


class LoadRow(msgspec.Struct, frozen=True, kw_only=True):
    """A service now, at this broker: a row of `list_queues`."""

    service: str
    backends: int = 0
    slots: int = 0
    busy: int = 0
    waiting: int = 0
    oldest_seconds: float = 0.0
    tasks_queued: int = 0


class MonitoringCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the Helens' agents, checks and incidents, by state."""

    helens: int = 0
    agents: Mapping[str, int] = {}
    checks: Mapping[str, int] = {}
    incidents: Mapping[str, int] = {}


class ExportHealth(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    address: str
    up: bool = False
    pushed: int = 0
    dropped: int = 0
    failures: int = 0


class NetworkSample(msgspec.Struct, frozen=True, kw_only=True):
    """The complete sample. If the broker does not answer, `status` and all rows are empty."""

    time: float
    """Wall seconds."""
    seconds: float = 0.0
    """How long it took to read the sample."""
    failures: int = 0
    """Failed samples since the server's start."""
    status: Mapping[str, Any] = {}
    """The answer to `status`."""
    rates: tuple[Row, ...] = ()
    """Rows of `list_rates`: each service since the broker's start."""
    loads: tuple[LoadRow, ...] = ()
    peers: tuple[Row, ...] = ()
    """Rows of `list_peers`: the other brokers."""
    monitoring: MonitoringCounts | None = None
    """None: no Helen answers."""
    exports: tuple[ExportHealth, ...] = ()

    @property
    def broker(self) -> str:
        """The broker's identity; empty while it does not answer."""
        return str(self.status.get("broker", ""))


def sample_of(
    time: float,
    *,
    status: Mapping[str, Any] | None = None,
    rates: Rows = (),
    queues: Rows = (),
    peers: Rows = (),
    monitoring: MonitoringCounts | None = None,
    seconds: float = 0.0,
    failures: int = 0,
) -> NetworkSample:
    """A sample from the broker's answers: `status`, and all rows of three lists."""
    return NetworkSample(
        time=time,
        seconds=seconds,
        failures=failures,
        status=status or {},
        rates=tuple(rates),
        loads=tuple(_load(row) for row in queues),
        peers=tuple(peers),
        monitoring=monitoring,
    )


def _load(row: Row) -> LoadRow:
    """Slots are the broker's sums if it sends them, otherwise those of the listed backends."""
    listed = row.get("lru") or ()
    return LoadRow(
        service=row["service"],
        backends=row.get("backends") or 0,
        slots=row["slots"] if "slots" in row else sum(one["slots"] for one in listed),
        busy=row["busy"] if "busy" in row else sum(one["busy"] for one in listed),
        waiting=row.get("waiting") or 0,
        oldest_seconds=row.get("oldest_seconds") or 0.0,
        tasks_queued=row.get("tasks_queued") or 0,
    )


def counted(rows: Rows, key: str = "state") -> dict[str, int]:
    out: dict[str, int] = {}
    for row in rows:
        value = str(row.get(key, ""))
        out[value] = out.get(value, 0) + 1
    return out

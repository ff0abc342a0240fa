"""What `scale0 top` shows: a frame of rows from two looks, pure.

Lives here: rates joined to services, and counts for the head of the screen. Never here: asking, a clock, or a terminal.
Invariant: a number that nobody could know is None, and is shown as a dash.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from scale0.cli.network.snapshot import Snapshot
from scale0.client.admin.health import HealthFinding, PartHealth, found_in, parts
from scale0.client.admin.rates import ServiceRates, rates_between, total_between

Row = dict[str, Any]


class TopFrame(NamedTuple):
    """Everything that one screen can show."""

    status: Row
    findings: list[HealthFinding]
    parts: list[PartHealth]
    services: list[Row]
    queues: list[Row]
    agents: list[Row]
    checks: list[Row]
    incidents: list[Row]
    brokers: list[Row]
    total: ServiceRates | None
    managed: bool
    watched: bool


def frame_of(look: Snapshot, before: Snapshot | None) -> TopFrame:
    """A frame from a look, with rates since the one before."""
    seconds = look.at - before.at if before is not None else 0.0
    old = (before.rates if before is not None else None) or []
    by_service: dict[str, ServiceRates] = {}
    total = None
    if look.rates is not None and before is not None and before.rates is not None:
        by_service = rates_between(old, look.rates, seconds)
        total = total_between(old, look.rates, seconds)
    services = [with_rates(dict(row), by_service) for row in look.seen.services or ()]
    seen = msgspec.structs.replace(look.seen, services=services)
    found = found_in(seen)
    return TopFrame(
        status=dict(seen.status or {}),
        findings=found,
        parts=parts(seen, found),
        services=services,
        queues=[dict(row) for row in seen.queues] if seen.queues is not None else queues_of(services),
        agents=[dict(row) for row in seen.agents or ()],
        checks=[dict(row) for row in seen.checks or ()],
        incidents=[dict(row) for row in seen.incidents or ()],
        brokers=look.brokers,
        total=total,
        managed=look.managed,
        watched=seen.watched,
    )


def with_rates(row: Row, by_service: dict[str, ServiceRates]) -> Row:
    """A service with what it did; one that never answered did nothing, if somebody counts at all."""
    found = by_service.get(row["service"], ServiceRates(0.0, 0.0, None, None)) if by_service else None
    return {**row, "rates": None if found is None else msgspec.to_builtins(found)}


def queues_of(services: list[Row]) -> list[Row]:
    """What discovery tells of queues."""
    kept = [row for row in services if row["backends"] or row["waiting"]]
    unknown: Row = {"oldest_seconds": None, "tasks_queued": None, "lru": []}
    return [
        {"service": row["service"], "waiting": row["waiting"], "backends": row["backends"], **unknown} for row in kept
    ]


def as_data(frame: TopFrame) -> Row:
    """The frame for programs."""
    found: Row = msgspec.to_builtins(frame._asdict())
    return found

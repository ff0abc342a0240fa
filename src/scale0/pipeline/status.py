"""The status of a warehouse: what it covers, how far it is behind, and what is missing.

It is read-only and takes no lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from scale0.pipeline import reading
from scale0.pipeline.warehouse.records import Manifest, Range, SegmentProblem, WarehouseError
from scale0.pipeline.warehouse.segment_sources import list_segments, open_source, public_name, without_credentials
from scale0.pipeline.warehouse.warehouse import Warehouse


class PendingSegments(msgspec.Struct, frozen=True):
    """Segments that no run has ingested."""

    segments: int
    events: int
    """According to their names: segments may turn out to be damaged or duplicates."""


class SourceStatus(msgspec.Struct, frozen=True):
    source: str
    boots: int
    events: int
    last_seq: int
    holes: int
    rewinds: int
    duplicates: int
    rejected: int


class WarehouseStatus(msgspec.Struct, frozen=True):
    warehouse: str
    number: int | None
    horizon_us: int | None
    newest_us: int | None
    """The newest covered `time`; it is after the horizon if a source's clock is ahead."""
    first_day: int | None
    last_day: int | None
    code_version: str
    parameters: dict[str, Any]
    sources: tuple[SourceStatus, ...]
    pending: PendingSegments | None
    restatements: int
    problems: tuple[str, ...]
    """Segments that are damaged or contradict known events."""
    ignored: tuple[str, ...]
    """Files in segment directories that are not segments: the tables are not affected."""
    unreachable: tuple[str, ...] = ()
    """Why segment sources could not be listed; `pending` counts the others."""


def status_of(root: Path, segments: Sequence[str], now_us: int) -> WarehouseStatus:
    warehouse = Warehouse(root)
    manifest = warehouse.latest()
    pending, unreachable = pending_of(warehouse, manifest, segments, now_us)
    if manifest is None:
        return WarehouseStatus(str(root), None, None, None, None, None, "", {}, (), pending, 0, (), (), unreachable)
    days = sorted(manifest.chapters)
    return WarehouseStatus(
        warehouse=str(root),
        number=manifest.number,
        horizon_us=manifest.horizon_us,
        newest_us=manifest.newest_us,
        first_day=days[0] if days else None,
        last_day=days[-1] if days else None,
        code_version=manifest.code_version,
        parameters=manifest.parameters,
        sources=sources_of(warehouse, manifest),
        pending=pending,
        restatements=sum(rows for entry in manifest.ledger for rows, _ in entry.parts.values()),
        problems=tuple(problem_text(one) for one in manifest.problems if one.kind != "foreign"),
        ignored=tuple(problem_text(one) for one in manifest.problems if one.kind == "foreign"),
        unreachable=unreachable,
    )


def problem_text(problem: SegmentProblem) -> str:
    """Older manifests have credentials of URLs in names."""
    return f"{without_credentials(problem.name)}: {problem.why}"


def sources_of(warehouse: Warehouse, manifest: Manifest) -> tuple[SourceStatus, ...]:
    counted: dict[str, dict[str, int]] = {}
    for row in reading.open_arrow(warehouse, "audit").to_pylist():
        total = counted.setdefault(row["source"], dict.fromkeys(("holes", "rewinds", "duplicates", "rejected"), 0))
        for name in total:
            total[name] += row[name] or 0
    found = []
    for source, ranges in sorted(manifest.covered.items()):
        total = counted.get(source, {})
        found.append(
            SourceStatus(
                source=source,
                boots=len({boot for boot, _, _ in ranges}),
                events=sum(last - first + 1 for _, first, last in ranges),
                last_seq=max(ranges)[2],
                holes=total.get("holes", 0),
                rewinds=total.get("rewinds", 0),
                duplicates=total.get("duplicates", 0),
                rejected=total.get("rejected", 0),
            )
        )
    return tuple(found)


def pending_of(
    warehouse: Warehouse, manifest: Manifest | None, segments: Sequence[str], now_us: int
) -> tuple[PendingSegments | None, tuple[str, ...]]:
    """What the next run would ingest, and errors for the sources that cannot be listed."""

    def seen_in(folder: str) -> set[tuple[str, Range]]:
        return set() if manifest is None else warehouse.seen(manifest, folder).pairs()

    listings = {} if manifest is None else {public_name(url): folders for url, folders in manifest.listings.items()}
    listed, events, why = [], [], []
    for url in segments:
        try:
            new = list_segments(url, open_source(url, now_us), listings.get(public_name(url), {}), seen_in).new
        except WarehouseError as error:
            why.append(str(error))
        else:
            listed.append(url)
            events += [found.segment.events for found in new]
    return (PendingSegments(len(events), sum(events)) if listed else None), tuple(why)

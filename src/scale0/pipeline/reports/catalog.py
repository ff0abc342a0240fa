"""All reports by name. The reports of one call share one manifest and one period."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from scale0.pipeline.reports import REPORTS, availability, capacity, checks, incidents, noise, requests, tasks
from scale0.pipeline.reports.model import ReportDocument
from scale0.pipeline.reports.query import Filters, ReportQuery, ReportReader, with_reader

MAKERS: Final[dict[str, Callable[[ReportReader], ReportDocument]]] = {
    "availability": availability.report,
    "tasks": tasks.report,
    "requests": requests.report,
    "checks": checks.report,
    "incidents": incidents.report,
    "capacity": capacity.report,
    "noise": noise.report,
}

TAKES: Final = {name: filters for name, (filters, _) in REPORTS.items()}

READS: Final[dict[str, tuple[str, ...]]] = {
    "availability": ("incidents",),
    "tasks": tasks.TABLES,
    "requests": requests.TABLES,
    "checks": ("incidents", "check_states"),
    "incidents": ("incidents",),
    "capacity": ("forecasts", "node_stats", "task_stats"),
    "noise": noise.TABLES,
}
"""Tables that a report queries for its own period."""


def make(names: Sequence[str], root: Path, question: ReportQuery) -> list[ReportDocument]:
    """Make these reports. NoTables, NothingThen or WarehouseError if they cannot be made."""

    def work(reader: ReportReader) -> list[ReportDocument]:
        found = []
        for name in names:
            ours = {each: getattr(question.filters, each) for each in TAKES[name]}
            reader.question = msgspec.structs.replace(question, filters=Filters(**ours))
            found.append(MAKERS[name](reader))
        return found

    return with_reader(root, question, work, tuple({table for name in names for table in READS[name]}))

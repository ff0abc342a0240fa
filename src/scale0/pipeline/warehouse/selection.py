"""Selects the files of a table for a time span, opening only the day manifests that are needed.

Every valid row is in exactly one file of a selection, behind at most one filter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from scale0.history.events.columns import COLUMNS, HISTOGRAM_FIELDS, METRIC_FIELDS, Type
from scale0.pipeline.time_ranges import DAY_HOURS, DAY_US, HOUR_US, Period, month_of
from scale0.pipeline.warehouse.records import (
    EVENTS,
    RESTATEMENTS,
    FileEntry,
    Manifest,
    TableInfo,
    WarehouseError,
    merge_entries,
    restrict_all,
)

if TYPE_CHECKING:
    from scale0.pipeline.warehouse.warehouse import Warehouse

GRAIN: Final = "grain"
MAX_DAY: Final = 2_932_896
"""The last day of the year 9999."""


class TimeSpan(NamedTuple):
    """Whole hours [first, end)."""

    first: int = 0
    end: int = (MAX_DAY + 1) * DAY_HOURS

    def parts(self, period: Period) -> range:
        days = range(self.first // DAY_HOURS, -(-self.end // DAY_HOURS))
        match period:
            case "hour":
                return range(self.first, self.end)
            case "day":
                return days
            case "month":
                return range(month_of(days.start), month_of(min(days.stop, MAX_DAY + 1) - 1) + 1)
            case "open":
                return range(1)


Cover = Mapping[str, Sequence[TimeSpan]]
"""For a table with grains: which hours to read in which grain. Other grains are left out."""


class SelectedFiles(NamedTuple):
    paths: list[str]
    parts: frozenset[int] | None = None
    """The valid parts; None: all parts in the files."""
    columns: int = 0
    """For event files: how many of COLUMNS they have."""


class Selection(NamedTuple):
    """All of a table, within a span."""

    columns: dict[str, str]
    """Names and types, in order."""
    files: list[SelectedFiles]
    at: tuple[int, int] | None = None
    """For events: only those from the first to the last of these microseconds; None: all."""


def span_of(since_us: int | None, until_us: int | None) -> TimeSpan:
    """The hours that [since, until) overlaps; None: unbounded."""
    every = TimeSpan()
    first = every.first if since_us is None else min(max(since_us // HOUR_US, every.first), every.end)
    end = every.end if until_us is None else min(max(-(-until_us // HOUR_US), first), every.end)
    return TimeSpan(first, end)


def select(
    warehouse: Warehouse, manifest: Manifest, table: str, span: TimeSpan, cover: Cover | None = None
) -> Selection:
    """The files of a table; for a table with grains those of the cover, if given. WarehouseError if the table is
    unknown.

    Grains are separate data sets, so files of other grains are not opened.
    """
    if table == EVENTS:
        return _select_events(warehouse, manifest, span)
    info = info_of(manifest, table)
    if table == RESTATEMENTS:
        return Selection(info.columns, _grouped(warehouse, manifest.ledger, carve=False))
    entries: list[FileEntry] = []
    for data_set, about in info.slabs.items():
        spans = cover.get(data_set.removeprefix(f"{table}."), ()) if cover is not None and has_grains(info) else (span,)
        entries += merge_entries(
            entry for one in spans for entry in _entries(warehouse, manifest, data_set, about.period, one)
        )
    return Selection(info.columns, _grouped(warehouse, entries, carve=True))


def info_of(manifest: Manifest, table: str) -> TableInfo:
    if table not in manifest.tables:
        known = ", ".join(sorted({*manifest.tables, EVENTS}))
        raise WarehouseError(f"there is no table {table!r}; there are: {known}")
    return manifest.tables[table]


def has_grains(info: TableInfo) -> bool:
    """True if a table has the same data in several grains: data set `table.day` has the rows of its days, and so on."""
    return GRAIN in info.columns


def _entries(
    warehouse: Warehouse, manifest: Manifest, data_set: str, period: Period, span: TimeSpan
) -> Iterable[FileEntry]:
    match period:
        case "open":
            return manifest.open.get(data_set, ())
        case "month":
            groups = [manifest.months.get(data_set, ())]
        case _:
            groups = [warehouse.data_files(manifest, day, data_set) for day in _days(manifest, span)]
    wanted = span.parts(period)
    return merge_entries(entry for group in groups for entry in restrict_all(group, wanted.__contains__))


def _days(manifest: Manifest, span: TimeSpan) -> list[int]:
    days = span.parts("day")
    return [day for day in manifest.chapters if day in days]


def _grouped(warehouse: Warehouse, entries: Iterable[FileEntry], *, carve: bool) -> list[SelectedFiles]:
    groups: dict[frozenset[int] | None, list[str]] = defaultdict(list)
    for entry in entries:
        groups[frozenset(entry.parts) if carve and entry.carved else None].append(str(warehouse.path(entry.path)))
    return [SelectedFiles(paths, parts) for parts, paths in groups.items()]


def _select_events(warehouse: Warehouse, manifest: Manifest, span: TimeSpan) -> Selection:
    hours = span.parts("hour")
    groups: dict[int, dict[str, None]] = defaultdict(dict)
    for day in _days(manifest, span):
        for file in warehouse.events_files(manifest, day):
            if any(hour in hours for hour in file.hours):
                groups[file.columns][str(warehouse.path(file.path))] = None
    files = [SelectedFiles(list(paths), None, columns) for columns, paths in groups.items()]
    # A file may hold rows of a dropped day, or of hours that were not requested.
    first_us = max(hours.start * HOUR_US, manifest.floor_day * DAY_US)
    bounded = first_us > 0 or hours.stop < TimeSpan().end
    return Selection(EVENT_COLUMNS, files, (first_us, hours.stop * HOUR_US - 1) if bounded else None)


def _struct(fields: Iterable[tuple[str, Type]]) -> str:
    return f"array<struct<{','.join(f'{name}:{kind}' for name, kind in fields)}>>"


_WORDS: Final[dict[Type, str]] = {
    "timestamp_us": "timestamp",
    "histogram": _struct(HISTOGRAM_FIELDS),
    "metrics": _struct(METRIC_FIELDS),
}
EVENT_COLUMNS: Final = {column.name: _WORDS.get(column.type, column.type) for column in COLUMNS}

"""Reports and tables of the warehouse: read by DuckDB in threads, and cached until there is a newer manifest.

At most two queries run at once, each with a deadline. The packages of the extra `pipeline` may be absent.
"""

from __future__ import annotations

import datetime
import difflib
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

import msgspec

from scale0.http.thread_pool import BlockingThreads
from scale0.kernel.errors import Scale0Error
from scale0.pipeline.reports import REPORTS
from scale0.pipeline.reports.catalog import TAKES, make
from scale0.pipeline.reports.model import as_data, time_of
from scale0.pipeline.reports.period import NothingThen
from scale0.pipeline.reports.query import Filters, NoTables, ReportQuery
from scale0.pipeline.time_ranges import DAY_US, HOUR_US, to_time
from scale0.pipeline.warehouse.records import WarehouseError
from scale0.pipeline.warehouse.warehouse import Warehouse

if TYPE_CHECKING:
    from scale0.pipeline.reports.model import ReportDocument

THREADS: Final = 2
MAX_WAITING: Final = 8
QUERY_SECONDS: Final = 20.0
"""Deadline of a query. The query of a table's rows is interrupted then; a report goes on and occupies its thread."""
MAX_REPORT_ROWS: Final = 1_000
"""Of each table of a report; `scale0 report` prints all."""
MAX_OFFSET: Final = 1_000_000
"""How far into a table a reader may page; a period narrows the table."""
MAX_CACHED: Final = 64
MAX_CACHED_BYTES: Final = 32 * 1024 * 1024
MAX_SUGGESTIONS: Final = 5
"""Names that are suggested in place of an unknown one."""
INSTALL: Final = "run pip install 'scale0[pipeline]' in the environment of this server"

Sort = Literal["not_installed", "absent", "unknown", "stale", "broken"]
Result = TypeVar("Result")


class Unavailable(Scale0Error):
    """A query that cannot be answered; `next` is the next step."""

    def __init__(self, sort: Sort, message: str, next_: str) -> None:
        super().__init__(message)
        self.sort = sort
        self.next = next_


class WarehouseQuery(NamedTuple):
    """A period, as far as the request names one."""

    from_us: int | None = None
    to_us: int | None = None
    last_us: int | None = None

    def in_hours(self) -> WarehouseQuery:
        """The period in whole hours, so that the same request a moment later finds the cached answer."""
        starts, ends, last = self
        return WarehouseQuery(
            None if starts is None else starts // HOUR_US * HOUR_US,
            None if ends is None else -(-ends // HOUR_US) * HOUR_US,
            last,
        )


class WarehouseReader:
    """One warehouse; without a root, no warehouse is configured."""

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._threads = BlockingThreads("warehouse", THREADS, MAX_WAITING)
        self._answers: OrderedDict[Hashable, bytes] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    async def report(self, name: str, period: WarehouseQuery, filters: dict[str, str]) -> bytes:
        """A report as JSON. Raises `Unavailable`, `ThreadPoolBusy` or `ThreadPoolTimeout`."""
        if name not in TAKES:
            raise _unknown("report", name, list(TAKES))
        if unknown := [each for each in filters if each not in TAKES[name]]:
            takes = ", ".join(TAKES[name])
            raise Unavailable("unknown", f"the report {name} has no filter {unknown[0]}", f"its filters are {takes}")
        period = period.in_hours()
        query = ReportQuery(period.from_us, period.to_us, filters=Filters(**filters))
        if period.last_us is not None:
            query = msgspec.structs.replace(query, last_us=period.last_us)
        return await self._answer(("report", name, query), lambda root: _report(root, name, query))

    async def tables(self) -> bytes:
        return await self._answer(("tables",), _tables)

    async def rows(self, table: str, limit: int, after: str | None, period: WarehouseQuery) -> bytes:
        period = period.in_hours()
        return await self._answer(
            ("rows", table, limit, after, period), lambda root: _rows(root, table, limit, after, period)
        )

    def close(self) -> None:
        self._threads.close()

    async def _answer(self, key: Hashable, make: Callable[[Path], Any]) -> bytes:
        return await self._threads.run(lambda: self._cached(key, make), QUERY_SECONDS)

    def _cached(self, key: Hashable, make: Callable[[Path], Any]) -> bytes:
        root = self._usable_root()
        number = _translated(root, lambda: Warehouse(root).numbers())[-1:]
        versioned = (tuple(number), key)
        with self._lock:
            if versioned in self._answers:
                self._answers.move_to_end(versioned)
                return self._answers[versioned]
        answer = msgspec.json.encode(_translated(root, lambda: make(root)))
        with self._lock:
            if versioned not in self._answers:
                self._answers[versioned] = answer
                self._bytes += len(answer)
            while len(self._answers) > MAX_CACHED or (self._bytes > MAX_CACHED_BYTES and len(self._answers) > 1):
                self._bytes -= len(self._answers.popitem(last=False)[1])
        return answer

    def _usable_root(self) -> Path:
        try:
            import duckdb  # noqa: F401, PLC0415  # an extra, which may be absent
        except ImportError:
            raise Unavailable("not_installed", "reports and tables need DuckDB", INSTALL) from None
        if self._root is None:
            raise Unavailable(
                "absent",
                "no warehouse is configured",
                "start this server on the broker's machine, with --data-dir FOLDER",
            )
        return self._root


def reports() -> list[dict[str, Any]]:
    return [{"name": name, "about": about, "takes": list(takes)} for name, (takes, about) in REPORTS.items()]


def _translated(root: Path, work: Callable[[], Result]) -> Result:
    """Run `work`, with the errors of a warehouse as `Unavailable`."""
    import duckdb  # noqa: PLC0415  # an extra; the caller has checked that it is installed

    try:
        return work()
    except NoTables:
        raise Unavailable("absent", "the warehouse has no tables yet", "run `scale0 pipeline run`") from None
    except NothingThen as error:
        next_ = "choose another period, or update the tables: scale0 pipeline run"
        raise Unavailable("absent", str(error), next_) from None
    except WarehouseError as error:
        raise Unavailable("broken", str(error), "run `scale0 pipeline status`") from None
    except (duckdb.Error, OSError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise Unavailable(
            "broken", f"the tables in {root} cannot be read: {why}", "run `scale0 pipeline status`"
        ) from None


def _report(root: Path, name: str, query: ReportQuery) -> dict[str, Any]:
    (report,) = make((name,), root, query)
    if not report.matched:
        raise _unmatched(report, query.filters)
    return as_data(report, MAX_REPORT_ROWS)


def _unmatched(report: ReportDocument, filters: Filters) -> Unavailable:
    given = {name: value for name, value in msgspec.structs.asdict(filters).items() if value}
    wanted = next(iter(given.values()), "")
    near = difflib.get_close_matches(wanted, report.known, MAX_SUGGESTIONS, 0.4) or list(report.known[:MAX_SUGGESTIONS])
    text = ", ".join(f"{name}={value}" for name, value in given.items())
    next_ = f"known names: {', '.join(near)}" if near else f"see the report {report.name} without a filter"
    return Unavailable("unknown", f"nothing in this period matches {text}", next_)


def _tables(root: Path) -> dict[str, Any]:
    manifest = Warehouse(root).latest()
    if manifest is None or not manifest.chapters:
        raise NoTables("")
    days = sorted(manifest.chapters)
    return {
        "items": [{"name": name, "columns": dict(info.columns)} for name, info in sorted(manifest.tables.items())],
        "next": None,
        "version": manifest.number,
        "horizon": time_of(manifest.horizon_us),
        "from": time_of(days[0] * DAY_US),
        "sources": sorted(manifest.covered),
    }


def _rows(root: Path, table: str, limit: int, after: str | None, period: WarehouseQuery) -> dict[str, Any]:
    from scale0.pipeline import reading  # noqa: PLC0415

    warehouse = Warehouse(root)
    manifest = warehouse.latest()
    if manifest is None or not manifest.chapters:
        raise NoTables("")
    if table not in manifest.tables:
        raise _unknown("table", table, sorted(manifest.tables))
    offset = _offset(after, manifest.number)
    since, until = (None if us is None else to_time(us) for us in (period.from_us, period.to_us))
    connection = reading.open_duckdb(warehouse, tables=(table,), since=since, until=until)
    timer = threading.Timer(QUERY_SECONDS, connection.interrupt)
    timer.daemon = True
    timer.start()
    try:
        name = '"' + table.replace('"', '""') + '"'
        # The name is one that the manifest lists.
        found = connection.execute(f"SELECT * FROM {name} LIMIT ? OFFSET ?", [limit + 1, offset])  # noqa: S608
        columns = [one[0] for one in found.description]
        rows = found.fetchall()
    finally:
        timer.cancel()
        connection.close()
    if warehouse.numbers()[-1] != manifest.number:
        raise Unavailable("stale", "the tables have changed since the first page", "start again from the first page")
    more = len(rows) > limit and offset + limit <= MAX_OFFSET
    return {
        "items": [dict(zip(columns, map(_plain, row), strict=True)) for row in rows[:limit]],
        "next": f"{manifest.number}.{offset + limit}" if more else None,
        "columns": dict(manifest.tables[table].columns),
    }


def _offset(after: str | None, number: int) -> int:
    if after is None:
        return 0
    version, dot, offset = after.partition(".")
    if not (dot and version.isascii() and offset.isascii() and version.isdigit() and offset.isdigit()):
        raise Unavailable(
            "unknown", f"{after[:60]!r} is no position in a table", "pass the `next` of the previous page"
        )
    if version != str(number):
        raise Unavailable("stale", "the tables have changed since the first page", "start again from the first page")
    if len(offset) > len(str(MAX_OFFSET)) or int(offset) > MAX_OFFSET:
        raise Unavailable("unknown", f"paging ends after {MAX_OFFSET:,} rows", "choose a period with from and to")
    return int(offset)


def _plain(value: Any) -> Any:
    match value:
        case datetime.datetime():
            return value.astimezone(datetime.UTC).isoformat().replace("+00:00", "Z")
        case float():
            return value if math.isfinite(value) else None
        case list() | tuple():
            return [_plain(one) for one in value]
        case dict():
            return {str(name): _plain(one) for name, one in value.items()}
        case None | bool() | int() | str():
            return value
        case _:
            return str(value)


def _unknown(what: str, name: str, known: list[str]) -> Unavailable:
    return Unavailable("unknown", f"there is no {what} {name[:100]!r}", f"known names: {', '.join(known)}")

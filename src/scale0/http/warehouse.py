"""Reports and tables of the warehouse, for the management server: read by DuckDB, off the loop, and remembered.

Lives here: `WarehouseReader`. Never here: HTTP, Spark, or a number that is made. Invariants: at most two questions are
asked at once, each with a deadline; an answer is remembered until there is a newer manifest; what cannot be answered is
an `Unavailable` that says what to type next. The pipeline's extra may be absent.
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
from scale0.pipeline.reports.catalog import ABOUT, TAKES, make
from scale0.pipeline.reports.json_output import as_data, time_of
from scale0.pipeline.reports.period import NothingThen
from scale0.pipeline.reports.query import Filters, NoTables, ReportQuery
from scale0.pipeline.time_ranges import DAY_US, HOUR_US, to_time
from scale0.pipeline.warehouse.errors import WarehouseError
from scale0.pipeline.warehouse.warehouse import Warehouse

if TYPE_CHECKING:
    from scale0.pipeline.reports.model import ReportDocument

THREADS: Final = 2
MAX_WAITING: Final = 8
ASK_SECONDS: Final = 20.0
"""How long a question may take; a table's rows are then let go of, a report goes on and keeps its place."""
MAX_REPORT_ROWS: Final = 1_000
"""Of each table of a report; `scale0 report` has all."""
MAX_OFFSET: Final = 1_000_000
"""How far into a table one may page; narrow it with a period instead."""
MAX_REMEMBERED: Final = 64
MAX_REMEMBERED_BYTES: Final = 32 * 1024 * 1024
MAX_NAMED: Final = 5
"""Names that are suggested where one is not known."""
INSTALL: Final = "pip install 'scale0[pipeline]' where this server runs"

Sort = Literal["not_installed", "absent", "unknown", "stale", "broken"]
Result = TypeVar("Result")


class Unavailable(Scale0Error):
    """What cannot be told; `next` is what to type."""

    def __init__(self, sort: Sort, message: str, next_: str) -> None:
        super().__init__(message)
        self.sort = sort
        self.next = next_


class WarehouseQuery(NamedTuple):
    """A period, as far as it was said."""

    from_us: int | None = None
    to_us: int | None = None
    last_us: int | None = None

    def in_hours(self) -> WarehouseQuery:
        """The whole hours that it touches: what a moment later is asked again is then the same question."""
        starts, ends, last = self
        return WarehouseQuery(
            None if starts is None else starts // HOUR_US * HOUR_US,
            None if ends is None else -(-ends // HOUR_US) * HOUR_US,
            last,
        )


class WarehouseReader:
    """One warehouse; None: nobody said where it is."""

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._desk = BlockingThreads("warehouse", THREADS, MAX_WAITING)
        self._answers: OrderedDict[Hashable, bytes] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    async def report(self, name: str, asked: WarehouseQuery, filters: dict[str, str]) -> bytes:
        """A report as JSON. Unavailable, Busy or TooLate if it cannot be made."""
        if name not in TAKES:
            raise _unknown("report", name, list(TAKES))
        if strange := [each for each in filters if each not in TAKES[name]]:
            takes = ", ".join(TAKES[name])
            raise Unavailable("unknown", f"the report {name} is not chosen by {strange[0]}", f"it takes {takes}")
        asked = asked.in_hours()
        question = ReportQuery(asked.from_us, asked.to_us, filters=Filters(**filters))
        if asked.last_us is not None:
            question = msgspec.structs.replace(question, last_us=asked.last_us)
        return await self._told(("report", name, question), lambda root: _report(root, name, question))

    async def tables(self) -> bytes:
        """Which tables there are, as JSON."""
        return await self._told(("tables",), _tables)

    async def rows(self, table: str, limit: int, after: str | None, asked: WarehouseQuery) -> bytes:
        """A page of a table's rows, as JSON."""
        asked = asked.in_hours()
        return await self._told(
            ("rows", table, limit, after, asked), lambda root: _rows(root, table, limit, after, asked)
        )

    def close(self) -> None:
        """Ask nothing more."""
        self._desk.close()

    async def _told(self, key: Hashable, make_it: Callable[[Path], Any]) -> bytes:
        return await self._desk.run(lambda: self._remembered(key, make_it), ASK_SECONDS)

    def _remembered(self, key: Hashable, make_it: Callable[[Path], Any]) -> bytes:
        root = self._checked()
        number = _asked_of(root, lambda: Warehouse(root).numbers())[-1:]
        whole = (tuple(number), key)
        with self._lock:
            if whole in self._answers:
                self._answers.move_to_end(whole)
                return self._answers[whole]
        answer = msgspec.json.encode(_asked_of(root, lambda: make_it(root)))
        with self._lock:
            if whole not in self._answers:
                self._answers[whole] = answer
                self._bytes += len(answer)
            while len(self._answers) > MAX_REMEMBERED or (
                self._bytes > MAX_REMEMBERED_BYTES and len(self._answers) > 1
            ):
                self._bytes -= len(self._answers.popitem(last=False)[1])
        return answer

    def _checked(self) -> Path:
        try:
            import duckdb  # noqa: F401, PLC0415  # an extra: said in words if it is absent
        except ImportError:
            raise Unavailable("not_installed", "reports and tables need DuckDB", INSTALL) from None
        if self._root is None:
            raise Unavailable(
                "absent",
                "nobody said where the warehouse is",
                "start this server on the broker's machine, with --data-dir",
            )
        return self._root


def reports() -> list[dict[str, Any]]:
    """Which reports there are, and what each is chosen by."""
    return [{"name": name, "about": ABOUT[name], "takes": list(takes)} for name, takes in TAKES.items()]


def _asked_of(root: Path, work: Callable[[], Result]) -> Result:
    """What can go wrong with a warehouse, said."""
    import duckdb  # noqa: PLC0415  # it is there: somebody looked

    try:
        return work()
    except NoTables:
        raise Unavailable("absent", "there are no tables yet", "make them with `scale0 pipeline run`") from None
    except NothingThen as error:
        step = "choose another period, or bring the tables up to date: scale0 pipeline run"
        raise Unavailable("absent", str(error), step) from None
    except WarehouseError as error:
        raise Unavailable("broken", str(error), "scale0 pipeline status") from None
    except (duckdb.Error, OSError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise Unavailable("broken", f"the tables in {root} cannot be read: {why}", "scale0 pipeline status") from None


def _report(root: Path, name: str, question: ReportQuery) -> dict[str, Any]:
    (report,) = make((name,), root, question)
    if not report.matched:
        raise _unmatched(report, question.filters)
    return as_data(report, MAX_REPORT_ROWS)


def _unmatched(report: ReportDocument, filters: Filters) -> Unavailable:
    said = {name: value for name, value in msgspec.structs.asdict(filters).items() if value}
    wanted = next(iter(said.values()), "")
    near = difflib.get_close_matches(wanted, report.known, MAX_NAMED, 0.4) or list(report.known[:MAX_NAMED])
    words = ", ".join(f"{name}={value}" for name, value in said.items())
    step = f"there is {', '.join(near)}" if near else f"see the whole report {report.name}"
    return Unavailable("unknown", f"nothing in this period matches {words}", step)


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


def _rows(root: Path, table: str, limit: int, after: str | None, asked: WarehouseQuery) -> dict[str, Any]:
    from scale0.pipeline import reading  # noqa: PLC0415

    warehouse = Warehouse(root)
    manifest = warehouse.latest()
    if manifest is None or not manifest.chapters:
        raise NoTables("")
    if table not in manifest.tables:
        raise _unknown("table", table, sorted(manifest.tables))
    offset = _offset(after, manifest.number)
    since, until = (None if us is None else to_time(us) for us in (asked.from_us, asked.to_us))
    connection = reading.open_duckdb(warehouse, tables=(table,), since=since, until=until)
    timer = threading.Timer(ASK_SECONDS, connection.interrupt)
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
        raise Unavailable("stale", "the tables were made anew meanwhile", "ask again, from the first page")
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
        raise Unavailable("unknown", f"{after[:60]!r} is no place in a table", "take `next` of the page before")
    if version != str(number):
        raise Unavailable("stale", "the tables were made anew meanwhile", "ask again, from the first page")
    if len(offset) > len(str(MAX_OFFSET)) or int(offset) > MAX_OFFSET:
        raise Unavailable("unknown", f"one can page through {MAX_OFFSET:,} rows", "choose a period with from and to")
    return int(offset)


def _plain(value: Any) -> Any:
    """A cell as JSON has it."""
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
    return Unavailable("unknown", f"there is no {what} {name[:100]!r}", f"there is {', '.join(known)}")

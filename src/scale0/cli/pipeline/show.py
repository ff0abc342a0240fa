"""`scale0 pipeline show` and `scale0 pipeline status`: the content of the warehouse, without Spark."""

from __future__ import annotations

import csv
import datetime
import json
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click

from scale0.cli.common import output
from scale0.cli.common.errors import CommandError
from scale0.cli.common.options import with_watch
from scale0.cli.pipeline.locations import TimeOption, local_segments, warehouse_of, with_warehouse

if TYPE_CHECKING:
    from scale0.pipeline.status import WarehouseStatus

DEFAULT_ROWS: Final = 50
FORMATS: Final = ("table", "csv", "json")
MAX_CELL: Final = 60
"""Characters of a list or a map in a table; `--format json` has all."""


@click.command()
@click.argument("table", required=False)
@with_warehouse
@click.option("--since", type=TimeOption(time.time), help="Only days from this time on: 7d, or 2026-11-01.")
@click.option("--until", type=TimeOption(time.time), help="Only days up to this time.")
@click.option("--where", "conditions", multiple=True, metavar="COLUMN=VALUE", help="Only these rows; may be repeated.")
@click.option(
    "--limit", type=click.IntRange(1), default=DEFAULT_ROWS, show_default=True, help="The maximum number of rows."
)
@click.option("--all", "everything", is_flag=True, help="All rows, without a limit.")
@click.option("--format", "form", type=click.Choice(FORMATS), default="table", show_default=True, help="The format.")
@click.option("--json", "wants_json", is_flag=True, help="The same as --format json.")
@with_watch
def show(table: str | None, warehouse: str | None, data_dir: str, form: str, wants_json: bool, **options: Any) -> None:
    """Print a table of the warehouse; without TABLE, list the tables.

    \b
    Examples:
      scale0 pipeline show
      scale0 pipeline show incidents --since 7d
      scale0 pipeline show availability --where subject_kind=service --where grain=day
      scale0 pipeline show tasks --since 2026-11-01 --all --format csv > tasks.csv
    """
    from scale0.pipeline import reading

    folder = warehouse_of(warehouse, data_dir)
    form = "json" if wants_json else form
    names = reading.tables(folder)
    if table is None:
        output.say(output.as_json(names) if wants_json else "\n".join(names))
        return
    if table not in names:
        raise CommandError(f"there is no table {table!r}", f"the tables are {', '.join(names)}")
    limit = None if options["everything"] else options["limit"]
    heads, rows = rows_of(folder, table, options["conditions"], options["since"], options["until"], limit)
    print_rows(heads, rows, form)
    if limit is not None and len(rows) == limit and form == "table":
        output.note(f"the first {limit} rows: --limit N or --all shows more")


def rows_of(
    folder: Any, table: str, conditions: tuple[str, ...], since: int | None, until: int | None, limit: int | None
) -> tuple[list[str], list[tuple[Any, ...]]]:
    from scale0.pipeline import reading
    from scale0.pipeline.time_ranges import to_time

    wheres, values = [], []
    for condition in conditions:
        name, equals, value = condition.partition("=")
        if not equals or not name.isidentifier():
            raise click.BadParameter(f"{condition!r} is not COLUMN=VALUE", param_hint="--where")
        wheres.append(f'CAST("{name}" AS VARCHAR) = ?')
        values.append(value)
    sql = f'SELECT * FROM "{table}"'  # noqa: S608  # the name is one of the warehouse's own, the values are parameters
    sql += f" WHERE {' AND '.join(wheres)}" if wheres else ""
    sql += " ORDER BY ALL" if limit is None else f" ORDER BY ALL LIMIT {limit:d}"
    found = reading.ask(
        folder,
        sql,
        values,
        tables=[table],
        since=None if since is None else to_time(since),
        until=None if until is None else to_time(until),
    )
    rows = [tuple(row.values()) for row in found.to_pylist()]
    return found.column_names, rows


def print_rows(heads: list[str], rows: list[tuple[Any, ...]], form: str) -> None:
    if form == "json":
        for row in rows:
            output.say(json.dumps(dict(zip(heads, row, strict=True)), default=plain, ensure_ascii=False))
    elif form == "csv":
        writer = csv.writer(sys.stdout)
        writer.writerow(map(output.csv_cell, heads))
        special = (datetime.date, list, dict, tuple)  # CSV cannot represent them; a datetime is a date
        writer.writerows(
            [output.csv_cell(plain(cell) if isinstance(cell, special) else cell) for cell in row] for row in rows
        )
    elif not rows:
        output.say("no rows")
    else:
        output.table(heads, [[text(cell) for cell in row] for row in rows])


def plain(cell: Any) -> Any:
    match cell:
        case datetime.datetime():
            return cell.astimezone(datetime.UTC).isoformat().replace("+00:00", "Z")
        case datetime.date():
            return cell.isoformat()
        case list() | dict() | tuple():
            return json.dumps(cell, default=plain, ensure_ascii=False)
        case _:
            return str(cell)


def text(cell: Any) -> str:
    match cell:
        case None:
            return "-"
        case bool():
            return "yes" if cell else "no"
        case float():
            return f"{cell:.4g}"
        case datetime.datetime():
            return f"{cell.astimezone(datetime.UTC):%Y-%m-%d %H:%M:%S}"
        case list() | dict() | tuple():
            return str(plain(cell))[:MAX_CELL]
        case _:
            return output.clean(str(cell))


@click.command()
@with_warehouse
@click.option("--segments", multiple=True, metavar="URL", help="A location of segments, to count new ones.")
@click.option("--json", "wants_json", is_flag=True, help="Print a JSON object.")
@with_watch
def status(warehouse: str | None, data_dir: str, segments: tuple[str, ...], wants_json: bool) -> None:
    """Show what the tables cover, how old they are, and what is missing.

    Exits with 1 if a segment is damaged or contradicts others, if segments cannot be reached, or if there are no tables
    yet. Files that are not segments are named and ignored.

    \b
    Examples:
      scale0 pipeline status
      scale0 pipeline status --json | jq .horizon_us
    """
    import msgspec

    from scale0.pipeline.status import status_of

    folder = warehouse_of(warehouse, data_dir)
    found = status_of(folder, segments or local_segments(data_dir), time.time_ns() // 1_000)
    if wants_json:
        output.say(output.as_json(msgspec.to_builtins(found)))
    else:
        show_status(found, time.time())
    sys.exit(int(found.number is None or bool(found.problems) or bool(found.unreachable)))


def show_status(found: WarehouseStatus, now: float) -> None:
    from scale0.pipeline.time_ranges import to_time

    if found.number is None or found.horizon_us is None or found.first_day is None:
        output.say(f"{found.warehouse}: no tables yet; make them with `scale0 pipeline run`")
    else:
        behind = now - found.horizon_us / 1e6
        output.facts(
            [
                ("warehouse", found.warehouse),
                ("tables", f"up to {to_time(found.horizon_us):%Y-%m-%d %H:%M:%S} UTC, {output.span(behind)} ago"),
                ("since", f"{to_time(found.first_day * 86_400_000_000):%Y-%m-%d}"),
                ("manifest", f"{found.number}, version {found.code_version} of the tables"),
                ("restatements", f"{found.restatements:,}"),
            ]
        )
    if found.pending is not None and found.pending.segments:
        output.say(f"new: {found.pending.segments:,} segments with {found.pending.events:,} events")
    if found.sources:
        heads = ["source", "boots", "events", "last seq", "holes", "rewinds", "duplicates", "rejected"]
        output.say()
        output.table(
            heads,
            [
                [
                    one.source,
                    *(
                        f"{n:,}"
                        for n in (
                            one.boots,
                            one.events,
                            one.last_seq,
                            one.holes,
                            one.rewinds,
                            one.duplicates,
                            one.rejected,
                        )
                    ),
                ]
                for one in found.sources
            ],
        )
    for file in found.ignored:
        output.note(f"ignored: {output.clean(file)}")
    for problem in (*found.problems, *found.unreachable):
        output.note(f"problem: {output.clean(problem)}")

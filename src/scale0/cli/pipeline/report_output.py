"""The formats of reports: a table, JSON, CSV, or an HTML page.

A file is complete under its name, or does not exist. Names cannot control a terminal or a spreadsheet.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scale0.cli.common import output
from scale0.cli.common.errors import CommandError

if TYPE_CHECKING:
    from scale0.pipeline.reports.model import ReportColumn, ReportDocument

FORMATS: Final = ("table", "json", "csv", "html")
DEFAULT_ROWS: Final = 50
"""Of each table, for people; JSON and CSV have all."""


def show(reports: Sequence[ReportDocument], form: str, out: Path | None, limit: int | None) -> None:
    if form == "table" and out is None:
        for_people(reports, limit or DEFAULT_ROWS)
        return
    match form:
        case "json":
            text = as_json(reports, limit)
        case "csv":
            text = as_csv(reports, limit)
        case "html":
            from scale0.pipeline.reports.html import page

            text = page(reports, limit or DEFAULT_ROWS)
        case _:
            text = as_text(reports, limit or DEFAULT_ROWS)
    if out is None:
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        write_atomically(out, text)
        output.note(f"{len(text.encode()):,} bytes in {out}")


def write_atomically(out: Path, text: str) -> None:
    partial = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        partial.write_text(text, encoding="utf-8", newline="")
        partial.replace(out)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise CommandError(
            f"cannot write {out}: {error.strerror or error}", "choose another file with --out"
        ) from error


def for_people(reports: Sequence[ReportDocument], limit: int) -> None:
    from scale0.pipeline.reports.formatting import NUMERIC, text
    from scale0.pipeline.reports.model import shared_notes
    from scale0.pipeline.reports.period import utc_text

    shared = shared_notes(reports)
    for note in shared:
        output.say(output.clean(note))
    for at, report in enumerate(reports):
        if at or shared:
            output.say()
        title = f"{report.title}, {utc_text(report.period.from_us)} to {utc_text(report.period.to_us)}"
        output.say(title)
        output.say(output.clean(report.summary))
        for number, table in enumerate(report.tables):
            output.say()
            if number or len(report.tables) > 1:
                output.say(f"{table.title}:")
            if not table.rows:
                output.say(f"  {table.empty}")
                continue
            shown = [place for place, column in enumerate(table.columns) if not column.detail]
            heads = [table.columns[place].head.upper() for place in shown]
            numbers = [head for head, place in zip(heads, shown, strict=True) if table.columns[place].unit in NUMERIC]
            rows = [[text(row[place], table.columns[place].unit) for place in shown] for row in table.rows[:limit]]
            output.table(heads, rows, numbers=numbers)
            if len(table.rows) > limit:
                output.note(f"the first {limit:,} of {len(table.rows):,}: --limit N shows more")
        own = [note for note in report.notes if note not in shared]
        output.say("\n".join(["", *map(output.clean, own)]) if own else "")


def as_text(reports: Sequence[ReportDocument], limit: int) -> str:
    """The output of a terminal, for a file."""
    captured = io.StringIO()
    with contextlib.redirect_stdout(captured):
        for_people(reports, limit)
    return captured.getvalue()


def as_json(reports: Sequence[ReportDocument], limit: int | None) -> str:
    """One object for each report, one per line."""
    from scale0.pipeline.reports.model import as_data

    return "".join(f"{json.dumps(as_data(one, limit), ensure_ascii=False)}\n" for one in reports)


def as_csv(reports: Sequence[ReportDocument], limit: int | None) -> str:
    """The first table of a report; of several tables, each row starts with the name of its table."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    tables = [(report, table) for report in reports for table in report.tables]
    several = len(tables) > 1
    for report, table in tables:
        if several:
            writer.writerow(["table", *(column.name for column in table.columns)])
        else:
            writer.writerow([column.name for column in table.columns])
        lead = [f"{report.name}.{table.name}"] if several else []
        for row in table.rows[:limit]:
            writer.writerow([*lead, *(_field(cell, column) for cell, column in zip(row, table.columns, strict=True))])
    return written.getvalue()


def _field(value: Any, column: ReportColumn) -> Any:
    if value is None:
        return ""
    if isinstance(value, str):
        return output.csv_cell(value)
    from scale0.pipeline.reports.model import value_of

    return str(value).lower() if isinstance(value, bool) else value_of(value, column)

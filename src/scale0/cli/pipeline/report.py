"""`scale0 report`: reports from the warehouse, without Spark.

Exits with 1 if there is nothing to report, and with 2 if the options contradict each other.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from scale0.cli.common.errors import CommandError
from scale0.cli.common.options import repeat
from scale0.cli.pipeline.locations import TimeOption, warehouse_of, with_warehouse
from scale0.cli.pipeline.report_output import DEFAULT_ROWS, FORMATS, show
from scale0.kernel.time_text import MICROSECONDS, duration_seconds
from scale0.pipeline.reports import REPORTS

if TYPE_CHECKING:
    from scale0.pipeline.reports.model import ReportDocument

_SPAN: Final = re.compile(r"[1-9][0-9]{0,4}[hdw]", re.ASCII)
MAX_NAMED: Final = 5
"""Suggestions for an unknown name."""

FILTERS: Final = {
    "subject": "Only these subjects; a check is AGENT/CHECK, a node its identity.",
    "service": "Only this service.",
    "method": "Only this task method.",
    "agent": "Only this agent and its checks.",
    "check": "Only this check, of all agents or as AGENT/CHECK.",
}

ALL: Final = "all"


class PeriodOption(click.ParamType[int]):
    """A duration: 12h, 30d, 4w. It becomes microseconds."""

    name = "SPAN"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        seconds = duration_seconds(str(value)) if _SPAN.fullmatch(str(value)) else None
        if seconds is None:
            self.fail(f"{value!r} is not a duration; for example 12h, 30d or 4w", param, ctx)
        return seconds * MICROSECONDS


@click.group()
def report() -> None:
    """Show availability, tasks, incidents and other reports.

    Reports read the warehouse that `scale0 pipeline run` fills, without Spark. They state how reliable they are: the
    end of the tables, what was not observed, and which numbers have changed since (--why).

    \b
    Examples:
      scale0 report availability
      scale0 report availability --service thumbs.make --last 7d --why
      scale0 report tasks --from 2026-11-01 --to 2026-11-08 --format csv
      scale0 report all --format html --out report.html
    """


def _command(name: str, filters: tuple[str, ...], help_text: str) -> click.Command:
    options: list[click.Parameter] = [
        click.Option(
            ["--last"], type=PeriodOption(), default="30d", show_default=True, help="How far back: 12h, 30d, 4w."
        ),
        click.Option(
            ["--from", "starts"], type=TimeOption(time.time), help="The start: 2026-11-01, or 7d for seven days ago."
        ),
        click.Option(["--to", "ends"], type=TimeOption(time.time), help="The end (default: the end of the tables)."),
        *(click.Option([f"--{each}"], default="", metavar="GLOB", help=FILTERS[each]) for each in filters),
        click.Option(
            ["--format", "form"],
            type=click.Choice(FORMATS),
            default="table",
            show_default=True,
            help="The format; html is a self-contained page.",
        ),
        click.Option(["--json", "wants_json"], is_flag=True, help="The same as --format json."),
        click.Option(["--watch"], is_flag=True, help="Repeat every second, until Ctrl-C."),
        click.Option(["--out"], type=click.Path(path_type=Path, dir_okay=False), help="Write to this file."),
        click.Option(
            ["--limit"],
            type=click.IntRange(1),
            help=f"The maximum number of rows of each table ({DEFAULT_ROWS}; json, csv: all).",
        ),
        click.Option(["--why"], is_flag=True, help="List the intervals, gaps and restatements behind the numbers."),
    ]

    def callback(watch: bool, wants_json: bool, **given: Any) -> None:
        form = "json" if wants_json else given.pop("form")
        repeat(lambda: answer(name, **{**given, "form": form}), watch, wants_json)

    return with_warehouse(click.Command(name, params=options, callback=callback, help=_help(name, help_text)))


def _help(name: str, help_text: str) -> str:
    return (
        f"{help_text}\n\nTimes are UTC; a period has whole hours and ends with the tables."
        f"\n\n\b\nExamples:\n  scale0 report {name} --last 7d"
        f"\n  scale0 report {name} --format html --out {name}.html"
    )


def answer(
    name: str,
    *,
    warehouse: str | None,
    data_dir: str,
    last: int,
    starts: int | None,
    ends: int | None,
    form: str,
    out: Path | None,
    limit: int | None,
    why: bool,
    **filters: str,
) -> None:
    if starts is not None and ends is not None and starts >= ends:
        raise click.UsageError("--from must be before --to")
    folder = warehouse_of(warehouse, data_dir)
    reports = made(name, folder, starts, ends, last, why, filters)
    if len(reports) == 1 and not reports[0].matched:
        raise unknown(reports[0], filters)
    show(reports, form, out, limit)


def made(
    name: str, folder: Path, starts: int | None, ends: int | None, last: int, why: bool, filters: dict[str, str]
) -> list[ReportDocument]:
    """The reports; CommandError with the next step if there is nothing to report."""
    try:
        import duckdb
    except ImportError as error:
        raise CommandError("reports need DuckDB", "pip install 'scale0[pipeline]'") from error
    from scale0.pipeline.reports.catalog import MAKERS, make
    from scale0.pipeline.reports.period import NothingThen
    from scale0.pipeline.reports.query import Filters, NoTables, ReportQuery

    question = ReportQuery(from_us=starts, to_us=ends, last_us=last, filters=Filters(**filters), why=why)
    try:
        return make(tuple(MAKERS) if name == ALL else (name,), folder, question)
    except NoTables as error:
        raise CommandError(
            str(error), "make them with `scale0 pipeline run`, or give their location with --warehouse DIR"
        ) from error
    except NothingThen as error:
        raise CommandError(
            str(error), "choose another --from and --to, or update the tables: scale0 pipeline run"
        ) from error
    except duckdb.Error as error:
        raise CommandError(
            f"cannot read the tables in {folder}: {str(error).splitlines()[0]}", "scale0 pipeline status"
        ) from error


def unknown(report: ReportDocument, filters: dict[str, str]) -> CommandError:
    """No subject has this name: suggest others."""
    import difflib

    given = ", ".join(f"--{name} {value}" for name, value in filters.items() if value)
    wanted = next(value for value in filters.values() if value)
    near = difflib.get_close_matches(wanted, report.known, MAX_NAMED, 0.4) or list(report.known[:MAX_NAMED])
    rest = f" (of {len(report.known):,})" if len(report.known) > len(near) else ""
    hint = f"similar names: {', '.join(near)}{rest}" if near else f"scale0 report {report.name}"
    return CommandError(f"nothing in this period matches {given}", hint)


for _name, (_filters, _text) in REPORTS.items():
    report.add_command(_command(_name, _filters, _text))
report.add_command(_command(ALL, tuple(FILTERS), "All reports; as HTML, one page."))

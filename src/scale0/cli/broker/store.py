"""`scale0 store`: check what a broker or Helen has stored on this machine, and continue after a loss."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from scale0.cli.common import errors, output
from scale0.cli.common.authentication import DATA_DIR, LOCAL_FOLDER
from scale0.cli.common.options import json_option

if TYPE_CHECKING:
    from scale0.storage.check import Show, StoreReport

MAX_SHOWN: Final = 50

data_dir_option = click.option(
    "--data-dir",
    default=LOCAL_FOLDER,
    envvar=DATA_DIR,
    show_default=True,
    metavar="FOLDER",
    help=f"The folder of a broker or Helen ({DATA_DIR}).",
)


@click.group()
def store() -> None:
    """Check what a broker or Helen has stored on this machine.

    \b
    Examples:
      scale0 store check
      scale0 store check --data-dir var/east-1
    """


@store.command()
@json_option
@data_dir_option
def check(wants_json: bool, data_dir: str) -> None:
    """Read all tasks, results and events, and report what is damaged or missing.

    Params and results of tasks have checksums; a damaged one is never handed out or returned. The command also checks
    the pages of the database, the ids, the sums of quotas, the numbers of events, and whether the last commits are
    there. It changes nothing, and the broker may be running. It exits with 1 if it finds anything, and if there is no
    store. Segments and the hashes of audit events are examined by `scale0 audit verify`.

    \b
    With --json, an object:
      rows              by table: how many rows were read
      without_checksum  values of tasks that a version without checksums stored
      count             the number of findings
      findings          the first 1,000: table, row, problem

    \b
    Examples:
      scale0 store check
      scale0 store check --data-dir var/east-1 --json | jq .count
    """
    with output.progress("store check") as show:
        report = checked(folder_of(data_dir), lambda table, number: show(f"{table}: {number} rows", 0.0))
    if wants_json:
        output.say(output.as_json(report_json(report)))
    else:
        show_report(report)
    if report.count:
        sys.exit(errors.NO)


@store.command("accept-loss")
@data_dir_option
def accept_loss(data_dir: str) -> None:
    """Continue without commits that the database lost.

    A broker whose database lacks commits that were acknowledged refuses to start, and names them; so does one whose
    file `commits`, which has the number of the last one, is damaged. Restore the files if you can. Otherwise this
    command lets the next start continue without them: tasks and results of these commits are lost, and their ids are
    never used for other tasks. The broker must be stopped.

    \b
    Examples:
      scale0 store accept-loss
      scale0 store accept-loss --data-dir var/east-1
    """
    from scale0.storage.sqlite.repair import accept_loss as accept

    lost = accept(folder_of(data_dir))
    if lost is None:
        raise errors.CommandError(f"{data_dir}: no commit is known to be missing", "start the broker")
    output.say(f"{data_dir}: the next start continues without {lost}")


def folder_of(name: str) -> Path:
    folder = Path(name)
    if not folder.is_dir():
        raise errors.CommandError(f"there is no folder {name}", "give the folder of a broker or Helen with --data-dir")
    return folder


def checked(folder: Path, show: Show) -> StoreReport:
    from scale0.history.segments.settings import read_export_state
    from scale0.storage.sqlite.repair import check_database
    from scale0.storage.sqlite.store import DATABASE_NAME

    state = read_export_state(folder)
    if state is not None and state.database:
        from scale0.storage.postgres.check import check_schema

        return check_schema(state.database, show)
    if not (folder / DATABASE_NAME).exists():
        raise errors.CommandError(
            f"there is no {DATABASE_NAME} in {folder}", "give the folder of a broker or Helen with --data-dir"
        )
    return check_database(folder, show)


def report_json(report: StoreReport) -> dict[str, object]:
    return {
        "rows": report.rows,
        "without_checksum": report.without_checksum,
        "count": report.count,
        "findings": [finding._asdict() for finding in report.findings],
    }


def show_report(report: StoreReport) -> None:
    if report.findings:
        shown = report.findings[:MAX_SHOWN]
        output.table(("TABLE", "ROW", "PROBLEM"), [tuple(finding) for finding in shown], cut="PROBLEM")
        if report.count > len(shown):
            output.say(f"… and {report.count - len(shown)} more; --json lists up to 1,000")
    counts = ", ".join(f"{name} {number}" for name, number in report.rows.items())
    verdict = f"{report.count} findings" if report.count != 1 else "1 finding"
    output.say(f"{verdict if report.count else 'everything is intact'}; rows: {counts or 'none'}")
    if report.without_checksum:
        output.say(f"{report.without_checksum} params and results are older than the checksums, and were not checked")

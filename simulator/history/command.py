"""The command `python -m simulator.history`. It never overwrites existing files."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from scale0.cli.common import errors, output
from scale0.cli.common.options import json_option

if TYPE_CHECKING:
    from simulator.history import Truth, Truths

_COUNT: Final = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,3}))?([kKmMgG]?)", re.ASCII)
_UNITS: Final = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)


class Amount(click.ParamType[int]):
    """A whole number with an optional unit: 20M, 1.5M, 200k."""

    name = "number"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = _COUNT.fullmatch(str(value))
        if found is None:
            self.fail(f"{value!r} is not a number like 20M, 1.5M, 200k or 50000", param, ctx)
        whole, part, unit = found[1], found[2] or "", found[3].lower()
        thousandths = int(whole) * 1_000 + int(part.ljust(3, "0") or "0")
        return thousandths * _UNITS[unit] // 1_000


class Day(click.ParamType[datetime]):
    """A day such as 2026-11-02; it begins at midnight UTC."""

    name = "day"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        text = str(value)
        try:
            if _DAY.fullmatch(text):
                return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
        except ValueError:
            pass
        self.fail(f"{text!r} is not a day like 2026-11-02", param, ctx)


@click.command()
@click.option(
    "--events", type=Amount(), default="1M", show_default=True, help="Approximate number of events: 20M, 200k."
)
@click.option(
    "--days", type=click.IntRange(1, 3_660), default=7, show_default=True, help="Length of the history in days."
)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Seed of the random numbers.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="New or empty directory for the segments.",
)
@click.option("--start", type=Day(), default=None, help="First day, UTC.  [default: 2026-01-05]")
@json_option
def generate_history(events: int, days: int, seed: int, out: Path, start: datetime | None, wants_json: bool) -> None:
    """Generate a synthetic history with known truths, as segments in DIR.

    The truths are outages, a slow release, a filling disk, a flapping check, a lost segment, a restored old disk and
    more; DIR/truths.json lists their kinds, subjects and times. Equal arguments generate equal histories.

    \b
    Examples:
      python -m simulator.history --events 100k --days 2 --out history
      python -m simulator.history --events 300k --days 30 --seed 7 --out month
    With --json, an object: events, segments, folder, truths [kind, subject_kind, subject, from_us, to_us, facts]
    """
    try:
        from simulator.history import NotEmpty, TooSmall
    except ImportError as error:
        missing = f"the pipeline's packages are not installed ({error.name})"
        raise errors.CommandError(missing, "pip install 'scale0[pipeline]'") from error
    try:
        found = _written(events, days, seed, out, start)
    except NotEmpty as error:
        raise errors.CommandError(
            str(error), "choose a new directory with --out, or empty this one", errors.USAGE
        ) from error
    except TooSmall as error:
        raise errors.CommandError(str(error), "raise --events", errors.USAGE) from error
    except ValueError as error:
        raise errors.CommandError(str(error), "python -m simulator.history --help", errors.USAGE) from error
    except OSError as error:
        raise errors.CommandError(f"cannot write {out}: {error.strerror or error}", "check the free space") from error
    if wants_json:
        import msgspec

        shown = {"events": found.events, "segments": found.segments, "folder": str(out)}
        output.say(output.as_json(shown | {"truths": msgspec.to_builtins(found.truths)}))
        return
    _show(found, out)


def _written(events: int, days: int, seed: int, out: Path, start: datetime | None) -> Truths:
    """Generate the history, with a progress bar on a terminal."""
    from simulator.history import generate

    if out.exists() and not out.is_dir():
        raise errors.CommandError(f"{out} is a file", "choose a directory with --out", errors.USAGE)
    if not sys.stderr.isatty():
        return generate(events=events, days=days, seed=seed, out=out, start=start)
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("writing"), BarColumn(), MofNCompleteColumn(), TextColumn("events"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("writing", total=events)

        def moved(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        return generate(events=events, days=days, seed=seed, out=out, start=start, progress=moved)


def _show(found: Truths, out: Path) -> None:
    """Print the truths by time."""
    truths = sorted(found.truths, key=lambda each: (each.from_us, each.kind, each.subject))
    rows = [(each.kind, each.subject, _moment(each.from_us), _length(each)) for each in truths]
    output.table(("TRUTH", "SUBJECT", "FROM (UTC)", "FOR"), rows, numbers=("FOR",), cut="SUBJECT")
    output.say(f"wrote {found.events:,} events in {found.segments:,} segments to {out}")
    output.note(f"  next: scale0 pipeline run --segments {out} --warehouse DIR")


def _moment(us: int) -> str:
    return datetime.fromtimestamp(us // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _length(truth: Truth) -> str:
    return output.span((truth.to_us - truth.from_us) / 1e6) if truth.to_us > truth.from_us else "-"

"""`scale0 pipeline`: compute tables from the history of the network with Spark.

Exits with 1 if a segment could not be read; the tables contain all others. Progress is shown on stderr, if that is a
terminal.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from scale0.cli.common import output
from scale0.cli.common.options import with_options
from scale0.cli.pipeline.locations import TimeOption, no_java, segments_of, warehouse_of, with_warehouse
from scale0.cli.pipeline.show import show, status

if TYPE_CHECKING:
    from scale0.pipeline.engine.advance import Progress
    from scale0.pipeline.engine.runs import RunOptions, RunOutcome, Start

MASTER: Final = "local[*]"
MEMORY: Final = "3g"
EVERY_SECONDS: Final = 60.0


@click.group()
def pipeline() -> None:
    """Compute tables from the history with Spark.

    Tables are about availability, latency, incidents, trends and forecasts. Brokers and Helens export their history as
    segments; Spark computes the tables from them, and `scale0 report` shows them. It needs the extra `pipeline` (pip
    install 'scale0[pipeline]') and Java 17 or newer.

    \b
    Start here:
      scale0 pipeline run                   update the tables once
      scale0 pipeline status                what is covered, how old it is, what is missing
      scale0 pipeline show availability     print a table
      scale0 report availability --last 7d  a report
    """


with_spark = with_options(
    with_warehouse,
    click.option(
        "--segments",
        multiple=True,
        metavar="URL",
        help="A location of segments: a folder, s3://...; may be repeated.",
    ),
    click.option(
        "--master", default=MASTER, show_default=True, help="The Spark master: local[2], spark://HOST:7077, yarn."
    ),
    click.option("--memory", default=MEMORY, show_default=True, help="Memory of the driver."),
    click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A Spark setting; may be repeated."),
    click.option(
        "--flapping",
        type=click.Choice(["icinga", "nagios", "sensu"]),
        help="The formula for flapping (default: icinga).",
    ),
    click.option("--flapping-start", type=click.FloatRange(0, 100), help="Percent at which flapping starts."),
    click.option("--flapping-end", type=click.FloatRange(0, 100), help="Percent at which flapping ends."),
    click.option("--keep-days", type=click.IntRange(1), help="Delete tables of older days; at least 62."),
)
"""The options of Spark, segments and warehouse."""


@pipeline.command()
@with_spark
@click.option("--until", type=TimeOption(time.time), help="Compute as if this were now.")
@click.option("--rescan", is_flag=True, help="Look for new segments in all days, not only in changed ones.")
@click.option("--json", "wants_json", is_flag=True, help="Print the outcome as JSON.")
def run(until: int | None, rescan: bool, wants_json: bool, **options: Any) -> None:
    """Read new segments and update all tables.

    The cost depends on the new events only. After an interruption, run it again: each event counts once. It exits with
    1 if a segment is damaged or contradicts others; it is named, and the tables contain all others. Files that are not
    segments are named once and ignored.

    \b
    Examples:
      scale0 pipeline run
      scale0 pipeline run --segments s3://bucket/segments --warehouse /srv/warehouse
      scale0 pipeline run --master spark://10.0.0.1:7077 --warehouse /mnt/shared/warehouse
    """
    from scale0.pipeline.engine import runs

    job = job_of(options, until=until, rescan=rescan)
    with shown_progress(wants_json) as progress:
        outcome = runs.run(job, session_of(options), now_us, progress)
    finish(outcome, wants_json)


@pipeline.command()
@with_spark
@click.option("--from", "first", type=TimeOption(time.time), required=True, help="The first hour to compute again.")
@click.option("--to", "end", type=TimeOption(time.time), help="The end of the period (default: the newest hour).")
@click.option("--json", "wants_json", is_flag=True, help="Print the outcome as JSON.")
def backfill(first: int, end: int | None, wants_json: bool, **options: Any) -> None:
    """Compute tables again from the events in the warehouse.

    Use it after changes of parameters, or after an upgrade that requires it. The table `restatements` lists the
    changes. While a stream holds the warehouse, the stream does it.

    \b
    Examples:
      scale0 pipeline backfill --from 2026-11-01 --to 2026-11-03
      scale0 pipeline backfill --from 30d
    """
    from scale0.pipeline.engine import runs

    job = job_of(options)
    with shown_progress(wants_json) as progress:
        outcome = runs.backfill(job, session_of(options), now_us, progress, first, end)
    if outcome is None:
        output.say("queued: the stream that holds this warehouse does it")
    else:
        finish(outcome, wants_json)


@pipeline.command()
@with_spark
@click.option(
    "--every", default=EVERY_SECONDS, show_default=True, type=click.FloatRange(1), help="Seconds between runs."
)
def stream(every: float, **options: Any) -> None:
    """Keep the tables up to date with one Spark session, until Ctrl-C.

    It prints one line that starts with `ready` when it holds the warehouse, and one for each run. Meanwhile
    `pipeline run` is refused, and a backfill is passed on to it.

    \b
    Example:
      scale0 pipeline stream --every 60
    """
    from scale0.pipeline.engine import runs

    job = job_of(options)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        # In a thread of its own: this one may hold the lock of `stop` when the signal arrives.
        signal.signal(number, lambda *_: threading.Thread(target=stop.set).start())
    worst = 0
    with shown_progress(False) as progress:
        progress = say_first(f"ready {job.warehouse}: a run every {every:g} s; Ctrl-C ends it", progress)
        for outcome in runs.stream(job, session_of(options), now_us, progress, stop, every):
            show_outcome(outcome)
            worst = max(worst, int(bool(outcome.problems)))
    output.note("stopped")
    sys.exit(worst)


pipeline.add_command(status)
pipeline.add_command(show)


def now_us() -> int:
    """The wall clock of the driver; nothing else reads one."""
    return time.time_ns() // 1_000


def job_of(options: dict[str, Any], *, until: int | None = None, rescan: bool = False) -> RunOptions:
    from scale0.pipeline.aggregation import Parameters
    from scale0.pipeline.engine.runs import RunOptions
    from scale0.pipeline.warehouse.retention import TooFewDays, check_keep_days

    try:
        keep_days = check_keep_days(options["keep_days"])
    except TooFewDays as error:
        raise click.BadParameter(str(error), param_hint="--keep-days") from error
    chosen = {
        "flapping": options["flapping"],
        "flapping_start": options["flapping_start"],
        "flapping_end": options["flapping_end"],
    }
    return RunOptions(
        warehouse=warehouse_of(options["warehouse"], options["data_dir"]),
        segments=segments_of(options["segments"], options["data_dir"]),
        parameters=Parameters(**{name: value for name, value in chosen.items() if value is not None}),
        parameters_given=any(value is not None for value in chosen.values()),
        until_us=until,
        rescan=rescan,
        keep_days=keep_days,
    )


def session_of(options: dict[str, Any]) -> Start:
    """A function that starts Spark, once it is clear that there is something to do."""
    settings = {"spark.driver.memory": options["memory"]}
    for pair in options["conf"]:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{pair!r} is not KEY=VALUE", param_hint="--conf")
        settings[name] = value

    def start(events: int | None) -> Any:
        from scale0.pipeline.spark_session import start as start_session

        try:
            return start_session(options["master"], settings, events)
        except (RuntimeError, OSError) as error:
            no_java(error)

    return start


def say_first(line: str, progress: Progress) -> Progress:
    """`progress`, which prints this line on its first call: then this process holds the warehouse."""
    lines = [line]

    def show(what: str, done: int, total: int) -> None:
        while lines:
            output.say(lines.pop())
        progress(what, done, total)

    return show


def finish(outcome: RunOutcome, wants_json: bool) -> None:
    import msgspec

    if wants_json:
        output.say(output.as_json(msgspec.to_builtins(outcome)))
    else:
        show_outcome(outcome)
    sys.exit(int(bool(outcome.problems)))


def show_outcome(outcome: RunOutcome) -> None:
    from scale0.pipeline.time_ranges import to_time

    until = "" if outcome.horizon_us is None else f", tables up to {to_time(outcome.horizon_us):%Y-%m-%d %H:%M:%S} UTC"
    if outcome.number is None:
        output.say(f"nothing new{until}")
    else:
        output.say(
            f"{outcome.events:,} new events in {outcome.segments:,} segments{until}"
            f" ({outcome.seconds:.1f} s; manifest {outcome.number})"
        )
    if outcome.restated:
        output.say(f"{outcome.restated:,} closed hours have changed: see `pipeline show restatements`")
    for file in outcome.ignored:
        output.note(f"ignored: {output.clean(file)}")
    for problem in outcome.problems:
        output.note(f"problem: {output.clean(problem)}")


@contextlib.contextmanager
def shown_progress(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A function that shows (what, done, total)."""
    if quiet or not sys.stderr.isatty():
        yield lambda _what, _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as ProgressBar

    columns = (
        TextColumn("{task.description:<28}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    with ProgressBar(*columns, console=Console(stderr=True), transient=True) as bar:
        row = bar.add_task("starting", total=1)

        def update(what: str, done: int, total: int) -> None:
            bar.update(row, description=what, completed=done, total=max(total, 1))

        yield update

"""`scale0 pipeline`: from what the network recorded to tables, by Spark.

Lives here: the commands that need a Spark session. Never here: how a table is computed, or what only reads
(`pipeline_show`). Invariant: exit 1 if a segment could not be taken; what could be is in the tables.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from scale0.cli.common import output
from scale0.cli.pipeline.locations import TimeOption, no_java, segments_of, warehouse_of, with_warehouse
from scale0.cli.pipeline.progress import shown_progress
from scale0.cli.pipeline.show import show, status

if TYPE_CHECKING:
    from scale0.pipeline.engine.advance import Progress
    from scale0.pipeline.engine.runs import RunOptions, RunOutcome, Start

MASTER: Final = "local[*]"
MEMORY: Final = "3g"
EVERY_SECONDS: Final = 60.0

Command = TypeVar("Command", bound=Callable[..., Any])


@click.group()
def pipeline() -> None:
    """Turn what the network recorded into tables: availability, latency, incidents, trends, forecasts.

    Brokers and Helens write their history as segments; Spark computes the tables from them, and `scale0 report` shows
    them. It needs the extra `pipeline` (pip install 'scale0[pipeline]') and Java 17 or newer.

    \b
    Start here:
      scale0 pipeline run                   take in what is new on this machine, and end
      scale0 pipeline status                what is covered, how far behind, what is missing
      scale0 pipeline show availability     a table, as it is
      scale0 report availability --last 7d  the same, for people
    """


def with_spark(command: Command) -> Command:
    """Give a command all that says where to compute, from what, and how."""
    options = (
        click.option("--segments", multiple=True, metavar="URL", help="Where segments are: a folder, s3://..., again."),
        click.option("--master", default=MASTER, show_default=True, help="Spark's: local[2], spark://HOST:7077, yarn."),
        click.option("--memory", default=MEMORY, show_default=True, help="Of the driver."),
        click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark; may be said again."),
        click.option(
            "--flapping", type=click.Choice(["icinga", "nagios", "sensu"]), help="The formula (default: icinga)."
        ),
        click.option("--flapping-start", type=click.FloatRange(0, 100), help="Percent from which a check flaps."),
        click.option("--flapping-end", type=click.FloatRange(0, 100), help="Percent at which it ends."),
        click.option("--keep-days", type=click.IntRange(1), help="Forget tables of days that are older; 62 at least."),
    )
    for option in reversed(options):
        command = option(command)
    return with_warehouse(command)


@pipeline.command()
@with_spark
@click.option("--until", type=TimeOption(time.time), help="Compute as if this were now.")
@click.option("--rescan", is_flag=True, help="Look for new segments in all days, not only where something changed.")
@click.option("--json", "wants_json", is_flag=True, help="Say as JSON what was done.")
def run(until: int | None, rescan: bool, wants_json: bool, **options: Any) -> None:
    """Take in what is new, bring all tables up to date, and end.

    The cost is that of what is new. Killed anywhere, it is simply run again: each event counts once. Exit code 1: a
    segment was damaged or contradicts what is known; it is named, and everything else is in the tables. A file that is
    no segment is named once, and let be.

    \b
    Examples:
      scale0 pipeline run
      scale0 pipeline run --segments s3://bucket/segments --warehouse /srv/warehouse
      scale0 pipeline run --master spark://10.0.0.1:7077 --warehouse /mnt/shared/warehouse
    """
    from scale0.pipeline.engine import runs

    job = job_of(options, until=until, rescan=rescan)
    with shown_progress(wants_json) as told:
        outcome = runs.run(job, session_of(options), now_us, told)
    finish(outcome, wants_json)


@pipeline.command()
@with_spark
@click.option("--from", "first", type=TimeOption(time.time), required=True, help="The first hour to compute again.")
@click.option("--to", "end", type=TimeOption(time.time), help="Up to here (default: the newest).")
@click.option("--json", "wants_json", is_flag=True, help="Say as JSON what was done.")
def backfill(first: int, end: int | None, wants_json: bool, **options: Any) -> None:
    """Compute tables again from the events that the warehouse holds.

    For other parameters, or after an upgrade that says so. What changes is listed in the table `restatements`. While a
    stream holds the warehouse, the stream does it.

    \b
    Examples:
      scale0 pipeline backfill --from 2026-11-01 --to 2026-11-03
      scale0 pipeline backfill --from 30d
    """
    from scale0.pipeline.engine import runs

    job = job_of(options)
    with shown_progress(wants_json) as told:
        outcome = runs.backfill(job, session_of(options), now_us, told, first, end)
    if outcome is None:
        output.say("queued: the stream that holds this warehouse will do it")
    else:
        finish(outcome, wants_json)


@pipeline.command()
@with_spark
@click.option("--every", default=EVERY_SECONDS, show_default=True, type=click.FloatRange(1), help="Seconds between.")
def stream(every: float, **options: Any) -> None:
    """Keep the tables fresh: a run whenever there are new segments, with one session. Ctrl-C ends it.

    It prints one line that starts with `ready` once the warehouse is its own, and one for each run. While it runs,
    `pipeline run` is refused, and a backfill is handed to it.

    \b
    Example:
      scale0 pipeline stream --every 60
    """
    from scale0.pipeline.engine import runs

    job = job_of(options)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        # From a thread of its own: the signal may come while this one holds the lock of `stop`.
        signal.signal(number, lambda *_: threading.Thread(target=stop.set).start())
    worst = 0
    with shown_progress(False) as told:
        told = saying_first(f"ready {job.warehouse}: a run every {every:g} s; Ctrl-C ends it", told)
        for outcome in runs.stream(job, session_of(options), now_us, told, stop, every):
            tell(outcome)
            worst = max(worst, int(bool(outcome.problems)))
    output.note("stopped")
    sys.exit(worst)


pipeline.add_command(status)
pipeline.add_command(show)


def now_us() -> int:
    """The driver's wall clock; nothing else reads one."""
    return time.time_ns() // 1_000


def job_of(options: dict[str, Any], *, until: int | None = None, rescan: bool = False) -> RunOptions:
    """What the options ask for."""
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


def saying_first(words: str, told: Progress) -> Progress:
    """`told`, which says these words when it is called for the first time: nobody else has the warehouse then."""
    unsaid = [words]

    def heard(what: str, done: int, total: int) -> None:
        while unsaid:
            output.say(unsaid.pop())
        told(what, done, total)

    return heard


def finish(outcome: RunOutcome, wants_json: bool) -> None:
    """Say what was done; exit 1 if something could not be taken."""
    import msgspec

    if wants_json:
        output.say(output.as_json(msgspec.to_builtins(outcome)))
    else:
        tell(outcome)
    sys.exit(int(bool(outcome.problems)))


def tell(outcome: RunOutcome) -> None:
    """One line of what was done, and one for each problem."""
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
        output.say(
            f"{outcome.restated:,} parts that were already closed have changed: see `pipeline show restatements`"
        )
    for file in outcome.ignored:
        output.note(f"ignored: {output.clean(file)}")
    for problem in outcome.problems:
        output.note(f"problem: {output.clean(problem)}")

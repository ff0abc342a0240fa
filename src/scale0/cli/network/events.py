"""`scale0 events`: what happened, from the journal and the segments on this machine.

Lives here: the options of both commands, and where they look. Never here: how a history is read
(`history.segments.reader`) or how an event looks (`events_show`). Invariant: it only reads; no broker is asked, and
none needs to run.
"""

from __future__ import annotations

import heapq
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from scale0.cli.common import errors, output
from scale0.cli.common.authentication import DATA_DIR, LOCAL_FOLDER
from scale0.cli.monitoring.silences import DurationType, TimeType

if TYPE_CHECKING:
    from scale0.history.segments.reader import Event, EventFilter, HistoryReader

DEFAULT_COUNT: Final = 20
MAX_COUNT: Final = 100_000
"""Events that are held in memory to find the last ones."""
FOLLOW_SECONDS: Final = 0.5
"""How often --follow looks again."""
HELENS_FOLDER: Final = Path("monitoring", "helen")
"""Of `scale0 up`, below the broker's folder."""
ENDINGS: Final = (".parquet", ".jsonl", ".csv")
_MICRO: Final = 1_000_000

Command = TypeVar("Command", bound=Callable[..., Any])


def choosing(command: Command) -> Command:
    """The options that say which events, and where they are."""
    wrapped: Any = command
    for option in (
        click.option(
            "--segments", metavar="URL", help="Where the segments are, if the folder does not say: a folder or a URL."
        ),
        click.option(
            "--data-dir",
            "data_dirs",
            multiple=True,
            help=f"The folder of a broker or Helen; may be repeated ({DATA_DIR}, or {LOCAL_FOLDER} with its Helen's).",
        ),
        click.option("--source", default="", metavar="GLOB", help="Only what this broker or Helen recorded."),
        click.option("--ref", default="", metavar="ID", help="Only about this request, task, downtime or incident."),
        click.option("--service", default="", metavar="GLOB", help="Only about this service, method or check."),
        click.option("--identity", default="", metavar="GLOB", help="Only about this client, node, agent or broker."),
        click.option("--kind", default="", metavar="GLOB", help="Only of this kind, as task.completed or 'client.*'."),
    ):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[no-any-return]


@click.group()
def events() -> None:
    """What happened: every event that a broker or Helen on this machine has recorded.

    \b
    Examples:
      scale0 events tail -f
      scale0 events tail --kind 'client.*' --since 1h
      scale0 events export --to today.parquet --from 2026-05-01T00:00
    """


@events.command()
@choosing
@click.option("--since", type=DurationType(), metavar="TIME", help="All that was recorded in the last 90, 30m, 2h, 1d.")
@click.option(
    "-n", "count", type=click.IntRange(1, MAX_COUNT), help=f"So many, the last ones ({DEFAULT_COUNT}, without --since)."
)
@click.option(
    "-f", "--follow", "--watch", "follow", is_flag=True, help="Go on with what happens from now on, until Ctrl-C."
)
@click.option("--json", "wants_json", is_flag=True, help="One JSON object for each event, on a line of its own.")
def tail(
    since: float | None,
    count: int | None,
    follow: bool,
    wants_json: bool,
    data_dirs: tuple[str, ...],
    segments: str | None,
    **which: Any,
) -> None:
    """Show the last events, and with -f what happens now. They stand in the order in which they were recorded.

    Globs know *, ? and [ab]. What the journal has passed on to segments is there, too. Nobody has to run for it.

    \b
    With --json, an object on each line, with the columns of docs/pipeline.md:
      source, boot, seq           who recorded it, and its number
      time, at                    when it was recorded, and when it happened
      kind, identity, service, ref, attempt, code, state, seconds, waited, histogram, bytes, metrics
      data                        what else there is to say, by kind

    \b
    Examples:
      scale0 events tail
      scale0 events tail -f --kind 'task.*'
      scale0 events tail --identity web-1 --since 2h
      scale0 events tail --ref 0f3a9c --json | jq .state
      scale0 events tail -n 1000 --data-dir var/east-1
    """
    from scale0.cli.network.events_output import show
    from scale0.history.segments.reader import EventFilter

    since_us = None if since is None else int((time.time() - since) * _MICRO)
    choice = EventFilter(**which, clock="time", since_us=since_us)
    troubles: list[str] = []
    histories = opened(data_dirs, segments, troubles)
    if follow and not any(history.live for history in histories):
        raise errors.CommandError("there is no journal here that could be followed", "name its folder with --data-dir")
    found = since_all(histories, choice) if since is not None else last_of(histories, choice, count or DEFAULT_COUNT)
    if since is not None and count is not None:
        found = iter(newest(found, count))
    shown = show(itertools.chain(found, followed(histories, choice)) if follow else found, wants_json, follow)
    if not shown and not wants_json and not follow:
        output.note("no such event; `scale0 events tail -f` waits for the next")
    end(troubles)


@events.command()
@choosing
@click.option(
    "--to", "target", required=True, type=click.Path(path_type=Path, dir_okay=False), help="A .parquet, .jsonl or .csv."
)
@click.option("--from", "starts", type=TimeType(), metavar="WHEN", help="What happened from 2026-05-01T22:00 on.")
@click.option("--to-time", "ends", type=TimeType(), metavar="WHEN", help="What happened before 2026-05-02T06:00.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
def export(
    target: Path,
    starts: float | None,
    ends: float | None,
    force: bool,
    data_dirs: tuple[str, ...],
    segments: str | None,
    **which: Any,
) -> None:
    """Write events to a file, in the order of source and number. Its ending says what kind of file.

    .parquet has the columns and types of a segment, .jsonl is what `tail --json` prints, .csv has JSON in its columns
    `histogram`, `metrics` and `data`. Times are in this machine's zone unless they say another, as +00:00 does.

    \b
    Examples:
      scale0 events export --to all.parquet
      scale0 events export --to checks.csv --kind check.answered --from 2026-05-01T00:00 --to-time 2026-05-02T00:00
      scale0 events export --to web.jsonl --identity 'web-*' --data-dir .scale0/monitoring/helen
    """
    from scale0.cli.network.events_output import write_file
    from scale0.history.segments.reader import EventFilter

    if target.suffix not in ENDINGS:
        raise click.UsageError(f"{target} ends in none of {', '.join(ENDINGS)}")
    if target.exists() and not force:
        raise errors.CommandError(f"{target} is there already", "choose another file, or give --force")
    bounds = (None if one is None else round(one * _MICRO) for one in (starts, ends))
    since_us, until_us = bounds
    choice = EventFilter(**which, clock="at", since_us=since_us, until_us=until_us)
    troubles: list[str] = []
    count = write_file(target, all_tables(opened(data_dirs, segments, troubles), choice))
    output.say(f"{count:,} events in {target}")
    end(troubles)


def opened(data_dirs: tuple[str, ...], segments: str | None, troubles: list[str]) -> list[HistoryReader]:
    """Every history that is meant; what cannot be read is told at once, and kept."""
    from scale0.history.segments.reader import open_history

    def tell(what: str) -> None:
        if what not in troubles:
            troubles.append(what)
            output.note(f"cannot be read: {output.clean(what)}")

    folders = [Path(name) for name in data_dirs or places()]
    for folder in folders:
        if not folder.is_dir():
            step = "name the folder of a broker or Helen with --data-dir, or start one with `scale0 up`"
            raise errors.CommandError(f"there is no folder {folder}", step)
    if segments is not None and len(folders) > 1 and data_dirs:
        raise click.UsageError("--segments goes with one --data-dir")
    if segments is not None:
        return [open_history(folders[0] if data_dirs else None, segments, tell)]
    return [open_history(folder, None, tell) for folder in folders]


def places() -> list[str]:
    """The folder of this machine's network, and that of its Helen if there is one."""
    first = os.environ.get(DATA_DIR) or LOCAL_FOLDER
    helens = Path(first) / HELENS_FOLDER
    return [first, str(helens)] if helens.is_dir() else [first]


def since_all(histories: list[HistoryReader], choice: EventFilter) -> Iterator[Event]:
    """All chosen events, by the time of their recording."""
    from scale0.history.segments.reader import key_of

    return heapq.merge(*(stream for one in histories for stream in streams(one, choice)), key=key_of)


def streams(history: HistoryReader, choice: EventFilter) -> list[Iterator[Event]]:
    """A stream for each source's segments, and one for the journal behind them."""
    from scale0.history.segments.names import day_at
    from scale0.history.segments.reader import events_of

    since = None if choice.since_us is None else day_at(choice.since_us / _MICRO)
    tables = [history.read_segments(pieces, choice) for pieces in history.list_segments(since).values()]
    return [(event for table in one for event in events_of(table)) for one in (*tables, history.read_journal(choice))]


def last_of(histories: list[HistoryReader], choice: EventFilter, count: int) -> Iterator[Event]:
    """The last chosen events of all."""
    from scale0.history.segments.reader import key_of

    return iter(sorted((event for one in histories for event in one.last(count, choice)), key=key_of)[-count:])


def newest(found: Iterator[Event], count: int) -> list[Event]:
    """The last of them."""
    from collections import deque

    return list(deque(found, count))


def followed(histories: list[HistoryReader], choice: EventFilter) -> Iterator[Event]:
    """What the journals get from now on, for ever."""
    from scale0.history.segments.reader import events_of, key_of

    while True:
        new = [event for one in histories for table in one.read_journal(choice) for event in events_of(table)]
        yield from sorted(new, key=key_of)
        if not new:
            time.sleep(FOLLOW_SECONDS)


def all_tables(histories: list[HistoryReader], choice: EventFilter) -> Iterator[Any]:
    """All chosen events as tables: source by source."""
    from scale0.history.segments.names import day_at

    since = None if choice.since_us is None else day_at(choice.since_us / _MICRO)
    for history in histories:
        for pieces in history.list_segments(since).values():
            yield from history.read_segments(pieces, choice)
        yield from history.read_journal(choice)


def end(troubles: list[str]) -> None:
    """With 1, if something was left out."""
    if troubles:
        output.note(f"  next: {len(troubles)} could not be read; what they hold is missing above")
        sys.exit(errors.NO)

"""`scale0 events`: show and export events from the journal and the segments on this machine.

The commands only read; no broker is asked, and none needs to run. Text of an event cannot control the terminal. An
exported file is complete under its name, or does not exist.
"""

from __future__ import annotations

import csv
import heapq
import itertools
import os
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from scale0.cli.common import errors, output
from scale0.cli.common.authentication import DATA_DIR, LOCAL_FOLDER
from scale0.cli.common.options import with_options
from scale0.cli.monitoring.silences import DurationType, TimeType

if TYPE_CHECKING:
    from scale0.history.segments.reader import Event, EventFilter, HistoryReader

DEFAULT_COUNT: Final = 20
MAX_COUNT: Final = 100_000
"""Events in memory, to find the last ones."""
FOLLOW_SECONDS: Final = 0.5
"""Between two reads of the journal by --follow."""
HELENS_FOLDER: Final = Path("monitoring", "helen")
"""Of `scale0 up`, relative to the broker's folder."""
SUFFIXES: Final = (".parquet", ".jsonl", ".csv")
TABLE_ROWS: Final = 500
"""More rows are printed line by line, so that the first one appears at once."""
HEADS: Final = ("TIME", "KIND", "IDENTITY", "SERVICE", "STATE", "SECONDS", "REF", "DATA")
WIDTHS: Final = (12, 20, 16, 16, 10, 8, 12)
"""Of the columns of a line; the last one has the rest."""
COLOURS: Final = {
    "client.lost": "red",
    "peer.lost": "red",
    "incident.opened": "red",
    "request.failed": "red",
    "task.attempt_ended": "yellow",
    "client.refused": "yellow",
    "incident.closed": "green",
    "client.joined": "green",
}
NESTED: Final = ("histogram", "metrics")
_MICRO: Final = 1_000_000


filter_options = with_options(
    click.option("--kind", default="", metavar="GLOB", help="Only of this kind, such as task.completed or 'client.*'."),
    click.option("--identity", default="", metavar="GLOB", help="Only about this client, node, agent or broker."),
    click.option("--service", default="", metavar="GLOB", help="Only about this service, method or check."),
    click.option("--ref", default="", metavar="ID", help="Only about this request, task, downtime or incident."),
    click.option("--source", default="", metavar="GLOB", help="Only events that this broker or Helen recorded."),
    click.option(
        "--data-dir",
        "data_dirs",
        multiple=True,
        help=f"The folder of a broker or Helen; may be repeated ({DATA_DIR}, or {LOCAL_FOLDER} with its Helen's).",
    ),
    click.option(
        "--segments", metavar="URL", help="The location of the segments, if it is not in the folder: a folder or a URL."
    ),
)
"""The options that select events and their location."""


@click.group()
def events() -> None:
    """Show or export recorded events.

    The commands read what the brokers and Helens on this machine have recorded.

    \b
    Examples:
      scale0 events tail -f
      scale0 events tail --kind 'client.*' --since 1h
      scale0 events export --to today.parquet --from 2026-05-01T00:00
    """


@events.command()
@filter_options
@click.option("--since", type=DurationType(), metavar="TIME", help="Recorded in the last 90 (seconds), 30m, 2h or 1d.")
@click.option(
    "-n", "count", type=click.IntRange(1, MAX_COUNT), help=f"The number of events ({DEFAULT_COUNT}, without --since)."
)
@click.option("-f", "--follow", "--watch", "follow", is_flag=True, help="Continue with new events, until Ctrl-C.")
@click.option("--json", "wants_json", is_flag=True, help="Print one JSON object for each event, one per line.")
def tail(
    since: float | None,
    count: int | None,
    follow: bool,
    wants_json: bool,
    data_dirs: tuple[str, ...],
    segments: str | None,
    **which: Any,
) -> None:
    """Show the last events, and with -f new ones, in the order in which they were recorded.

    Globs may have *, ? and [ab]. Events that were exported to segments are included. No process needs to run.

    \b
    With --json, an object on each line, with the columns of docs/pipeline.md:
      source, boot, seq           the process that recorded it, and its number
      time, at                    when it was recorded, and when it happened
      kind, identity, service, ref, attempt, code, state, seconds, waited, histogram, bytes, metrics
      data                        further values, by kind

    \b
    Examples:
      scale0 events tail
      scale0 events tail -f --kind 'task.*'
      scale0 events tail --identity web-1 --since 2h
      scale0 events tail --ref 0f3a9c --json | jq .state
      scale0 events tail -n 1000 --data-dir var/east-1
    """
    from scale0.history.segments.reader import EventFilter

    since_us = None if since is None else int((time.time() - since) * _MICRO)
    event_filter = EventFilter(**which, clock="time", since_us=since_us)
    unread: list[str] = []
    histories = open_histories(data_dirs, segments, unread)
    if follow and not any(history.live for history in histories):
        raise errors.CommandError("there is no journal here to follow", "give its folder with --data-dir")
    found = (
        since_all(histories, event_filter)
        if since is not None
        else last_of(histories, event_filter, count or DEFAULT_COUNT)
    )
    if since is not None and count is not None:
        found = iter(newest(found, count))
    shown = show(itertools.chain(found, followed(histories, event_filter)) if follow else found, wants_json, follow)
    if not shown and not wants_json and not follow:
        output.note("no event matches; `scale0 events tail -f` waits for the next one")
    exit_if_unread(unread)


@events.command()
@filter_options
@click.option(
    "--to",
    "target",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="A .parquet, .jsonl or .csv file.",
)
@click.option(
    "--from", "starts", type=TimeType(), metavar="WHEN", help="Only events from this time on, such as 2026-05-01T22:00."
)
@click.option("--to-time", "ends", type=TimeType(), metavar="WHEN", help="Only events before this time.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
def export(
    target: Path,
    starts: float | None,
    ends: float | None,
    force: bool,
    data_dirs: tuple[str, ...],
    segments: str | None,
    **which: Any,
) -> None:
    """Write events to a file, in the order of source and number. The suffix selects the format.

    .parquet has the columns and types of a segment, .jsonl is what `tail --json` prints, .csv has JSON in its columns
    `histogram`, `metrics` and `data`. Times without an offset such as +00:00 are local.

    \b
    Examples:
      scale0 events export --to all.parquet
      scale0 events export --to checks.csv --kind check.answered --from 2026-05-01T00:00 --to-time 2026-05-02T00:00
      scale0 events export --to web.jsonl --identity 'web-*' --data-dir .scale0/monitoring/helen
    """
    from scale0.history.segments.reader import EventFilter

    if target.suffix not in SUFFIXES:
        raise click.UsageError(f"the suffix of {target} must be one of {', '.join(SUFFIXES)}")
    if target.exists() and not force:
        raise errors.CommandError(f"{target} already exists", "choose another file, or give --force")
    bounds = (None if one is None else round(one * _MICRO) for one in (starts, ends))
    since_us, until_us = bounds
    event_filter = EventFilter(**which, clock="at", since_us=since_us, until_us=until_us)
    unread: list[str] = []
    count = write_file(target, all_tables(open_histories(data_dirs, segments, unread), event_filter))
    output.say(f"{count:,} events in {target}")
    exit_if_unread(unread)


def open_histories(data_dirs: tuple[str, ...], segments: str | None, unread: list[str]) -> list[HistoryReader]:
    """A reader for each folder; what cannot be read is reported at once and added to `unread`."""
    from scale0.history.segments.reader import open_history

    def report(what: str) -> None:
        if what not in unread:
            unread.append(what)
            output.note(f"cannot read {output.clean(what)}")

    folders = [Path(name) for name in data_dirs or default_folders()]
    for folder in folders:
        if not folder.is_dir():
            step = "give the folder of a broker or Helen with --data-dir, or start one with `scale0 up`"
            raise errors.CommandError(f"there is no folder {folder}", step)
    if segments is not None and len(folders) > 1 and data_dirs:
        raise click.UsageError("--segments needs exactly one --data-dir")
    if segments is not None:
        return [open_history(folders[0] if data_dirs else None, segments, report)]
    return [open_history(folder, None, report) for folder in folders]


def default_folders() -> list[str]:
    """The folder of this machine's network, and that of its Helen if there is one."""
    first = os.environ.get(DATA_DIR) or LOCAL_FOLDER
    helens = Path(first) / HELENS_FOLDER
    return [first, str(helens)] if helens.is_dir() else [first]


def since_all(histories: list[HistoryReader], event_filter: EventFilter) -> Iterator[Event]:
    """All selected events, by the time of their recording."""
    from scale0.history.segments.reader import key_of

    return heapq.merge(*(stream for one in histories for stream in streams(one, event_filter)), key=key_of)


def streams(history: HistoryReader, event_filter: EventFilter) -> list[Iterator[Event]]:
    """A stream for the segments of each source, and one for the rest of the journal."""
    from scale0.history.segments.names import day_at
    from scale0.history.segments.reader import events_of

    since = None if event_filter.since_us is None else day_at(event_filter.since_us / _MICRO)
    tables = [history.read_segments(pieces, event_filter) for pieces in history.list_segments(since).values()]
    return [
        (event for table in one for event in events_of(table)) for one in (*tables, history.read_journal(event_filter))
    ]


def last_of(histories: list[HistoryReader], event_filter: EventFilter, count: int) -> Iterator[Event]:
    from scale0.history.segments.reader import key_of

    return iter(sorted((event for one in histories for event in one.last(count, event_filter)), key=key_of)[-count:])


def newest(found: Iterator[Event], count: int) -> list[Event]:
    from collections import deque

    return list(deque(found, count))


def followed(histories: list[HistoryReader], event_filter: EventFilter) -> Iterator[Event]:
    """New events of the journals, without end."""
    from scale0.history.segments.reader import events_of, key_of

    while True:
        new = [event for one in histories for table in one.read_journal(event_filter) for event in events_of(table)]
        yield from sorted(new, key=key_of)
        if not new:
            time.sleep(FOLLOW_SECONDS)


def all_tables(histories: list[HistoryReader], event_filter: EventFilter) -> Iterator[Any]:
    """All selected events as tables, source by source."""
    from scale0.history.segments.names import day_at

    since = None if event_filter.since_us is None else day_at(event_filter.since_us / _MICRO)
    for history in histories:
        for pieces in history.list_segments(since).values():
            yield from history.read_segments(pieces, event_filter)
        yield from history.read_journal(event_filter)


def exit_if_unread(unread: list[str]) -> None:
    if unread:
        output.note(f"  next: {len(unread)} could not be read; their events are missing above")
        sys.exit(errors.NO)


def show(events: Iterator[Event], wants_json: bool, follow: bool) -> int:
    if wants_json:
        from scale0.history.events.journal import event_as_json

        return _count_lines(event_as_json(event).decode() for event in events)
    if follow:
        return _count_lines(map(_short, events))
    first = list(itertools.islice(events, TABLE_ROWS + 1))
    if len(first) > TABLE_ROWS:
        return _count_lines(map(_short, itertools.chain(first, events)))
    if first:
        rows = [_cells(event, date=True) for event in first]
        output.table(HEADS, rows, numbers=("SECONDS",), palette={"KIND": COLOURS}, cut="DATA")
    return len(first)


def _count_lines(lines: Iterable[str]) -> int:
    count = 0
    for line in lines:
        output.say(line)
        count += 1
    return count


def _short(event: Event) -> str:
    """One line, with columns aligned as far as they fit."""
    cells = [output.clean(str(cell)).replace("\n", " ") for cell in _cells(event, date=False)]
    padded = [cell.ljust(width) for cell, width in zip(cells, (*WIDTHS, 0), strict=True)]
    if event["kind"] in COLOURS:
        padded[1] = output.painted(padded[1], COLOURS[event["kind"]])
    return "  ".join(padded).rstrip()


def _cells(event: Event, date: bool) -> list[str]:
    at = datetime.fromtimestamp(event["time"] / _MICRO, UTC).astimezone()
    seconds = event["seconds"]
    state = event["state"] or ("" if event["code"] is None else str(event["code"]))
    texts = (event["identity"], event["service"], state, "" if seconds is None else f"{seconds:.3f}", event["ref"])
    shown = at.strftime("%Y-%m-%d %H:%M:%S" if date else "%H:%M:%S.%f")[: None if date else 12]
    return [shown, event["kind"], *(text or "" for text in texts), event["data"] or ""]


def write_file(target: Path, tables: Iterator[Any]) -> int:
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    write = {".parquet": _write_parquet, ".jsonl": _write_lines, ".csv": _write_csv}[target.suffix]
    try:
        count = write(partial, tables)
        partial.rename(target)
    finally:
        partial.unlink(missing_ok=True)
    return count


def _write_parquet(path: Path, tables: Iterator[Any]) -> int:
    import pyarrow.parquet as pq

    from scale0.history.segments.arrow import OPTIONS, SCHEMA

    count = 0
    with pq.ParquetWriter(path, SCHEMA, **OPTIONS) as writer:
        for table in tables:
            writer.write_table(table.cast(SCHEMA))
            count += table.num_rows
    return count


def _write_lines(path: Path, tables: Iterator[Any]) -> int:
    from scale0.history.events.journal import event_as_json
    from scale0.history.segments.reader import events_of

    with path.open("xb") as file:
        return sum(bool(file.write(event_as_json(event) + b"\n")) for table in tables for event in events_of(table))


def _write_csv(path: Path, tables: Iterator[Any]) -> int:
    from scale0.history.events.columns import COLUMN_NAMES
    from scale0.history.segments.reader import events_of

    count = 0
    with path.open("x", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMN_NAMES)
        writer.writeheader()
        for table in tables:
            for event in events_of(table):
                writer.writerow({name: output.csv_cell(_as_csv(name, value)) for name, value in event.items()})
                count += 1
    return count


def _as_csv(name: str, value: Any) -> Any:
    import msgspec

    from scale0.history.events.journal import format_time_us

    if value is None:
        return ""
    if name in ("time", "at"):
        return format_time_us(value)
    return msgspec.json.encode(value).decode() if name in NESTED else value

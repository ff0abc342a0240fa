"""Events as people and programs read them.

Lives here: a line, a table, a file. Never here: which events. Invariants: nothing that an event says is obeyed by a
terminal; a file is whole under its name, or it is not there.
"""

from __future__ import annotations

import csv
import itertools
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from scale0.cli.common import output
from scale0.history.events.journal import event_as_json, format_time_us

if TYPE_CHECKING:
    from scale0.history.segments.reader import Event

TABLE_ROWS: Final = 500
"""More than that goes out line by line: nobody waits for the last one to see the first."""
HEADS: Final = ("TIME", "KIND", "IDENTITY", "SERVICE", "STATE", "SECONDS", "REF", "DATA")
WIDTHS: Final = (12, 20, 16, 16, 10, 8, 12)
"""Of the columns of a line; the last takes what is left."""
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


def show(events: Iterator[Event], wants_json: bool, follow: bool) -> int:
    """Print them; how many there were."""
    if wants_json:
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
    """One line, its columns under those of the line before as far as they fit."""
    cells = [output.clean(str(cell)).replace("\n", " ") for cell in _cells(event, date=False)]
    padded = [cell.ljust(width) for cell, width in zip(cells, (*WIDTHS, 0), strict=True)]
    if event["kind"] in COLOURS:
        padded[1] = output.painted(padded[1], COLOURS[event["kind"]])
    return "  ".join(padded).rstrip()


def _cells(event: Event, date: bool) -> list[str]:
    moment = datetime.fromtimestamp(event["time"] / _MICRO, UTC).astimezone()
    seconds = event["seconds"]
    state = event["state"] or ("" if event["code"] is None else str(event["code"]))
    texts = (event["identity"], event["service"], state, "" if seconds is None else f"{seconds:.3f}", event["ref"])
    shown = moment.strftime("%Y-%m-%d %H:%M:%S" if date else "%H:%M:%S.%f")[: None if date else 12]
    return [shown, event["kind"], *(text or "" for text in texts), event["data"] or ""]


def write_file(target: Path, tables: Iterator[Any]) -> int:
    """Write all of them; how many events."""
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
    from scale0.history.segments.reader import events_of

    count = 0
    with path.open("xb") as file:
        for table in tables:
            for event in events_of(table):
                file.write(event_as_json(event) + b"\n")
                count += 1
    return count


def _write_csv(path: Path, tables: Iterator[Any]) -> int:
    from scale0.history.events.columns import COLUMN_NAMES
    from scale0.history.segments.reader import events_of

    count = 0
    with path.open("x", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMN_NAMES)
        writer.writeheader()
        for table in tables:
            for event in events_of(table):
                writer.writerow({name: _as_csv(name, value) for name, value in event.items()})
                count += 1
    return count


def _as_csv(name: str, value: Any) -> Any:
    if value is None:
        return ""
    if name in ("time", "at"):
        return format_time_us(value)
    return msgspec.json.encode(value).decode() if name in NESTED else value

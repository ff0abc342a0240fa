"""`scale0 explain`: the timeline of a task, a client or a check.

It reads the journal and the segments of this machine, and the warehouse. What is missing on this machine is named, and
does not hide the rest.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from scale0.cli.common import completion_values, output
from scale0.cli.common.errors import NO, CommandError
from scale0.cli.common.options import with_watch
from scale0.cli.network.events import HELENS_FOLDER
from scale0.cli.pipeline.locations import warehouse_of, with_warehouse
from scale0.cli.pipeline.report import PeriodOption

if TYPE_CHECKING:
    from scale0.history.segments.names import Segment
    from scale0.pipeline.explain import ExplainEntry, Explanation, WarehouseFacts
    from scale0.pipeline.explain_sentences import Event

COLOURS: Final = {
    "client.lost": "red",
    "incident.opened": "red",
    "incidents": "red",
    "task.attempt_ended": "yellow",
    "timeline": "yellow",
    "incident.closed": "green",
    "client.joined": "green",
    "task.completed": "green",
}


@click.command()
@click.argument("what", metavar="TASK|CLIENT|CHECK", shell_complete=completion_values.explained)
@with_warehouse
@click.option("--last", type=PeriodOption(), default="7d", show_default=True, help="How far back: 12h, 7d, 4w.")
@click.option("--json", "wants_json", is_flag=True, help="Print a JSON object with all entries.")
@with_watch
def explain(what: str, warehouse: str | None, data_dir: str, last: int, wants_json: bool) -> None:
    """Show the history of a task, a client or a check.

    A task is named by its id; a client, node or agent by its identity; a check by AGENT/CHECK. The command reads the
    journal and the segments of this machine's network, and the warehouse if there is one; each event is shown once.
    Times are UTC. Lines with * were computed by the pipeline. Exits with 1 if nothing is known.

    \b
    Examples:
      scale0 explain 0f3a9c
      scale0 explain node-2 --last 12h
      scale0 explain web-1/disk --json
    """
    tables = warehouse_of(warehouse, data_dir)
    folders = [folder for folder in (Path(data_dir), Path(data_dir) / HELENS_FOLDER) if folder.is_dir()]
    explanation, unread = explained(what, tables, folders, last, is_given=warehouse is not None)
    if not explanation.entries:
        raise CommandError(
            f"nothing is known about {what} in the last {output.span(last / 1e6)}",
            "look further back with --last 90d; --data-dir names the network's folder, --warehouse its tables",
        )
    if wants_json:
        from scale0.pipeline.explain import as_data

        output.say(output.as_json(as_data(explanation)))
    else:
        show(explanation)
    for problem in unread:
        output.note(f"cannot read {output.clean(problem)}")
    sys.exit(NO if unread else 0)


def explained(what: str, tables: Path, folders: list[Path], last: int, is_given: bool) -> tuple[Explanation, list[str]]:
    import msgspec

    from scale0.pipeline.explain import explanation_of

    now_us = time.time_ns() // 1_000
    known = known_in(what, tables, now_us, last, bool(folders), is_given)
    until_us = now_us if folders or known.horizon_us is None else known.horizon_us
    since_us = until_us - last
    unread: list[str] = []
    unseen = list(known.unseen)
    recorded = list(recorded_in(folders, what, since_us, unread, unseen))
    if known.horizon_us is None:
        unseen.append("there are no tables: only what the journal and segments of this machine still contain")
    elif not folders:
        unseen.append("there is no journal here: events after the last pipeline run")
    known = msgspec.structs.replace(known, unseen=tuple(unseen))
    return explanation_of(what, since_us, until_us, recorded, known), unread


def known_in(what: str, tables: Path, now_us: int, last: int, live: bool, is_given: bool) -> WarehouseFacts:
    """The facts in the warehouse; none if there is no warehouse and none was given."""
    from scale0.pipeline.explain import WarehouseFacts, warehouse_facts
    from scale0.pipeline.reports.period import NothingThen
    from scale0.pipeline.reports.query import NoTables, ReportQuery, with_reader

    # Without a journal, the period ends with the tables.
    question = ReportQuery(from_us=now_us - last if live else None, last_us=last)
    try:
        return with_reader(tables, question, lambda reader: warehouse_facts(reader, what))
    except NoTables as error:
        if is_given or not live:
            raise CommandError(
                str(error), "make them with `scale0 pipeline run`, or name a network's --data-dir"
            ) from error
        return WarehouseFacts()
    except NothingThen:
        return WarehouseFacts(unseen=("the tables are older than the requested period",))


def recorded_in(folders: list[Path], what: str, since_us: int, unread: list[str], unseen: list[str]) -> Iterator[Event]:
    """The events in journals and segments about the subject; gaps between segments are added to `unseen`."""
    from scale0.history.segments.names import day_at
    from scale0.history.segments.reader import EventFilter, events_of, open_history
    from scale0.pipeline.explain import is_about

    choice = EventFilter(clock="at", since_us=since_us)
    for folder in folders:
        history = open_history(folder, None, unread.append)
        try:
            pieces = history.list_segments(day_at(since_us / 1e6))
            unseen += gaps_between([piece.segment for of_source in pieces.values() for piece in of_source])
            tables = (table for of_source in pieces.values() for table in history.read_segments(of_source, choice))
            for each in (tables, history.read_journal(choice)):
                for table in each:
                    yield from (event for event in events_of(chosen(table, what)) if is_about(event, what))
        finally:
            history.close()


def gaps_between(segments: list[Segment]) -> list[str]:
    """Gaps that the names of segments prove: their numbers are consecutive, also over restarts."""
    found = []
    for before, after in itertools.pairwise(sorted(segments)):
        if before.source == after.source and after.first_seq > before.last_seq + 1:
            lost = f"{before.last_seq + 1:,} to {after.first_seq - 1:,}"
            found.append(f"the segments of {before.source} have a gap: its events {lost} are missing")
    return found


def chosen(table: Any, what: str) -> Any:
    """The rows that may be about the subject, so that the others need not become Python objects."""
    import pyarrow as pa
    import pyarrow.compute as pc

    names = {what, what.partition("/")[0]}
    mask = pc.or_kleene(pc.equal(table["ref"], what), pc.is_in(table["identity"], pa.array(sorted(names), pa.string())))
    return table.filter(mask)


def show(explanation: Explanation) -> None:
    from scale0.pipeline.reports.formatting import moment

    output.say(f"{explanation.sort} {output.clean(explanation.what)}: {output.clean(explanation.summary)}")
    output.say()
    previous = explanation.entries[0].at_us
    for entry in explanation.entries:
        gap = (entry.at_us - previous) / 1e6
        output.say(line_of(entry, gap))
        previous = entry.at_us
    output.say()
    for unseen in explanation.unseen:
        output.say(f"not covered: {output.clean(unseen)}")
    output.say(f"covered: {moment(explanation.since_us)} to {moment(explanation.until_us)} UTC")
    if explanation.others:
        output.note(f"  next: {'; '.join(f'scale0 explain {output.clean(name)}' for name in explanation.others[:3])}")


def line_of(entry: ExplainEntry, gap: float) -> str:
    from scale0.pipeline.reports.formatting import duration
    from scale0.pipeline.time_ranges import to_time

    at = to_time(entry.at_us)
    stamp = f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d}"
    mark = "" if entry.id or entry.kind == "routine" else "* "
    after = f"+{duration(gap)}" if gap > 0 else ""
    text = output.clean(f"{mark}{entry.text}").replace("\n", " ")
    colour = COLOURS.get(entry.kind)
    return f"{stamp}  {after:>12}  {output.painted(text, colour) if colour else text}"

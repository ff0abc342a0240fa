"""Builds one timeline of everything that happened to a task, a client or a check.

The warehouse supplies events and computed intervals; the command adds events of the local journal. Each event appears
once, by (source, boot, seq). Computed entries are marked as such, and missing data is reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal

import msgspec

from scale0.history.events.columns import COLUMN_NAMES
from scale0.pipeline.explain_sentences import Event, is_routine, routine_sentence, sentence_of
from scale0.pipeline.reports.availability import Interval, join_intervals
from scale0.pipeline.reports.data_quality import holes_of, restatements_of
from scale0.pipeline.reports.formatting import counted, duration, moment
from scale0.pipeline.reports.query import ReportReader
from scale0.pipeline.time_ranges import to_time

MAX_EVENTS: Final = 200_000
"""Newest events read from the warehouse. If there are more, the explanation says so."""

Sort = Literal["task", "client", "check"]
_TIMES: Final = ("time", "at")
_COLUMNS: Final = ", ".join(f'epoch_us("{name}")' if name in _TIMES else f'"{name}"' for name in COLUMN_NAMES)
AGENT_KINDS: Final = ("client.joined", "client.left", "client.lost", "client.replaced")
DOWNTIMES: Final = ("downtime.started", "downtime.ended")


class ExplainEntry(msgspec.Struct, frozen=True):
    at_us: int
    until_us: int | None
    """Set if the entry is about an interval."""
    kind: str
    """The event's kind, `routine`, or the name of the table."""
    text: str
    id: str = ""
    """source:boot:seq of the event."""
    order: tuple[int, str, int, int] = (0, "", 0, 0)
    """Order among entries of one instant: events in recording order, then entries from tables."""


class Explanation(msgspec.Struct, frozen=True):
    what: str
    sort: Sort
    since_us: int
    until_us: int
    entries: tuple[ExplainEntry, ...]
    summary: str
    unseen: tuple[str, ...]
    """What is missing, and why."""
    others: tuple[str, ...] = ()
    """Related identities."""


class WarehouseFacts(msgspec.Struct, frozen=True):
    events: tuple[Event, ...] = ()
    computed: tuple[ExplainEntry, ...] = ()
    unseen: tuple[str, ...] = ()
    horizon_us: int | None = None


def is_about(event: Event, what: str) -> bool:
    agent, slash, check = what.partition("/")
    if what in (event["ref"], event["identity"]):
        return True
    if not slash or event["identity"] != agent:
        return False
    if event["kind"] in AGENT_KINDS:
        return True
    return event["service"] == check or (event["kind"] in DOWNTIMES and not event["service"])


def warehouse_facts(reader: ReportReader, what: str) -> WarehouseFacts:
    """Everything the warehouse has about `what` in the reader's period."""
    events = events_of(reader, what)
    tables = (
        *timeline_of(reader, what),
        *incidents_of(reader, what),
        *sessions_of(reader, what),
        *tasks_of(reader, what),
    )
    return WarehouseFacts(tuple(events), tables, tuple(unseen_of(reader, events, what)), reader.period.horizon_us)


def events_of(reader: ReportReader, what: str) -> list[Event]:
    agent, _, check = what.partition("/")
    rows = reader.rows(
        f'SELECT {_COLUMNS} FROM events WHERE "at" >= $since AND "at" < $until AND (ref = $what OR identity = $what'  # noqa: S608
        " OR identity = $agent AND $check <> '' AND (service = $check OR list_contains($kinds, kind)"
        " OR list_contains($downtimes, kind) AND coalesce(service, '') = ''))"
        f' ORDER BY "at" DESC, source DESC, boot DESC, seq DESC LIMIT {MAX_EVENTS + 1:d}',
        ("events",),
        what=what,
        agent=agent,
        check=check,
        kinds=list(AGENT_KINDS),
        downtimes=list(DOWNTIMES),
        since=reader.period.bounds["since"],
        # Include an event at the horizon itself.
        until=to_time(reader.period.to_us + 1),
    )
    return [dict(zip(COLUMN_NAMES, row, strict=True)) for row in reversed(rows)]


def timeline_of(reader: ReportReader, what: str) -> tuple[ExplainEntry, ...]:
    """Intervals in which the subject was not up."""
    rows = reader.rows(
        'SELECT subject_kind, subject, epoch_us("from"), epoch_us("to"), "class", reason, evidence FROM timeline'
        " WHERE subject = $what AND \"class\" NOT IN ('up', 'absent') AND \"to\" > $since"
        ' ORDER BY subject_kind, subject, "from"',
        ("timeline",),
        what=what,
        since=reader.period.bounds["since"],
    )
    return tuple(_of_interval(one, reader.period.horizon_us) for one in join_intervals(Interval(*row) for row in rows))


def _of_interval(one: Interval, horizon_us: int) -> ExplainEntry:
    went = f"for {duration((one.to_us - one.from_us) / 1e6)}" if one.to_us < horizon_us else "until now"
    why = f" ({one.reason})" if one.reason and one.reason != one.state else ""
    evidence = f", by {one.evidence}" if one.evidence else ""
    text = f"the {one.subject_kind} was {one.state} {went}{why}{evidence}"
    return ExplainEntry(one.from_us, one.to_us, "timeline", text, order=(1, "", 0, 0))


def incidents_of(reader: ReportReader, what: str) -> Iterator[ExplainEntry]:
    rows = reader.rows(
        "SELECT epoch_us(opened), epoch_us(closed), down_seconds, worst_state, also_failing FROM incidents"
        " WHERE subject = $what AND opened < $until AND (closed IS NULL OR closed >= $since) ORDER BY opened",
        ("incidents",),
        until_us=reader.period.horizon_us,
        what=what,
        **reader.period.bounds,
    )
    for opened, closed, down, worst, others in rows:
        end = "still open" if closed is None else f"closed {moment(closed)}"
        also = f", {counted(others, 'other subject')} failed at the same time" if others else ""
        text = f"incident: down for {duration(down or 0.0)}, worst state {worst or 'down'}, {end}{also}"
        yield ExplainEntry(opened, closed, "incidents", text, order=(2, "", 0, 0))


def sessions_of(reader: ReportReader, what: str) -> Iterator[ExplainEntry]:
    """Sessions that ended without an event of their own, because the broker was lost."""
    rows = reader.rows(
        'SELECT epoch_us(joined), epoch_us("left"), broker FROM sessions'
        " WHERE identity = $what AND reason = 'broker_lost' AND \"left\" >= $since ORDER BY joined",
        ("sessions",),
        what=what,
        since=reader.period.bounds["since"],
    )
    for joined_us, left_us, broker in rows:
        text = f"its session at {broker} ended when {broker} stopped, after {duration((left_us - joined_us) / 1e6)}"
        yield ExplainEntry(left_us, None, "sessions", text, order=(1, "", 0, 0))


def tasks_of(reader: ReportReader, what: str) -> Iterator[ExplainEntry]:
    rows = reader.rows(
        "SELECT epoch_us(coalesce(ended, submitted)), outcome, attempts, wait_seconds, delay_seconds, run_seconds,"
        " wasted_seconds FROM tasks WHERE ref = $what ORDER BY submitted",
        ("tasks",),
        what=what,
    )
    for at_us, outcome, attempts, waited, delayed, ran, wasted in rows:
        parts = (("waited", waited), ("delayed", delayed), ("ran", ran), ("wasted", wasted))
        times = ", ".join(f"{name} {duration(value)}" for name, value in parts if value)
        text = f"total: {outcome}, {counted(attempts or 0, 'attempt')}{f', {times}' if times else ''}"
        yield ExplainEntry(at_us, None, "tasks", text, order=(3, "", 0, 0))


def unseen_of(reader: ReportReader, events: list[Event], what: str) -> list[str]:
    """Gaps in the sources involved (or in all sources), and restated tables."""
    sources = {event["source"] for event in events}
    found = [
        f"{one.source} has {counted(one.holes, 'hole')} on {moment(one.day_us)}: events of that day are missing"
        for one in holes_of(reader)
        if one.holes and (not sources or one.source in sources)
    ]
    restated = restatements_of(reader, ("timeline", "incidents", "sessions", "tasks"))
    if restated:
        found.append(
            f"{counted(len(restated), 'part')} of the tables changed afterwards: see `scale0 report` with --why"
        )
    if len(events) > MAX_EVENTS:
        found.append(f"only the newest {MAX_EVENTS:,} events of {what} are shown: choose a shorter --last")
    return found


def explanation_of(
    what: str, since_us: int, until_us: int, recorded: Iterable[Event], known: WarehouseFacts
) -> Explanation:
    """Merge all sources into one explanation. `recorded` are events found on this machine; they may repeat the
    warehouse's.
    """
    events: dict[tuple[str, int, int], Event] = {}
    for event in (*known.events, *recorded):
        if since_us <= event["at"] <= until_us:
            events.setdefault((event["source"], event["boot"], event["seq"]), event)
    selected = sorted(events.values(), key=order_of)
    sort = sort_of(what, selected, known.computed)
    entries = [*entries_of(selected, sort), *(one for one in known.computed if (one.until_us or one.at_us) >= since_us)]
    entries.sort(key=lambda one: (one.at_us, one.order))
    return Explanation(
        what=what,
        sort=sort,
        since_us=since_us,
        until_us=until_us,
        entries=tuple(entries),
        summary=summary_of(selected, sort),
        unseen=known.unseen,
        others=tuple(others_of(selected, sort)),
    )


def order_of(event: Event) -> tuple[int, str, int, int]:
    return event["at"], event["source"], event["boot"], event["seq"]


def sort_of(what: str, events: list[Event], computed: Iterable[ExplainEntry]) -> Sort:
    if any(event["ref"] == what for event in events) or any(one.kind == "tasks" for one in computed):
        return "task"
    is_client = any(event["identity"] == what for event in events)
    return "check" if "/" in what and not is_client else "client"


def entries_of(events: list[Event], sort: Sort) -> list[ExplainEntry]:
    """One entry for each significant event; routine events between them are summarised in one entry."""
    found: list[ExplainEntry] = []
    routine: list[Event] = []
    answered: str | None = None

    def flush() -> None:
        if routine:
            first, last = routine[0], routine[-1]
            until = last["at"] if last is not first else None
            found.append(
                ExplainEntry(first["at"], until, "routine", routine_sentence(routine), order=(0, *order_of(first)[1:]))
            )
            routine.clear()

    for event in events:
        is_same = is_routine(event, sort, answered)
        if sort == "check" and event["kind"] == "check.answered":
            if event["state"] != answered:
                flush()
            answered = event["state"]
        if is_same:
            routine.append(event)
            continue
        flush()
        key = f"{event['source']}:{event['boot']}:{event['seq']}"
        order = (0, *order_of(event)[1:])
        found.append(ExplainEntry(event["at"], None, event["kind"], sentence_of(event, sort), key, order))
    flush()
    return found


def summary_of(events: list[Event], sort: Sort) -> str:
    if not events:
        return "no event was recorded in this period"
    first, last = events[0], events[-1]
    span = duration((last["at"] - first["at"]) / 1e6)
    if sort == "task":
        ended = [event for event in events if event["kind"] == "task.completed"]
        state = ended[-1]["state"] if ended else "not finished"
        return f"{state}; {counted(len(events), 'event')} within {span}"
    return f"{counted(len(events), 'event')} within {span}, the last {last['kind']} at {moment(last['at'])}"


def others_of(events: list[Event], sort: Sort) -> list[str]:
    if sort != "task":
        return []
    return list(dict.fromkeys(event["identity"] for event in events if event["identity"]))


def as_data(explanation: Explanation) -> dict[str, Any]:
    """JSON output; times are ISO 8601 text in UTC."""

    def time(us: int | None) -> str | None:
        return None if us is None else to_time(us).isoformat().replace("+00:00", "Z")

    return {
        "what": explanation.what,
        "sort": explanation.sort,
        "since": time(explanation.since_us),
        "until": time(explanation.until_us),
        "summary": explanation.summary,
        "entries": [
            {"at": time(one.at_us), "until": time(one.until_us), "kind": one.kind, "text": one.text, "id": one.id}
            for one in explanation.entries
        ],
        "unseen": list(explanation.unseen),
        "others": list(explanation.others),
    }

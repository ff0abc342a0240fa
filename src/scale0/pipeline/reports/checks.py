"""The checks report: states, problems, flapping, and the slowest checks.

Run times are read from the newest hours of events that hold at most MAX_RESULTS, and the report states which.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from scale0.pipeline.reports.availability import Sums, interval_tables, sums_of
from scale0.pipeline.reports.data_quality import document
from scale0.pipeline.reports.formatting import counted
from scale0.pipeline.reports.model import ReportColumn, ReportDocument, ReportTable
from scale0.pipeline.reports.period import utc_text
from scale0.pipeline.reports.query import Filters, ReportReader, Row, known_subjects, subject_condition
from scale0.pipeline.time_ranges import DAY_US, HOUR_US

TABLES: Final = ("check_states", "timeline", "availability")
MAX_RESULTS: Final = 300_000
"""Results whose run times are read: about 50 ms."""
MAX_SLOW: Final = 20
ANSWERED: Final = "check.answered"
STATES: Final = ("critical", "unknown", "warning", "ok")

COLUMNS: Final = (
    ReportColumn("subject", "Check"),
    ReportColumn("state", "State"),
    ReportColumn("problems", "Problems", "count"),
    ReportColumn("changes", "Changes", "count"),
    ReportColumn("down_seconds", "Down", "seconds"),
    ReportColumn("soft_seconds", "Soft", "seconds", detail=True),
    ReportColumn("unobserved_seconds", "Unobserved", "seconds"),
    ReportColumn("availability_low", "At least", "availability"),
    ReportColumn("availability_high", "At most", "availability", detail=True),
    ReportColumn("incidents", "Incidents", "count"),
    ReportColumn("flapped", "Flapped", "count"),
    ReportColumn("flapping", "Flapping", "yes", detail=True),
    ReportColumn("flapping_percent_max", "Flapping %", "number", detail=True),
)
SLOW: Final = (
    ReportColumn("subject", "Check"),
    ReportColumn("results", "Results", "count"),
    ReportColumn("p50_seconds", "p50", "seconds"),
    ReportColumn("p95_seconds", "p95", "seconds"),
    ReportColumn("max_seconds", "Max", "seconds"),
)


class StateChanges(NamedTuple):
    """Rows of `check_states` of one check in the period."""

    subject: str
    changes: int
    problems: int
    """How often it entered a hard problem, or changed to another one."""
    flapped: int
    """How often it started to flap."""
    flapping_percent: float | None


class CurrentStates(NamedTuple):
    """At the end of the period."""

    state: str | None
    flapping: bool


def changes_of(reader: ReportReader) -> dict[str, StateChanges]:
    condition, names = subject_condition(only_checks(reader.filters))
    rows = reader.rows(
        # A row is a change of state, hardness or flapping: the row before shows which.
        "SELECT subject, count(*), count_if(hard AND state <> 'ok' AND (NOT before_hard OR before_state <> state)),"  # noqa: S608
        " count_if(flapping AND NOT before_flapping), max(flapping_percent) FROM (SELECT *,"
        " coalesce(lag(hard) OVER each, false) AS before_hard,"
        " coalesce(lag(state) OVER each, previous) AS before_state,"
        " coalesce(lag(flapping) OVER each, false) AS before_flapping"
        " FROM (SELECT *, 'check' AS subject_kind, agent || '/' || \"check\" AS subject FROM check_states)"
        f' WHERE {condition} WINDOW each AS (PARTITION BY subject ORDER BY "time", id))'
        ' WHERE "time" >= $since AND "time" < $until GROUP BY subject',
        ("check_states",),
        **reader.period.bounds,
        **names,
    )
    return {row[0]: StateChanges(*row) for row in rows}


def now_of(reader: ReportReader) -> dict[str, CurrentStates]:
    """The last piece of every check's timeline."""
    condition, names = subject_condition(only_checks(reader.filters))
    rows = reader.rows(
        'SELECT subject, arg_max("class", "from"), arg_max(state, "from"), arg_max(coalesce(flapping, false), "from")'  # noqa: S608
        f" FROM timeline WHERE subject_kind = 'check' AND \"from\" < $until AND {condition} GROUP BY subject",
        ("timeline",),
        since_us=reader.period.to_us - 1,
        **reader.period.bounds,
        **names,
    )
    return {
        subject: CurrentStates(state if kind in ("up", "down") else kind, flapping)
        for subject, kind, state, flapping in rows
    }


def only_checks(filters: Filters) -> Filters:
    return Filters(subject=filters.subject, agent=filters.agent, check=filters.check)


def slow_of(reader: ReportReader) -> tuple[list[Row], int]:
    """Run times, and the start of the hours that were read."""
    since_us = newest_hours(reader)
    condition, names = subject_condition(only_checks(reader.filters))
    rows = reader.rows(
        # One aggregate computes both ranks, and names are concatenated once for each check, not for each result.
        "SELECT subject, results, ranks[1], ranks[2] AS p95, longest FROM (SELECT 'check' AS subject_kind,"  # noqa: S608
        " identity || '/' || service AS subject, count(*) AS results, quantile_disc(seconds, [0.5, 0.95]) AS ranks,"
        f" max(seconds) AS longest FROM events WHERE kind = '{ANSWERED}' AND seconds >= 0"
        ' AND "at" >= $since AND "at" < $until GROUP BY identity, service)'
        f" WHERE {condition} ORDER BY p95 DESC, subject LIMIT {MAX_SLOW:d}",
        ("events",),
        since_us=since_us,
        **reader.period.bounds,
        **names,
    )
    return rows, since_us


def newest_hours(reader: ReportReader) -> int:
    """The start of the newest hours with at most MAX_RESULTS, from the counts in the manifest."""
    period, total = reader.period, 0
    earliest = (period.to_us - 1) // HOUR_US * HOUR_US
    for day in range((period.to_us - 1) // DAY_US, period.from_us // DAY_US - 1, -1):
        counts: dict[int, int] = {}
        for file in reader.warehouse.events_files(reader.manifest, day):
            for hour, kinds in file.hours.items():
                counts[hour] = counts.get(hour, 0) + kinds.get(ANSWERED, 0)
        for hour in sorted(counts, reverse=True):
            start_us = hour * HOUR_US
            if start_us >= period.to_us or start_us < period.from_us:
                continue
            total += counts[hour]
            if total > MAX_RESULTS:
                return earliest
            earliest = start_us
    return period.from_us


def report(reader: ReportReader) -> ReportDocument:
    sums = [one for one in sums_of(reader) if one.subject_kind == "check"]
    changes, now, (slow, slow_since_us) = changes_of(reader), now_of(reader), slow_of(reader)
    rows = [_row(one, changes.get(one.subject), now.get(one.subject)) for one in sums]
    rows.sort(key=lambda row: (-float(row[4]), -row[2], -row[3], str(row[0])))
    flapping = sorted((row for row in rows if row[10] or row[11]), key=lambda row: (-row[10], -(row[12] or 0)))
    flap_columns = tuple(COLUMNS[at] for at in (0, 1, 10, 3, 12))
    note = f"Run times are of results since {utc_text(slow_since_us)}: the period has too many."
    return document(
        reader,
        "checks",
        _summary(sums, now, len(flapping)),
        (
            _states(sums, now),
            ReportTable("checks", "Checks, most problems first", COLUMNS, tuple(rows), "no checks"),
            ReportTable(
                "flapping",
                "Checks that flapped",
                tuple(ReportColumn(c.name, c.head, c.unit) for c in flap_columns),
                tuple(tuple(row[at] for at in (0, 1, 10, 3, 12)) for row in flapping),
                "none flapped",
            ),
            ReportTable("slowest", "Slowest checks", SLOW, tuple(slow), "no check was answered"),
            *interval_tables(reader, "check"),
        ),
        reads=TABLES,
        notes=(note,) if slow_since_us > reader.period.from_us else (),
        found=bool(sums),
        known=known_subjects(reader, ("check",)) if not sums and reader.filters.any else (),
    )


def _row(one: Sums, changes: StateChanges | None, now: CurrentStates | None) -> Row:
    made = changes or StateChanges(one.subject, 0, 0, 0, None)
    return (
        *(one.subject, _state(now), made.problems, made.changes, one.down / 1e6, one.soft / 1e6, one.unobserved / 1e6),
        *(one.low, one.high, one.incidents, made.flapped, bool(now and now.flapping), made.flapping_percent),
    )


def _state(now: CurrentStates | None) -> str:
    """A check without a current piece is absent."""
    return "absent" if now is None else now.state or "unobserved"


def _states(sums: list[Sums], now: dict[str, CurrentStates]) -> ReportTable:
    counts: dict[str, int] = {}
    for one in sums:
        state = _state(now.get(one.subject))
        counts[state] = counts.get(state, 0) + 1
    order = (*STATES, *sorted(set(counts) - set(STATES)))
    rows = tuple((state, counts[state]) for state in order if state in counts)
    columns = (ReportColumn("state", "State"), ReportColumn("checks", "Checks", "count"))
    return ReportTable("states", "States at the end", columns, rows, "no checks")


def _summary(sums: list[Sums], now: dict[str, CurrentStates], flapping: int) -> str:
    if not sums:
        return "There were no checks."
    bad = sum(_state(now.get(one.subject)) in ("critical", "unknown") for one in sums)
    down = sum(bool(one.down) for one in sums)
    return (
        f"{counted(len(sums), 'check')}; {down:,} had a hard problem, {flapping:,} flapped, and at the end {bad:,}"
        f" {'was' if bad == 1 else 'were'} critical or unknown."
    )

"""The availability report: how long every subject was up, down, in downtime or unobserved, the worst first.

Seconds are summed as whole microseconds; the bounds of availability are computed from the sums, never from other
shares.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from scale0.pipeline.reports.data_quality import document
from scale0.pipeline.reports.formatting import availability, counted, duration, share
from scale0.pipeline.reports.model import Cell, ReportColumn, ReportDocument, ReportTable, Strip, Strips
from scale0.pipeline.reports.period import Period
from scale0.pipeline.reports.query import ReportReader, Row, known_subjects, subject_condition

MAX_INTERVALS: Final = 10_000
"""The most intervals in a report: choose a subject or a shorter period to see others."""


class Interval(NamedTuple):
    """[from, to) with one class and reason."""

    subject_kind: str
    subject: str
    from_us: int
    to_us: int
    state: str
    """The timeline's class: down, downtime, unobserved or absent."""
    reason: str | None
    evidence: str | None
    """The event that began it; repeated results and hour boundaries begin nothing."""


def intervals_of(reader: ReportReader) -> list[Interval]:
    """Everything that was not up in the period, by subject and time."""
    condition, names = subject_condition(reader.filters)
    rows = reader.rows(
        'SELECT subject_kind, subject, epoch_us("from"), epoch_us("to"), "class", reason, evidence FROM timeline'  # noqa: S608
        f' WHERE "class" <> \'up\' AND "from" < $until AND "to" > $since AND {condition}'
        ' ORDER BY subject_kind, subject, "from"',
        ("timeline",),
        **reader.period.bounds,
        **names,
    )
    return join_intervals(Interval(*row) for row in rows)


def join_intervals(pieces: Iterable[Interval]) -> list[Interval]:
    """Merge touching pieces with the same class and reason; the evidence is that of the first."""
    found: list[Interval] = []
    for piece in pieces:
        last = found[-1] if found else None
        if last is not None and _touches(last, piece):
            found[-1] = last._replace(to_us=piece.to_us)
        else:
            found.append(piece)
    return found


def _touches(one: Interval, next_one: Interval) -> bool:
    same = (one.subject_kind, one.subject, one.state, one.reason)
    return one.to_us == next_one.from_us and same == (
        next_one.subject_kind,
        next_one.subject,
        next_one.state,
        next_one.reason,
    )


def interval_tables(reader: ReportReader, kind: str = "") -> tuple[ReportTable, ...]:
    """For `--why`: the intervals of all subjects, or of those of one kind."""
    if not reader.question.why:
        return ()
    intervals = [one for one in intervals_of(reader) if kind in ("", one.subject_kind)]
    rows = tuple(
        (one.subject, one.subject_kind, one.from_us, one.to_us, (one.to_us - one.from_us) / 1e6, *one[4:])
        for one in intervals[:MAX_INTERVALS]
    )
    table = ReportTable(
        "intervals",
        "When they were not up",
        (
            ReportColumn("subject", "Subject"),
            ReportColumn("subject_kind", "Kind"),
            ReportColumn("from", "From", "time"),
            ReportColumn("to", "To", "time"),
            ReportColumn("seconds", "For", "seconds"),
            ReportColumn("class", "Was"),
            ReportColumn("reason", "Because"),
            ReportColumn("evidence", "Evidence"),
        ),
        rows,
        "every subject was up all the time",
    )
    return (table,)


TABLES: Final = ("availability", "timeline", "incidents")
MAX_STRIPS: Final = 40
"""The worst subjects, which are drawn."""
CLASSES: Final = ("up", "down", "downtime", "unobserved", "absent")
_US: Final = ", ".join(f"sum(round({name}_seconds * 1e6)::BIGINT)::BIGINT AS {name}" for name in (*CLASSES, "soft"))

COLUMNS: Final = (
    ReportColumn("subject", "Subject"),
    ReportColumn("subject_kind", "Kind"),
    ReportColumn("availability_low", "At least", "availability"),
    ReportColumn("availability_high", "At most", "availability"),
    ReportColumn("down_seconds", "Down", "seconds"),
    ReportColumn("downtime_seconds", "Downtime", "seconds"),
    ReportColumn("unobserved_seconds", "Unobserved", "seconds"),
    ReportColumn("incidents", "Incidents", "count"),
    ReportColumn("mttr_seconds", "MTTR", "seconds"),
    ReportColumn("mtbf_seconds", "MTBF", "seconds", detail=True),
    ReportColumn("up_seconds", "Up", "seconds", detail=True),
    ReportColumn("soft_seconds", "Soft", "seconds", detail=True),
    ReportColumn("absent_seconds", "Absent", "seconds", detail=True),
)


class Sums(NamedTuple):
    """One subject in the period, in microseconds."""

    subject_kind: str
    subject: str
    up: int
    down: int
    downtime: int
    unobserved: int
    absent: int
    soft: int
    incidents: int
    closed: int = 0
    """Incidents that closed in the period."""
    closed_down: int = 0
    """Their total down time, including that before the period."""

    @property
    def low(self) -> float | None:
        """The availability if it was down while unobserved."""
        whole = self.up + self.down + self.unobserved
        return self.up / whole if whole else None

    @property
    def high(self) -> float | None:
        """The availability if it was up while unobserved."""
        whole = self.up + self.down + self.unobserved
        return (self.up + self.unobserved) / whole if whole else None


def sums_of(reader: ReportReader) -> list[Sums]:
    condition, names = subject_condition(reader.filters)
    rows = reader.covered(
        f"SELECT subject_kind, subject, {_US}, sum(incidents)::BIGINT FROM availability"  # noqa: S608
        f" WHERE {condition} GROUP BY ALL",
        "availability",
        **names,
    )
    closed = reader.rows(
        "SELECT subject_kind, subject, count(*), sum(round(down_seconds * 1e6)::BIGINT)::BIGINT FROM incidents"  # noqa: S608
        f" WHERE closed >= $since AND closed < $until AND {condition} GROUP BY ALL",
        ("incidents",),
        # An incident is final a minute after it opened: it may be in a later part.
        until_us=reader.period.horizon_us,
        **reader.period.bounds,
        **names,
    )
    ended = {(kind, subject): (count, down) for kind, subject, count, down in closed}
    return [Sums(*(*row, *ended.get(row[:2], (0, 0)))) for row in rows]


def worst_first(sums: list[Sums]) -> list[Sums]:
    """By the upper bound, then by the lower bound; subjects without observed time are last."""

    def key(one: Sums) -> tuple[float, float, int, str, str]:
        low, high = one.low, one.high
        return (2.0 if high is None else high, 2.0 if low is None else low, -one.down, one.subject_kind, one.subject)

    return sorted(sums, key=key)


def cells_of(reader: ReportReader, chosen: list[Sums]) -> dict[tuple[str, str], list[Cell]]:
    """Values by step, of the subjects that are drawn."""
    sums = ", ".join(f"sum(round({name}_seconds * 1e6)::BIGINT)::BIGINT / 1e6" for name in CLASSES)
    rows = reader.covered(
        f"SELECT subject_kind, subject, epoch_us(start) // $unit * $unit AS step, {sums} FROM availability"  # noqa: S608
        " WHERE subject IN $subjects GROUP BY ALL ORDER BY step",
        "availability",
        unit=reader.period.unit_us,
        subjects=[one.subject for one in chosen],
    )
    found: dict[tuple[str, str], list[Cell]] = {}
    for kind, subject, *values in rows:
        found.setdefault((kind, subject), []).append(Cell(*values))
    return found


def report(reader: ReportReader) -> ReportDocument:
    sums = worst_first(sums_of(reader))
    drawn = sums[:MAX_STRIPS]
    cells = cells_of(reader, drawn) if drawn else {}
    table = ReportTable("availability", "Availability, worst first", COLUMNS, tuple(map(_row, sums)), "no subjects")
    return document(
        reader,
        "availability",
        _summary(sums),
        (table, *interval_tables(reader)),
        reads=TABLES,
        plots=(_strips(reader.period, sums, cells),) if cells else (),
        notes=_own_notes(sums),
        found=bool(sums),
        known=known_subjects(reader) if not sums and reader.filters.any else (),
    )


def _row(one: Sums) -> Row:
    return (
        one.subject,
        one.subject_kind,
        one.low,
        one.high,
        one.down / 1e6,
        one.downtime / 1e6,
        one.unobserved / 1e6,
        one.incidents,
        one.closed_down / 1e6 / one.closed if one.closed else None,
        one.up / 1e6 / one.incidents if one.incidents else None,
        one.up / 1e6,
        one.soft / 1e6,
        one.absent / 1e6,
    )


def _strips(period: Period, sums: list[Sums], cells: dict[tuple[str, str], list[Cell]]) -> Strips:
    drawn = [one for one in sums if (one.subject_kind, one.subject) in cells]
    strips = tuple(
        Strip(f"{one.subject_kind} {one.subject}", tuple(cells[one[:2]]), one.low, one.high) for one in drawn
    )
    left_out = f" The {len(strips)} worst of {len(sums):,} are shown." if len(strips) < len(sums) else ""
    about = f"For each subject, its state in each {period.unit}: up, down, downtime, or not observed.{left_out}"
    return Strips(f"Availability by {period.unit}", about, period.unit_us, strips)


def _summary(sums: list[Sums]) -> str:
    if not sums:
        return "There were no subjects."
    down = [one for one in sums if one.down]
    if not down:
        return f"{counted(len(sums), 'subject')}; none was down."
    worst = down[0]
    low, high = availability(worst.low or 0), availability(worst.high or 0)
    span = low if low == high else f"{low} to {high}"
    return (
        f"{counted(len(sums), 'subject')}; {len(down):,} of them {'was' if len(down) == 1 else 'were'} down, the worst"
        f" {worst.subject_kind} {worst.subject} for {duration(worst.down / 1e6)} ({span})."
    )


def _own_notes(sums: list[Sums]) -> tuple[str, ...]:
    whole = sum(one.up + one.down + one.downtime + one.unobserved for one in sums)
    unobserved = sum(one.unobserved for one in sums)
    if not whole or not unobserved:
        return ()
    unseen = f"{share(unobserved / whole)} of the subjects' time was not observed"
    return (f"{unseen}: availability lies between at least and at most.",)

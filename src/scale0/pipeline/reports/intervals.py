"""The intervals behind an availability: when a subject was not up, and which event says so.

Lives here: the timeline, joined where its pieces touch. Never here: sums. Invariant: pieces of a subject that touch and
have the same class and reason are one interval, by the evidence of its first; nothing else is joined.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from scale0.pipeline.reports import subjects
from scale0.pipeline.reports.model import ReportColumn, ReportTable
from scale0.pipeline.reports.query import ReportReader

MAX_INTERVALS: Final = 10_000
"""More than that nobody reads: choose a subject, or a shorter period."""


class Interval(NamedTuple):
    """[from, to) in which a subject was one thing, for one reason."""

    subject_kind: str
    subject: str
    from_us: int
    to_us: int
    state: str
    """down, downtime, unobserved or absent: the timeline's class."""
    reason: str | None
    evidence: str | None
    """The event by which it began; results that say the same again, and an hour's border, begin nothing."""


def intervals_of(desk: ReportReader) -> list[Interval]:
    """Everything that was not up in the period, by subject and time."""
    meant, names = subjects.condition(desk.filters)
    rows = desk.rows(
        'SELECT subject_kind, subject, epoch_us("from"), epoch_us("to"), "class", reason, evidence FROM timeline'  # noqa: S608
        f' WHERE "class" <> \'up\' AND "from" < $until AND "to" > $since AND {meant}'
        ' ORDER BY subject_kind, subject, "from"',
        ("timeline",),
        **desk.period.bounds,
        **names,
    )
    return joined(Interval(*row) for row in rows)


def joined(pieces: Iterable[Interval]) -> list[Interval]:
    """Pieces in order, as intervals."""
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


def interval_table(intervals: list[Interval]) -> ReportTable:
    """As `--why` lists them."""
    rows = tuple(
        (one.subject, one.subject_kind, one.from_us, one.to_us, (one.to_us - one.from_us) / 1e6, *one[4:])
        for one in intervals[:MAX_INTERVALS]
    )
    return ReportTable(
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

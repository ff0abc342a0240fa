"""Intervals of the timeline in which subjects were not up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from scale0.pipeline.reports import subjects
from scale0.pipeline.reports.model import ReportColumn, ReportTable
from scale0.pipeline.reports.query import ReportReader

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


def interval_table(intervals: list[Interval]) -> ReportTable:
    """For `--why`."""
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

"""The tables of one warehouse as plain intervals and rows, in the words in which truths are planted; in microseconds.

Pieces of a timeline that touch and have the same class are one interval, as docs/tables.md tells readers to do. Only
`scale0.pipeline.reading` is used, so what is found here is what any reader finds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from scale0.pipeline import reading

SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US
DAY_US = 24 * HOUR_US

Span = tuple[int, int]
"""[from, to), in microseconds."""


class Interval(NamedTuple):
    """A time in which a subject was of one class."""

    subject_kind: str
    subject: str
    kind: str
    """The class."""
    from_us: int
    to_us: int
    reasons: frozenset[str]

    @property
    def span(self) -> Span:
        return self.from_us, self.to_us

    def __str__(self) -> str:
        seconds = (self.to_us - self.from_us) / SECOND_US
        return f"{self.subject_kind} {self.subject} {self.kind} for {seconds:.1f} s from {self.from_us}"


class Tables:
    def __init__(self, warehouse: Path) -> None:
        self._base = reading.open_duckdb(warehouse)
        self.intervals = list(self._joined())

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._base.execute(sql, list(values)).fetchall()
        return found

    def one(self, sql: str, *values: Any) -> Any:
        ((cell,),) = self.rows(sql, *values)
        return cell

    def of(self, subject_kind: str, subject: str, *kinds: str) -> list[Interval]:
        """The intervals of a subject, of these classes (none named: all), by time."""
        return [
            each
            for each in self.intervals
            if (each.subject_kind, each.subject) == (subject_kind, subject) and (not kinds or each.kind in kinds)
        ]

    def spans(self, subject_kind: str, subject: str, *kinds: str) -> list[Span]:
        return [each.span for each in self.of(subject_kind, subject, *kinds)]

    def incidents(self, subject_kind: str, subject: str) -> list[tuple[int, int | None, str, float, int]]:
        """opened, closed, worst state, down seconds, how many others failed too."""
        return self.rows(
            "SELECT epoch_us(opened), epoch_us(closed), worst_state, down_seconds, also_failing FROM incidents "
            "WHERE subject_kind = ? AND subject = ? ORDER BY 1",
            *(subject_kind, subject),
        )

    def sessions(self, identity: str) -> list[tuple[int, int | None, str, str]]:
        """joined, left, reason, broker."""
        return self.rows(
            'SELECT epoch_us(joined), epoch_us("left"), reason, broker FROM sessions WHERE identity = ? ORDER BY 1, 2',
            identity,
        )

    def results(self, subject: str) -> list[tuple[int, str]]:
        """Of a check, as they were recorded, once each: at, state."""
        agent, check = subject.split("/")
        rows = self.rows(
            "SELECT DISTINCT epoch_us(\"at\"), state, ref FROM events WHERE kind = 'check.answered' "
            "AND identity = ? AND service = ? AND json_extract(data, '$.scheduled') = 'true' ORDER BY 1",
            *(agent, check),
        )
        return [(at, state) for at, state, _ in rows]

    def hard_problems(self) -> dict[str, list[Span]]:
        """By check: from a hard problem to the ok that ends it."""
        rows = self.rows(
            "SELECT agent || '/' || \"check\", epoch_us(time), state FROM check_states WHERE hard ORDER BY 1, 2"
        )
        found: dict[str, list[Span]] = {}
        since: dict[str, int] = {}
        for subject, at, state in rows:
            if state != "ok":
                since.setdefault(subject, at)
            elif subject in since:
                found.setdefault(subject, []).append((since.pop(subject), at))
        return found

    def flapping(self) -> dict[str, list[Span]]:
        """By check: when the timeline says that it flaps."""
        rows = self.rows('SELECT subject, epoch_us("from"), epoch_us("to") FROM timeline WHERE flapping ORDER BY 1, 2')
        found: dict[str, list[Span]] = {}
        for subject, from_us, to_us in rows:
            spans = found.setdefault(subject, [])
            if spans and spans[-1][1] == from_us:
                spans[-1] = spans[-1][0], to_us
            else:
                spans.append((from_us, to_us))
        return found

    def _joined(self) -> list[Interval]:
        rows = self.rows(
            'SELECT subject_kind, subject, class, epoch_us("from"), epoch_us("to"), reason FROM timeline '
            "ORDER BY 1, 2, 4"
        )
        found: list[Interval] = []
        for subject_kind, subject, kind, from_us, to_us, reason in rows:
            last = found[-1] if found else None
            if last and last[:3] == (subject_kind, subject, kind) and last.to_us == from_us:
                found[-1] = last._replace(to_us=to_us, reasons=last.reasons | {reason})
            else:
                found.append(Interval(subject_kind, subject, kind, from_us, to_us, frozenset({reason})))
        return found


def within(span: Span, other: Span) -> bool:
    return other[0] <= span[0] and span[1] <= other[1]


def unexplained(found: list[Interval], causes: dict[tuple[str, str], list[Span]]) -> list[str]:
    """Intervals that lie in no cause of their subject, in words."""
    return [
        str(each)
        for each in found
        if not any(within(each.span, cause) for cause in causes.get((each.subject_kind, each.subject), ()))
    ]

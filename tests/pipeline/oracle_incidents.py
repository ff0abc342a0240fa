"""Incidents, availability and noise in plain Python: by intervals of microseconds, and once more second by second.

Written as the contract says it and not as Spark computes it; and histories to try them on.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from scale0.pipeline.aggregations.incidents import EDGES, NAMED, SEARCHED
from scale0.pipeline.time_ranges import HOUR_US, SECOND_US, day_of, month_of, to_time
from tests.pipeline.events import START_HOUR, START_US, with_part

Subject = tuple[str, str]

SEVERITY = ("ok", "warning", "unknown", "critical")
TOGETHER_US = 60 * SECOND_US
QUICK_US = 300 * SECOND_US


class Piece(NamedTuple):
    """An interval of a subject's life, not yet cut at hours. Where a subject has no piece it is absent."""

    subject: Subject
    from_us: int
    to_us: int
    kind: str
    state: str | None = None
    flapping: bool | None = None
    reason: str | None = None


class Incident(NamedTuple):
    subject: Subject
    opened_us: int
    closed_us: int | None
    worst_state: str
    down_us: int
    flapping: bool


def us(second: float) -> int:
    return START_US + round(second * SECOND_US)


def piece(subject: Subject, start: float, stop: float, kind: str, **more: Any) -> Piece:
    return Piece(subject, us(start), us(stop), kind, **more)


# As an aggregation gets them.


def cut(pieces: list[Piece], horizon_us: int) -> list[Piece]:
    rows = []
    for one in pieces:
        start = one.from_us
        stop = min(one.to_us, horizon_us)
        while start < stop:
            until = min(stop, (start // HOUR_US + 1) * HOUR_US)
            rows.append(one._replace(from_us=start, to_us=until))
            start = until
    return rows


def timeline_rows(pieces: list[Piece], horizon_us: int) -> list[tuple[Any, ...]]:
    return [
        (*p.subject, to_time(p.from_us), to_time(p.to_us), p.kind, p.reason, "b:1:1", p.state, p.flapping, _hour(p))
        for p in cut(pieces, horizon_us)
    ]


def _hour(one: Piece) -> int:
    return one.from_us // HOUR_US


# Incidents, by intervals.


def incidents(pieces: list[Piece], until_us: int) -> list[Incident]:
    """Every incident that opened before an instant, as it is known there."""
    found = []
    for subject, own in _by_subject(pieces).items():
        found += _incidents_of(subject, own, until_us)
    return sorted(found, key=lambda one: (one.opened_us, one.subject))


def _incidents_of(subject: Subject, own: list[Piece], until_us: int) -> list[Incident]:
    found: list[Incident] = []
    now: Incident | None = None
    reached = 0
    for one in own:
        start, stop = one.from_us, min(one.to_us, until_us)
        if start >= stop:
            continue
        if now is not None and (start > reached or one.kind in ("up", "absent")):
            found.append(now._replace(closed_us=reached))
            now = None
        if now is None and one.kind == "down":
            now = Incident(subject, start, None, "down", 0, False)
        if now is not None:
            worst, down_us = now.worst_state, now.down_us
            if one.kind == "down":
                down_us += stop - start
                worst = max(worst, one.state or "down", key=lambda s: SEVERITY.index(s) if s in SEVERITY else -1)
            now = now._replace(worst_state=worst, down_us=down_us, flapping=now.flapping or bool(one.flapping))
        reached = stop
    if now is not None:
        found.append(now if reached == until_us else now._replace(closed_us=reached))
    return found


def _by_subject(pieces: list[Piece]) -> dict[Subject, list[Piece]]:
    own: dict[Subject, list[Piece]] = defaultdict(list)
    for one in sorted(pieces, key=lambda p: p.from_us):
        own[one.subject].append(one)
    return own


def also_failing(mine: Incident, everyone: list[Incident]) -> tuple[int, list[Subject]]:
    """How many other subjects opened one within the reach, and the first of them."""
    seen = [i for i in everyone if i.opened_us >= mine.opened_us - TOGETHER_US]
    near = [i for i in seen if i.opened_us <= mine.opened_us + TOGETHER_US and i.subject != mine.subject]
    named = dict.fromkeys(i.subject for i in seen[:SEARCHED] if i in near)
    return len({i.subject for i in near}), list(named)[:NAMED]


def incident_table(pieces: list[Piece], horizon_us: int) -> dict[int | None, list[tuple[Any, ...]]]:
    """By part, None for those of the open data set: the rows of the table."""
    everyone = incidents(pieces, horizon_us)
    table: dict[int | None, list[tuple[Any, ...]]] = defaultdict(list)
    for one in everyone:
        count, first = also_failing(one, everyone)
        row = (*one.subject, one.opened_us, one.closed_us, one.worst_state, one.down_us / SECOND_US, one.flapping)
        settled = None if one.closed_us is None else max(one.closed_us, one.opened_us + TOGETHER_US)
        part = None if settled is None or settled >= horizon_us else settled // HOUR_US
        table[part].append((*row, count, first))
    return {part: sorted(rows, key=lambda row: (row[2], row[:2])) for part, rows in table.items()}


def edge_rows(pieces: list[Piece], horizon_us: int) -> list[tuple[Any, ...]]:
    """subject_kind, subject, at, edge, opened, down_us, part."""
    rows: list[tuple[Any, ...]] = []
    for one in incidents(pieces, horizon_us):
        opened = one.opened_us
        rows.append((*one.subject, opened, "opened", opened, None, opened // HOUR_US))
        if one.closed_us is not None:
            closed = one.closed_us
            rows.append((*one.subject, closed, "closed", opened, one.down_us, closed // HOUR_US))
    return sorted(rows, key=lambda row: (row[2], row[:2], row[3]))


def edge_frame(spark: SparkSession, edges: Iterable[tuple[Any, ...]]) -> DataFrame:
    """Rows of `edge_rows` as their data set."""
    rows = [(*e[:2], to_time(e[2]), e[3], to_time(e[4]), *e[5:]) for e in edges]
    return spark.createDataFrame(rows, with_part(EDGES.schema))


# Incidents, second by second: for histories whose every edge is a whole second.


def incidents_by_seconds(pieces: list[Piece], until_us: int) -> list[tuple[Subject, int, int | None, int]]:
    """subject, opened, closed, down seconds."""
    found: list[tuple[Subject, int, int | None, int]] = []
    for subject, own in _by_subject(pieces).items():
        kinds = {second: one.kind for one in own for second in range(one.from_us // SECOND_US, one.to_us // SECOND_US)}
        opened, down = None, 0
        for second in range(START_US // SECOND_US, until_us // SECOND_US):
            kind = kinds.get(second, "absent")
            if kind == "down":
                opened = second if opened is None else opened
                down += 1
            elif kind in ("up", "absent") and opened is not None:
                found.append((subject, opened * SECOND_US, second * SECOND_US, down))
                opened, down = None, 0
        if opened is not None:
            found.append((subject, opened * SECOND_US, None, down))
    return sorted(found, key=lambda one: (one[1], one[0]))


# Availability and noise.


def availability(pieces: list[Piece], start_us: int, end_us: int, horizon_us: int) -> dict[Subject, dict[str, Any]]:
    """Of one period, for the subjects that have a piece or an edge of an incident in it."""
    stop_us = min(end_us, horizon_us)
    sums: dict[Subject, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for one in pieces:
        length = min(one.to_us, stop_us) - max(one.from_us, start_us)
        if length > 0:
            sums[one.subject][one.kind] += length
            sums[one.subject]["soft"] += length if one.kind == "up" and one.reason == "soft" else 0
            sums[one.subject]["flapping"] += length if one.flapping else 0
    for inc in incidents(pieces, horizon_us):
        if start_us <= inc.opened_us < stop_us:
            sums[inc.subject]["opened"] += 1
        if inc.closed_us is not None and start_us <= inc.closed_us < stop_us:
            sums[inc.subject]["closed"] += 1
            sums[inc.subject]["closed_down"] += inc.down_us
    return {subject: _numbers(own, stop_us - start_us) for subject, own in sums.items()}


def _numbers(own: dict[str, int], elapsed_us: int) -> dict[str, Any]:
    up, down, unobserved = own["up"], own["down"], own["unobserved"]
    judged = up + down + unobserved
    absent = elapsed_us - judged - own["downtime"]
    times = {"up": up, "down": down, "downtime": own["downtime"], "unobserved": unobserved, "absent": absent}
    times["soft"] = own["soft"]
    return {f"{name}_seconds": value / SECOND_US for name, value in times.items()} | {
        "availability_low": up / judged if judged else None,
        "availability_high": (up + unobserved) / judged if judged else None,
        "incidents": own["opened"],
        "mttr_seconds": own["closed_down"] / SECOND_US / own["closed"] if own["closed"] else None,
        "mtbf_seconds": up / SECOND_US / own["opened"] if own["opened"] else None,
    }


def noise(pieces: list[Piece], month: int, horizon_us: int) -> list[tuple[Any, ...]]:
    """check, alerts, share closed quickly, flapping seconds, rank."""
    names: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for one in cut(pieces, horizon_us):
        if one.subject[0] == "check" and month_of(day_of(_hour(one))) == month:
            names[one.subject[1].partition("/")[2]][2] += one.to_us - one.from_us if one.flapping else 0
    for inc in incidents(pieces, horizon_us):
        if inc.subject[0] == "check" and month_of(day_of(inc.opened_us // HOUR_US)) == month:
            own = names[inc.subject[1].partition("/")[2]]
            own[0] += 1
            own[1] += inc.closed_us is not None and inc.closed_us - inc.opened_us <= QUICK_US
    ranked = sorted(names.items(), key=lambda item: (-item[1][0], -item[1][2], item[0]))
    return [
        (name, alerts, quick / alerts if alerts else None, flapping / SECOND_US, rank)
        for rank, (name, (alerts, quick, flapping)) in enumerate(ranked, 1)
    ]


# Histories.

KINDS = ("up", "up", "down", "down", "downtime", "unobserved", "absent")


def history(seed: int, subjects: int, hours: int, *, whole_seconds: bool = False) -> tuple[list[Piece], int]:
    """Pieces that like to begin at hours' borders, within the reach of each other; and a horizon in the last hour."""
    chance = random.Random(seed)
    pieces = []
    for number in range(subjects):
        kind = chance.choice(("check", "check", "client", "service", "broker"))
        name = f"agent-{number % 3}/disk/{number}" if kind == "check" else f"{kind}-{number}"
        pieces += _life(chance, (kind, name), hours, 1 if not whole_seconds else SECOND_US)
    last_us = (START_HOUR + hours - 1) * HOUR_US
    horizon_us = last_us + chance.choice((0, 30, 60, 1800, 3599)) * SECOND_US
    return pieces, horizon_us


def later(made: tuple[list[Piece], int], span_us: int) -> tuple[list[Piece], int]:
    """A history and its horizon, so much later."""
    pieces = [one._replace(from_us=one.from_us + span_us, to_us=one.to_us + span_us) for one in made[0]]
    return pieces, made[1] + span_us


def _life(chance: random.Random, subject: Subject, hours: int, step_us: int) -> list[Piece]:
    """A mass of short pieces around the borders, long ones between; now and then the subject is gone for a while."""
    pieces = []
    now = START_US + chance.choice((0, 0, 7, 3540, 3600, 5000)) * SECOND_US
    end = START_US + hours * HOUR_US
    before = ""
    while now < end:
        border = (now // HOUR_US + 1) * HOUR_US
        near = border + chance.choice((-120, -60, -59, -30, -1, 0, 1, 30, 60, 61, 119, 120)) * SECOND_US
        length = chance.choice((1, 10, 30, 60, 61, 120, 299, 300, 301, 1800)) * SECOND_US
        stop = chance.choice((border, near, now + length, now + length, now + chance.randrange(1, HOUR_US)))
        stop = max(now + step_us, stop // step_us * step_us)
        kind = chance.choice([k for k in KINDS if k != before])
        state, reason = None, None
        if subject[0] == "check" and kind in ("up", "down"):
            state = chance.choice(("critical", "unknown") if kind == "down" else ("ok", "warning"))
            reason = chance.choice((None, "soft")) if kind == "up" else "hard"
        flapping = chance.random() < 0.2 if subject[0] == "check" else None
        if kind != "absent" or chance.random() < 0.5:
            pieces.append(Piece(subject, now, stop, kind, state, flapping, reason))
        now, before = stop, kind
    return pieces

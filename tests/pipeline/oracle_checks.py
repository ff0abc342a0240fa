"""The checks aggregation in plain Python: one result after the other, one piece after the other, all microseconds.

It shares no code with the aggregation but the words of the schema: it is what the aggregation is measured by.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any

from scale0.pipeline.time_ranges import to_us

HOUR = 3_600_000_000
STATES = ("ok", "warning", "critical", "unknown")
LONGEST = 366 * 86_400.0


@dataclass
class Row:
    at: int
    id: str
    state: str | None
    vouched: int = 0
    max_attempts: int = 1


@dataclass
class Live:
    id: str
    at: int
    vouched: int
    state: str
    attempt: int = 0
    problem: bool = False
    flapping: bool = False
    weighed: list[str] = field(default_factory=list)
    """The last 21 states that count for flapping."""

    @property
    def changes(self) -> int:
        pairs = list(pairwise(self.weighed))
        return sum(1 << place for place, (one, other) in enumerate(reversed(pairs)) if one != other)


@dataclass
class Out:
    timeline: list[tuple[Any, ...]] = field(default_factory=list)
    states: list[tuple[Any, ...]] = field(default_factory=list)
    carries: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict)


def percent(formula: str, states: list[str]) -> Fraction:
    """Exactly, from the states themselves."""
    changes = [one != other for one, other in pairwise(states)]
    changes = [False] * (20 - len(changes)) + changes
    if formula == "nagios":
        weights = [Fraction(75, 100) + Fraction(50, 100) * place / 19 for place in range(20)]
    else:
        weights = [Fraction(80 + 2 * place, 100) for place in range(20)]
    total = sum((weight for weight, change in zip(weights, changes, strict=True) if change), Fraction(0))
    out = total / 20 * 100
    if formula == "sensu":
        return Fraction(int(out)) if len(states) == 21 else Fraction(0)
    return out


THRESHOLDS = {"icinga": (30, 25), "nagios": (30, 20), "sensu": (60, 20)}


def flaps(formula: str, states: list[str], was: bool) -> bool:
    now, (start, end) = percent(formula, states), THRESHOLDS[formula]
    if was:
        return now > end
    return now > start if formula == "icinga" else now >= start


def seconds_of(number: Any) -> float | None:
    good = isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number <= LONGEST
    return float(number) if good else None


def order(event: dict[str, Any]) -> tuple[Any, ...]:
    return to_us(event["at"]), event["source"], event["boot"], event["seq"]


def name(event: dict[str, Any]) -> str:
    return f"{event['source']}:{event['boot']}:{event['seq']}"


def data_of(event: dict[str, Any]) -> dict[str, Any]:
    try:
        out = json.loads(event["data"] or "null")
    except ValueError:
        return {}
    return out if isinstance(out, dict) else {}


def rows_of(events: list[dict[str, Any]]) -> dict[tuple[str, str], list[Row]]:
    out: dict[tuple[str, str], list[Row]] = {}
    seen: set[tuple[Any, ...]] = set()
    for event in sorted(events, key=order):
        agent, check, at = event["identity"], event["service"], to_us(event["at"])
        if event["kind"] == "check.removed" and agent and check:
            out.setdefault((agent, check), []).append(Row(at, name(event), None))
        data = data_of(event)
        if event["kind"] != "check.answered" or data.get("scheduled") is not True or not agent or not check:
            continue
        if event["ref"]:
            once = (agent, event["ref"], at // HOUR)
            if once in seen:
                continue
            seen.add(once)
        interval, timeout = seconds_of(data.get("interval")), seconds_of(data.get("timeout"))
        vouch = 0.0 if interval is None else interval + (timeout or 0.0)
        attempts = data.get("max_attempts")
        if not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 1:
            attempts = 1
        state = event["state"] if event["state"] in STATES else "unknown"
        row = Row(at, name(event), state, at + round(vouch * 1_000_000), attempts)
        out.setdefault((agent, check), []).append(row)
    return out


def advance(live: Live | None, row: Row, formula: str) -> Live:
    assert row.state is not None
    old = live or Live("", 0, 0, "")
    new = Live(row.id, row.at, row.vouched, row.state, old.attempt, old.problem, old.flapping, list(old.weighed))
    if row.state == "ok":
        new.attempt, new.problem = 0, False
    elif not new.problem:
        new.attempt += 1
        if new.attempt >= row.max_attempts:
            new.attempt, new.problem = 0, True
    if formula != "nagios" or new.problem or row.state == "ok":
        new.weighed = [*new.weighed, row.state][-21:]
        new.flapping = flaps(formula, new.weighed, old.flapping)
    return new


class History:
    """One check from its first result to the horizon."""

    def __init__(self, key: tuple[str, str], out: Out, formula: str) -> None:
        self.key, self.out, self.formula = key, out, formula
        self.live: Live | None = None
        self.piece: tuple[Any, ...] | None = None
        """Its begin, and what holds."""
        self.unobserved = False

    def begin(self, at: int, holds: tuple[Any, ...] | None) -> None:
        if self.piece is not None and self.piece[0] < at:
            self.out.timeline.append((*self.key, self.piece[0], at, *self.piece[1]))
        self.piece = None if holds is None else (at, holds)

    def holds(self) -> tuple[Any, ...]:
        live = self.live
        assert live is not None
        if self.unobserved:
            return ("unobserved", "silent", live.id, None, None)
        if live.state != "ok" and not live.problem:
            return ("up", "soft", live.id, live.state, live.flapping)
        down = live.state in ("critical", "unknown")
        return ("down" if down else "up", live.state, live.id, live.state, live.flapping)

    def hour(self, hour: int) -> None:
        """The carry, and a new piece."""
        live = self.live
        if live is None:
            self.begin(hour * HOUR, None)
            return
        known = (live.changes, len(live.weighed), live.attempt, live.problem, live.flapping)
        row = (*self.key, None, live.id, live.at, live.vouched, live.state, *known, None)
        self.out.carries.setdefault(hour, []).append(row)
        self.unobserved = self.unobserved or live.vouched <= hour * HOUR
        self.begin(hour * HOUR, self.holds())

    def wait(self, since: int, until: int) -> None:
        """From one row to the next: hours go by, and vouching ends."""
        for hour in range(since // HOUR + 1, until // HOUR + 1):
            self._vouching(hour * HOUR)
            self.hour(hour)
        self._vouching(until)

    def _vouching(self, until: int) -> None:
        if self.live is not None and not self.unobserved and self.live.vouched < until:
            self.unobserved = True
            self.begin(self.live.vouched, self.holds())

    def take(self, row: Row) -> None:
        old = self.live
        if row.state is None:
            if old is not None:
                self.live, self.unobserved = None, False
                self.begin(row.at, ("absent", "removed", row.id, None, None))
            return
        new = self.live = advance(old, row, self.formula)
        gap, self.unobserved = self.unobserved, False
        if old is None and self.piece is None:
            self.begin(row.at // HOUR * HOUR, ("absent", "unseen", None, None, None))
        before = None if old is None else (old.state, old.problem or old.state == "ok", old.flapping)
        after = (new.state, new.problem or new.state == "ok", new.flapping)
        if before != after:
            share = float(round(percent(self.formula, new.weighed), 2))
            previous = None if old is None else old.state
            self.out.states.append((*self.key, row.id, row.at, *after[:2], new.attempt, previous, new.flapping, share))
        if before != after or gap:
            self.begin(row.at, self.holds())


def downtimes_of(events: list[dict[str, Any]]) -> list[tuple[int, str, int, int | None, str, str, str]]:
    """Start, id, next word of it, planned end, agent, check, downtime."""
    words: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for event in sorted(events, key=order):
        if event["kind"] in ("downtime.started", "downtime.ended") and event["identity"]:
            key = (event["identity"], event["service"] or "", event["ref"] or "")
            words.setdefault(key, []).append(event)
    out = []
    for key, spoken in words.items():
        for event, after in zip(spoken, [*spoken[1:], None], strict=True):
            if event["kind"] == "downtime.started":
                ends = data_of(event).get("ends")
                good = isinstance(ends, int | float) and not isinstance(ends, bool) and 0 <= ends <= 253_402_300_800
                planned = round(ends * 1_000_000) if good and ends is not None else None
                until = 1 << 62 if after is None else to_us(after["at"])
                out.append((to_us(event["at"]), name(event), until, planned, *key))
    return sorted(out)


def lay_over(piece: tuple[Any, ...], downtimes: list[Any]) -> list[tuple[Any, ...]]:
    """Instant by instant between all starts and ends."""
    agent, check, begin, end, kind, reason, evidence, state, flapping = piece
    if kind == "absent":
        return [piece]
    mine = []
    for at, id_, until, planned, agent_, check_, downtime in downtimes:
        over = min(until, 1 << 62 if planned is None else planned)
        if agent_ == agent and check_ in ("", check) and max(at, begin) < min(over, end):
            mine.append((at, id_, over, downtime))
    cuts = sorted({begin, end, *(min(max(t, begin), end) for one in mine for t in (one[0], one[2]))})
    out: list[tuple[Any, ...]] = []
    for since, until in pairwise(cuts):
        holding = [one for one in mine if one[0] <= since < one[2]]
        holds = (kind, reason, evidence, state, flapping)
        if holding:
            holds = ("downtime", holding[0][3], holding[0][1], state, flapping)
        if out and out[-1][4:] == holds:
            out[-1] = (*out[-1][:3], until, *holds)
        else:
            out.append((agent, check, since, until, *holds))
    return out


def history(events: list[dict[str, Any]], horizon: int, formula: str = "icinga") -> Out:
    events = [event for event in events if to_us(event["at"]) <= horizon]
    out = Out()
    for key, rows in rows_of(events).items():
        one = History(key, out, formula)
        since = rows[0].at
        for row in rows:
            one.wait(since, row.at)
            since = row.at
            one.take(row)
        one.wait(since, horizon)
        one.begin(horizon, None)
    downtimes = downtimes_of(events)
    out.timeline = [part for piece in out.timeline for part in lay_over(piece, downtimes)]
    for at, id_, until, planned, agent, check, downtime in downtimes:
        for hour in range(at // HOUR + 1, horizon // HOUR + 1):
            if hour * HOUR <= until and (planned is None or hour * HOUR < planned):
                nothing = (None,) * 7
                out.carries.setdefault(hour, []).append((agent, check, downtime, id_, at, *nothing, planned))
    return out

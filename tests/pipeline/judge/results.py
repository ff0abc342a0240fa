"""The judge of checks: results one after the other, soft and hard, flapping as the formulas were published.

Neither Spark nor anything of `scale0.pipeline` is used here. Percentages are fractions, so nothing is rounded before it
is compared.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction

from tests.pipeline.judge.seconds import HistoryView, Seen

STATES = 21
ICINGA = [Fraction(80 + 2 * i, 100) for i in range(20)]
NAGIOS = [Fraction(3, 4) + Fraction(1, 2) * Fraction(i, 19) for i in range(20)]
DEFAULTS = {"icinga": (30, 25), "nagios": (30, 20), "sensu": (60, 20)}


@dataclass(frozen=True)
class Formula:
    """How flapping is detected, and between which limits."""

    name: str = "icinga"
    start: float | None = None
    end: float | None = None

    def limits(self) -> tuple[Fraction, Fraction]:
        own = DEFAULTS[self.name]
        return (
            Fraction(own[0] if self.start is None else self.start),
            Fraction(own[1] if self.end is None else self.end),
        )

    def percent(self, history: list[str]) -> Fraction:
        """Of the last 21 states, oldest first; where there are fewer, nothing changed before them."""
        if self.name == "sensu" and len(history) < STATES:
            return Fraction(0)
        states = history[-STATES:]
        states = [states[0]] * (STATES - len(states)) + states if states else ["ok"] * STATES
        weights = NAGIOS if self.name == "nagios" else ICINGA
        changes = (a != b for a, b in itertools.pairwise(states))
        percent = (
            sum((weight for weight, change in zip(weights, changes, strict=True) if change), Fraction(0)) * 100 / 20
        )
        return Fraction(math.floor(percent)) if self.name == "sensu" else percent

    def flaps(self, percent: Fraction, before: bool) -> bool:
        start, end = self.limits()
        if before:
            return percent > end
        return percent > start if self.name == "icinga" else percent >= start


@dataclass(frozen=True)
class Result:
    """A scheduled result, and what the check is after it."""

    event: Seen
    state: str
    vouches_until: int
    hard: bool
    attempt: int
    previous: str | None
    flapping: bool
    percent: Fraction

    @property
    def at(self) -> int:
        return self.event.at

    @property
    def is_down(self) -> bool:
        return self.hard and self.state in ("critical", "unknown")

    @property
    def is_soft(self) -> bool:
        return self.state != "ok" and not self.hard


def counted(events: list[Seen]) -> list[Seen]:
    """Scheduled results, each (agent, ref) once in an hour of `at`."""
    out, known = [], set()
    for one in events:
        if one.kind != "check.answered" or one.data.get("scheduled") is not True:
            continue
        key = (one.identity, one.ref, one.at // 3600)
        if key not in known:
            known.add(key)
            out.append(one)
    return out


def results_of(view: HistoryView, agent: str, check: str, formula: Formula) -> list[Result]:
    """The results of one check, in order. When its definition is removed, all that was known of it goes."""
    out: list[Result] = []
    bad, hard_problem, flapping, previous = 0, False, False, None
    history: list[str] = []
    mine = [one for one in counted(view.events) if (one.identity, one.service) == (agent, check)]
    gone = [one for one in view.events if one.kind == "check.removed" and (one.identity, one.service) == (agent, check)]
    for one in sorted(mine + gone, key=lambda one: one.key):
        if one.kind == "check.removed":
            bad, hard_problem, flapping, previous, history = 0, False, False, None, []
            continue
        state = str(one.row["state"])
        bad = 0 if state == "ok" else bad + 1
        hard_problem = state != "ok" and (hard_problem or bad >= one.data["max_attempts"])
        hard = state == "ok" or hard_problem
        if formula.name != "nagios" or hard:
            history.append(state)
            percent = formula.percent(history)
            flapping = formula.flaps(percent, flapping)
        else:
            percent = formula.percent(history)
        vouches = one.at + int(one.data["interval"]) + int(one.data["timeout"])
        out.append(Result(one, state, vouches, hard, 0 if hard else bad, previous, flapping, percent))
        previous = state
    return out


def checks_of(view: HistoryView) -> list[tuple[str, str]]:
    return sorted({(one.identity, one.service) for one in counted(view.events)})


@dataclass(frozen=True)
class CheckSecond:
    kind: str
    soft: bool = False
    state: str | None = None
    flapping: bool | None = None


ABSENT = CheckSecond("absent")


def check_seconds(view: HistoryView, agent: str, check: str, results: list[Result]) -> list[CheckSecond]:
    out = []
    gone = [one for one in view.events if one.kind == "check.removed" and (one.identity, one.service) == (agent, check)]
    upcoming = list(results)
    latest: Result | None = None
    for now in range(view.horizon):
        while upcoming and upcoming[0].at <= now:
            latest = upcoming.pop(0)
        if latest is None or any(latest.event.key < one.key and one.at <= now for one in gone):
            out.append(ABSENT)
            continue
        if view.in_downtime(agent, check, now):
            kind = "downtime"
        elif now >= latest.vouches_until:
            kind = "unobserved"
        else:
            kind = "down" if latest.is_down else "up"
        # Nobody knows the state of a check after its last result stopped vouching.
        known = now < latest.vouches_until
        state, flapping = (latest.state, latest.flapping) if known else (None, None)
        out.append(CheckSecond(kind, kind == "up" and latest.is_soft, state, flapping))
    return out


def changes(results: list[Result]) -> list[Result]:
    """Those after which (state, hard, flapping) is another than before."""
    out: list[Result] = []
    before: tuple[object, ...] = ()
    for one in results:
        now = (one.state, one.hard, one.flapping)
        if now != before or one.previous is None:
            out.append(one)
        before = now
    return out

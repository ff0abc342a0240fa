"""The judge of numbers: from the seconds of a subject to its availability and its incidents."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.pipeline.judge.results import CheckSecond, Formula, Result, check_seconds, checks_of, results_of
from tests.pipeline.judge.seconds import AGENT, BACKEND, HistoryView

HOUR, DAY = 3600, 86400
CLASSES = ("up", "down", "downtime", "unobserved", "absent")
Subject = tuple[str, str]


@dataclass
class Incident:
    """From the first down second to the next that is up, or in which there is nothing to be down."""

    opened: int
    closed: int | None = None
    down_seconds: int = 0
    flapping: bool = False
    states: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Period:
    """What `availability` says of a subject and a period."""

    seconds: dict[str, int]
    soft: int
    low: float | None
    high: float | None
    incidents: int
    mttr: float | None
    mtbf: float | None


@dataclass
class Verdict:
    """What every subject was in every second, and what follows from it."""

    view: HistoryView
    seconds: dict[Subject, list[CheckSecond]]
    results: dict[tuple[str, str], list[Result]]

    known: dict[Subject, list[Incident]] = field(default_factory=dict)

    def incidents(self, subject: Subject) -> list[Incident]:
        if subject not in self.known:
            self.known[subject] = incidents_of(self.seconds[subject])
        return self.known[subject]

    def period(self, subject: Subject, start: int, length: int) -> Period:
        seconds = self.seconds[subject][start : start + length]
        found = Counter(one.kind for one in seconds)
        counts = {name: found[name] for name in CLASSES}
        inside = range(start, start + length)
        every = self.incidents(subject)
        opened = [one for one in every if one.opened in inside]
        closed = [one for one in every if one.closed is not None and one.closed in inside]
        known = counts["up"] + counts["down"] + counts["unobserved"]
        return Period(
            counts,
            sum(one.soft for one in seconds),
            counts["up"] / known if known else None,
            (counts["up"] + counts["unobserved"]) / known if known else None,
            len(opened),
            sum(one.down_seconds for one in closed) / len(closed) if closed else None,
            counts["up"] / len(opened) if opened else None,
        )


def judge(view: HistoryView, formula: Formula) -> Verdict:
    seconds: dict[Subject, list[CheckSecond]] = {}
    first = max(0, min((one.at for one in view.events), default=view.horizon))
    nothing = [CheckSecond("absent")] * first
    """Before anything happened; a history may begin late in its first day."""
    every = range(first, view.horizon)
    for name in view.brokers():
        seconds["broker", name] = nothing + [CheckSecond(view.broker_class(name, now)) for now in every]
    for name in view.clients(BACKEND):
        seconds["client", name] = nothing + [CheckSecond(view.client_class(name, now)) for now in every]
    for name in view.clients(AGENT):
        seconds["agent", name] = nothing + [CheckSecond(view.agent_class(name, now)) for now in every]
    for name in view.services():
        seconds["service", name] = nothing + [CheckSecond(view.service_class(name, now)) for now in every]
    results = {}
    for agent, check in checks_of(view):
        results[agent, check] = results_of(view, agent, check, formula)
        seconds["check", f"{agent}/{check}"] = check_seconds(view, agent, check, results[agent, check])
    return Verdict(view, seconds, results)


def incidents_of(seconds: list[CheckSecond]) -> list[Incident]:
    out: list[Incident] = []
    current: Incident | None = None
    for now, one in enumerate(seconds):
        if one.kind in ("up", "absent") and current is not None:
            current.closed = now
            current = None
        if one.kind == "down":
            if current is None:
                current = Incident(now)
                out.append(current)
            current.down_seconds += 1
            current.states.add(one.state or "")
        if current is not None and one.flapping:
            current.flapping = True
    return out


def together(verdict: Verdict, within: int = 60) -> dict[tuple[Subject, int], list[tuple[int, Subject]]]:
    """By incident: other subjects that opened one within so many seconds of it, each by its first there, in order."""
    every = [(one.opened, subject) for subject in verdict.seconds for one in verdict.incidents(subject)]
    found: dict[tuple[Subject, int], list[tuple[int, Subject]]] = {}
    for opened, subject in every:
        firsts: dict[Subject, int] = {}
        for other_opened, other in sorted(every):
            if other != subject and abs(other_opened - opened) <= within:
                firsts.setdefault(other, other_opened)
        found[subject, opened] = sorted((first, other) for other, first in firsts.items())
    return found

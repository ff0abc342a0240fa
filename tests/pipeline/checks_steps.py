"""Steps of the checks aggregation as tests take them: plain rows in, sorted plain rows out; and random histories."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from scale0.pipeline.aggregation import Parameters
from scale0.pipeline.aggregations.checks import CheckAggregation
from scale0.pipeline.aggregations.checks_rows import STATE
from scale0.pipeline.time_ranges import TimeRange, hour_of, to_us
from tests.pipeline import oracle_checks as oracle
from tests.pipeline.events import START_HOUR, START_US, event, frame

Event = dict[str, Any]
Rows = list[tuple[Any, ...]]
TIMELINE, STATES, CARRY = "timeline.checks", "check_states", "carry.checks"
TIMES = frozenset({"from", "to", "time"})


def us(second: float) -> int:
    return START_US + round(second * 1_000_000)


def result(second: float, state: str = "ok", *, agent: str = "a1", check: str = "disk", **others: Any) -> Event:
    """A scheduled result; every minute, 10 s to answer, hard at the third."""
    data = {"scheduled": True, "interval": 60.0, "timeout": 10.0, "max_attempts": 3, "message": "x"}
    data |= others.pop("data", {})
    return event(second, "check.answered", identity=agent, service=check, state=state, data=data, **others)


def in_order(rows: Iterable[tuple[Any, ...]]) -> Rows:
    return sorted(rows, key=repr)


def plain(rows: DataFrame) -> Rows:
    """Collected and sorted, times as microseconds, `part` last."""
    columns = [f.unix_micros(f.col(name)).alias(name) if name in TIMES else f.col(name) for name in rows.columns]
    return in_order(tuple(row) for row in rows.select(*columns).collect())


class Steps:
    """The aggregation under a Spark session; it keeps the carry between steps."""

    def __init__(self, spark: SparkSession, **parameters: Any) -> None:
        self.spark, self.parameters = spark, Parameters(**parameters)
        self.state: Rows | None = None

    def step(self, events: Sequence[Event], first: int, end: int, horizon_us: int) -> dict[str, Rows]:
        """All rows of the hours [first, end) after START, by data set."""
        time_range = TimeRange(START_HOUR + first, START_HOUR + end, horizon_us)
        hours = range(time_range.first, time_range.end)
        inside = [one for one in events if hour_of(to_us(one["at"])) in hours and to_us(one["at"]) <= horizon_us]
        rows = frame(self.spark, inside, CheckAggregation.columns)
        state = None if self.state is None else self.spark.createDataFrame(self.state, STATE.schema)
        frames = CheckAggregation().step(state, {"events": rows}, time_range, self.parameters)
        out = {name: plain(one) for name, one in frames.items()}
        self.spark.catalog.clearCache()
        self.state = [row[:-1] for row in out[CARRY] if row[-1] == time_range.end]
        return out

    def steps(self, events: Sequence[Event], cuts: Sequence[int], horizon_us: int) -> dict[str, Rows]:
        out: dict[str, Rows] = {TIMELINE: [], STATES: [], CARRY: []}
        for first, end in pairwise(cuts):
            for name, rows in self.step(events, first, end, horizon_us).items():
                out[name] += rows
        return {name: in_order(rows) for name, rows in out.items()}


def expected(events: Sequence[Event], end: int, horizon_us: int, formula: str = "icinga") -> dict[str, Rows]:
    """What the oracle says of the hours [0, end) after START, in the aggregation's columns."""
    until_us = min(horizon_us, (START_HOUR + end) * oracle.HOUR)
    known = [one for one in events if hour_of(to_us(one["at"])) < START_HOUR + end]
    made = oracle.history(known, min(horizon_us, until_us), formula)
    timeline = [
        ("check", f"{agent}/{check}", since, until, *holds, agent, since // oracle.HOUR)
        for agent, check, since, until, *holds in made.timeline
    ]
    carries = [(*row, hour) for hour, rows in made.carries.items() for row in rows]
    states = [(*row, row[3] // oracle.HOUR) for row in made.states]
    return {TIMELINE: in_order(timeline), STATES: in_order(states), CARRY: in_order(carries)}


ODD = ({"interval": None}, {"interval": -1}, {"interval": "60"}, {"timeout": "x"}, {"max_attempts": 0}, {"timeout": -5})
ODD_MORE = ({"interval": 1e300}, {"interval": [1]}, {"max_attempts": "3"}, {"scheduled": False}, {"scheduled": "true"})


def random_events(seed: int, agents: int, hours: int) -> list[Event]:
    """Histories with everything in them that could go wrong: instants on the hour, equal ones, gaps, nonsense."""
    dice = random.Random(seed)
    out: list[Event] = []
    for agent in (f"a{number}" for number in range(agents)):
        for check in ("disk", "load", "http")[: dice.randint(1, 3)]:
            out += _check(dice, agent, check, hours)
        out += _downtimes(dice, agent, hours)
    dice.shuffle(out)
    for number, one in enumerate(out):
        one["seq"] = number + 1
    return out


def _check(dice: random.Random, agent: str, check: str, hours: int) -> list[Event]:
    out: list[Event] = []
    interval = dice.choice((60, 120, 600, 1800, 3600))
    unrest = dice.choice((0.02, 0.3, 0.7))
    second, state, end = dice.uniform(0, hours * 1800), "ok", hours * 3600
    while second < end:
        if dice.random() < unrest:
            state = dice.choice(("ok", "ok", "warning", "critical", "unknown", "strange"))
        odd = dice.choice((*ODD, *ODD_MORE)) if dice.random() < 0.03 else {}
        data = {"interval": float(interval), "timeout": 10.5, "max_attempts": dice.choice((1, 2, 3, 3))} | odd
        ref = dice.choice((None, "", f"{check}:{second}", f"{check}:{second}"))
        source = dice.choice(("helen-1", "helen-2"))
        one: dict[str, Any] = {"agent": agent, "check": check, "data": data, "source": source, "ref": ref}
        out.append(result(second, state, **one))
        if dice.random() < 0.05:  # the other Helen has it too, a little later
            out.append(result(second + dice.choice((0, 0.25)), state, **one | {"source": "helen-0"}))
        if dice.random() < 0.02:
            out.append(event(second + dice.choice((0, 5, 4000)), "check.removed", identity=agent, service=check))
        second += dice.choice((interval, interval, interval, 0, interval * 5, 0.000001))
        if dice.random() < 0.05:
            second = (second // 3600 + 1) * 3600  # exactly on the hour
    return [one for one in out if one["at"].timestamp() < START_US / 1e6 + end]


def _downtimes(dice: random.Random, agent: str, hours: int) -> list[Event]:
    out = []
    for number in range(dice.choice((0, 1, 2, 4))):
        ref, check = f"d{number % 3}", dice.choice((None, "", "disk"))
        starts = dice.choice((dice.uniform(0, hours * 3600), dice.randrange(hours) * 3600.0))
        lasts = dice.choice((0.0, 900.0, 3600.0, 7200.0, dice.uniform(0, 9000)))
        ends: Any = dice.choice((START_US / 1e6 + starts + lasts, START_US / 1e6 + starts + lasts, None, "soon"))
        about: dict[str, Any] = {"identity": agent, "service": check, "ref": ref}
        out.append(event(starts, "downtime.started", **about, data={"ends": ends}))
        if dice.random() < 0.6:
            ended = starts + dice.choice((0.0, lasts, lasts / 2, 3600.0 - starts % 3600))
            out.append(event(ended, "downtime.ended", **about))
            if dice.random() < 0.3:  # its end was moved: ended and started at one instant
                out.append(event(ended, "downtime.started", **about, data={"ends": ends}))
    return [one for one in out if one["at"].timestamp() < START_US / 1e6 + hours * 3600]

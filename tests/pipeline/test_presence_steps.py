"""The world: one step, a step for each hour, and the oracle agree, whatever happened when.

Promise: PIPE-5
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from scale0.pipeline.aggregations.presence import PresenceAggregation
from tests.pipeline.events import START_US
from tests.pipeline.presence_histories import History, Row, Source, differences, expected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

HOUR = 3600.0
HORIZON = 3 * HOUR + 1234.5
TOGETHER = 16
"""Histories that go through Spark at once, with names of their own: a step costs much more than a row."""


class Turn(NamedTuple):
    """What happens next, to whom, after how long; `quiet`: its source said nothing meanwhile."""

    gap: float
    quiet: bool
    source: int
    what: str
    who: int
    role: str
    services: frozenset[int]
    slots: int
    back: float
    jump: int


WHATS = (
    *("alive", "joined", "joined", "joined", "changed", "left", "lost", "replaced", "seen", "seen", "boot", "hole"),
    *("stopped", "peer.lost", "peer.joined", "downtime.started", "downtime.started", "downtime.ended"),
)
TURNS = st.builds(
    Turn,
    gap=st.sampled_from([0, 0, 0.000001, 1, 30, 60, 149.999999, 150, 150.000001, 200, 700, 2000, HOUR]),
    quiet=st.sampled_from([False, False, False, True]),
    source=st.sampled_from([0, 0, 1, 2]),
    what=st.sampled_from(WHATS),
    who=st.integers(0, 1),
    role=st.sampled_from(["backend", "backend", "backend", "frontend"]),
    services=st.frozensets(st.integers(0, 1)),
    slots=st.integers(0, 4),
    back=st.sampled_from([0, 0, 0.000001, 20, 200, 1000, HOUR]),
    jump=st.sampled_from([0, 0, 0, 3, -2]),
)
"""A gap of an hour ends exactly on the next one."""


def told(turns: list[Turn], tag: str) -> list[Row]:
    """A history of two brokers and a Helen."""
    sources = [Source(f"{tag}one"), Source(f"{tag}two"), Source(f"{tag}helen", started=False)]
    last = dict.fromkeys(range(3), -1.0)
    second = 0.0
    for turn in turns:
        second = (second // HOUR + 1) * HOUR if turn.gap == HOUR else round(second + turn.gap, 6)
        source = sources[turn.source]
        if last[turn.source] < 0:
            source.boot(second)
        else:
            if not turn.quiet:
                source.alive(last[turn.source] + 100, second - 0.5, every=100)
            do(turn, source, sources[turn.source - 1].name, second, tag)
        last[turn.source] = second
    for number, source in enumerate(sources):
        if source.rows and len(turns) % 2:
            source.alive(last[number] + 100, HORIZON, every=100)
    rows = {(row["source"], row["boot"], row["seq"]): row for source in sources for row in source.rows}
    return list(rows.values())


def do(turn: Turn, source: Source, peer: str, second: float, tag: str) -> None:
    agent = turn.source == 2
    who = f"{tag}agent" if agent else f"{tag}worker-{turn.who}"
    role = "agent" if agent else turn.role
    offer = {"role": role, "services": [f"{tag}service-{x}" for x in sorted(turn.services)], "slots": turn.slots}
    at = max(0.0, round(second - turn.back, 6))
    match turn.what:
        case "joined" | "changed" | "left" | "replaced" | "seen":
            source.client(second, turn.what, who, **offer)
        case "lost":
            source.client(second, "lost", who, at=at, **offer)
        case "boot":
            source.boot(second, seq=max(0, source.seq + turn.jump))
        case "hole":
            source.seq += 2
            source.say(second)
        case "stopped" if not agent:
            source.say(second, "broker.stopped")
        case "peer.lost" | "peer.joined" if not agent:
            source.say(second, turn.what, at, identity=peer)
        case "downtime.started" | "downtime.ended" if agent:
            data = {} if turn.slots == 0 else {"ends": START_US / 1_000_000 + second + turn.slots * 1000}
            source.say(second, turn.what, identity=who, ref=f"plan-{turn.who}", data=data)
        case _:
            source.say(second)


HISTORIES = st.lists(st.lists(TURNS, min_size=10, max_size=40), min_size=TOGETHER, max_size=TOGETHER)


@settings(
    max_examples=1,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(histories=HISTORIES)
def test_many_hours_are_each_hour_and_the_oracle(spark: SparkSession, histories: list[list[Turn]]):
    rows = [row for number, turns in enumerate(histories) for row in told(turns, f"h{number}-")]
    history = History(spark, rows, HORIZON)
    world = PresenceAggregation()
    many = history.run(world, [history.hours])
    each = history.run(world, list(range(1, history.hours + 1)))
    assert differences(each, many) == []
    del many["carry.world"]
    assert differences(many, expected(history)) == []

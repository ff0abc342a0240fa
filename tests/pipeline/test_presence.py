"""Presence: what brokers, clients, agents and services were, as stories that share one run, and by chance.

Promise: PIPE-5
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from scale0.pipeline.aggregations.presence import PresenceAggregation
from tests.pipeline.events import START_HOUR, START_US, written
from tests.pipeline.presence_histories import History, Row, Source, differences, expected

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HORIZON = 3500.0
Tables = dict[str, Counter[tuple[Any, ...]]]


def restarted() -> list[Row]:
    """A broker dies at 1000 and is back at 1100; its worker joins again at 1110."""
    broker = Source("restarted").boot(0).client(10, "joined", "w-restarted", services=["s-restarted"], slots=4)
    broker.alive(60, 1000, 47).say(1000).boot(1100)
    broker.client(1110, "joined", "w-restarted", services=["s-restarted"], slots=4).alive(1160, HORIZON)
    return broker.rows


def holed() -> list[Row]:
    """The same, but what it recorded last never arrived."""
    broker = Source("holed").boot(0).alive(60, 960).say(1000).lose(1).boot(1100).alive(1160, HORIZON)
    return broker.rows


def asleep() -> list[Row]:
    """A broker stands still from 1000 to 1400, in one boot: nobody joins again; one is heard, one died at 1200."""
    broker = Source("asleep").boot(0).client(10, "joined", "w-asleep", services=["s-asleep"]).alive(60, 950)
    broker.client(12, "joined", "w-died").say(1000).say(1400)
    broker.client(1410, "lost", "w-died", at=1200).client(1430, "seen", "w-asleep").alive(1460, HORIZON)
    return sorted_by_seq(broker)


def silent() -> list[Row]:
    """A broker is not heard after 2000; a peer misses it at 2500 and hears of it again at 3000."""
    broker = Source("silent").boot(0).client(10, "joined", "w-silent", services=["s-silent"]).alive(60, 1980)
    peer = Source("peer").boot(0).alive(60, 2460).say(2500, "peer.lost", identity="silent").alive(2520, 2990)
    peer.say(3000, "peer.joined", identity="silent").alive(3060, HORIZON)
    return broker.say(2000).rows + peer.rows


def stopped() -> list[Row]:
    """A broker stops in order, at the very end."""
    return Source("stopped").boot(0).alive(60, 3420).say(3450, "broker.stopped").rows


def clients() -> list[Row]:
    """Workers that leave, that are lost, that never were; and somebody who only asks."""
    broker = Source("calm").boot(0).alive(60, 60)
    broker.client(100, "joined", "w-left").client(100, "joined", "w-lost", services=["s-lost"])
    broker.client(100, "joined", "f-asks", role="frontend").alive(150, 190)
    broker.client(200, "left", "w-left").client(230, "lost", "w-lost", at=205).alive(290, 1000)
    broker.client(1000, "joined", "w-left").client(1000.000001, "joined", "w-stillborn").alive(1060, 1090)
    broker.client(1100, "lost", "w-stillborn", at=1000).alive(1150, HORIZON)
    return broker.rows


def agents() -> list[Row]:
    """An agent moves from one Helen to another, and has a downtime."""
    one, other = Source("helen-1", started=False).boot(0), Source("helen-2", started=False).boot(0)
    one.client(100, "joined", "a-moves", role="agent", services=["disk"]).alive(160, 900)
    one.client(1000, "left", "a-moves", role="agent").alive(1060, HORIZON)
    other.alive(60, 900).client(990, "joined", "a-moves", role="agent").alive(1050, 1950)
    ends = START_US / 1_000_000 + 2600
    other.say(2000, "downtime.started", identity="a-moves", ref="d", data={"ends": ends})
    other.alive(2060, 2170).say(2200, "downtime.started", identity="a-moves", service="disk", ref="e", data={})
    other.alive(2260, 2400).client(2500, "lost", "a-moves", at=2400, role="agent").alive(2560, HORIZON)
    return one.rows + other.rows


def twins() -> list[Row]:
    """A worker is at two brokers; an old disk came back with one of them."""
    one, two = Source("twin-1").boot(0).alive(60, 960), Source("twin-2").boot(0).alive(60, 90)
    two.client(100, "joined", "w-twin", services=["s-a"], slots=2).alive(160, 900)
    two.client(1000, "changed", "w-twin", services=["s-b"], slots=3).alive(1060, HORIZON)
    one.boot(1000, seq=10).client(1010, "joined", "w-twin", services=["s-a"], slots=2).alive(1060, HORIZON)
    return one.rows + two.rows


def sorted_by_seq(source: Source) -> list[Row]:
    """Numbers in the order of their times, as a journal would."""
    rows = sorted(source.rows, key=lambda row: row["time"])
    return [row | {"seq": number} for number, row in enumerate(rows, 1)]


STORIES = (restarted, holed, asleep, silent, stopped, clients, agents, twins)


@pytest.fixture(scope="module")
def history(spark: SparkSession) -> History:
    doubled = {"source": "calm", "boot": START_US, "first_seq": 3, "last_seq": 3, "events": 0, "duplicates": 2}
    rows = [row for story in STORIES for row in story()]
    time = rows[0]["time"]
    return History(spark, rows, HORIZON, [doubled | {"rejected": 1, "first_time": time, "last_time": time}])


@pytest.fixture(scope="module")
def tables(history: History) -> Tables:
    return history.run(PresenceAggregation(), [1])


def timeline(tables: Tables, subject: str) -> str:
    """Class and reason by the second from which on they hold, as in "0 up:watching 1000 down:restarted 1100"."""
    rows = sorted(row for row in tables["timeline.world"] if row[2] == subject)
    return written((row[3], row[4], f"{row[5]}:{row[6]}") for row in rows)


def sessions(tables: Tables, identity: str) -> list[tuple[float, float | None, str]]:
    """(joined, left, reason), in seconds."""
    rows = [row for name in ("sessions", "sessions.open") for row in tables[name] if row[1] == identity]
    return sorted(
        ((row[3] - START_US) / 1e6, None if row[4] is None else (row[4] - START_US) / 1e6, row[5]) for row in rows
    )


def test_the_stories_are_what_the_oracle_says(tables: Tables, history: History):
    made = {name: rows for name, rows in tables.items() if name != "carry.world"}
    assert differences(made, expected(history)) == []


def test_a_gapless_journal_proves_that_a_broker_was_down(tables: Tables):
    assert timeline(tables, "restarted") == "0 up:watching 1000 down:restarted 1100 up:watching 3500"


def test_a_hole_proves_nothing(tables: Tables):
    assert " 960 unobserved:hole 1100 " in timeline(tables, "holed")


def test_a_client_is_unobserved_until_its_broker_starts_again_and_then_down_until_it_joins(tables: Tables):
    assert sessions(tables, "w-restarted") == [(10, 1000, "broker_lost"), (1110, None, "open")]
    worker = "0 absent:away 10 up:session 1000 unobserved:broker_lost 1100 down:restarted 1110 up:session 3500"
    service = "0 absent:away 10 up:offered 1000 unobserved:broker_lost 1100 down:no_backend 1110 up:offered 3500"
    assert (timeline(tables, "w-restarted"), timeline(tables, "s-restarted")) == (worker, service)


def test_heartbeats_begin_a_session_again_after_a_silence_within_one_boot(tables: Tables):
    assert timeline(tables, "asleep") == "0 up:watching 1000 down:asleep 1400 up:watching 3500"
    assert sessions(tables, "w-asleep") == [(10, 1000, "broker_lost"), (1430, None, "open")]
    worker = "0 absent:away 10 up:session 1000 unobserved:broker_lost 1400 down:unheard 1430 up:session 3500"
    service = "0 absent:away 10 up:offered 1000 unobserved:broker_lost 1400 down:no_backend 1430 up:offered 3500"
    assert (timeline(tables, "w-asleep"), timeline(tables, "s-asleep")) == (worker, service)
    assert timeline(tables, "w-died").endswith(" 1000 unobserved:broker_lost 1400 down:unheard 3500")


def test_a_peer_says_that_a_broker_is_down_where_nothing_else_is_known(tables: Tables):
    broker = "0 up:watching 2000 unobserved:silent 2500 down:peer_lost 3000 unobserved:silent 3500"
    assert timeline(tables, "silent") == broker
    assert timeline(tables, "w-silent").endswith(" 2000 unobserved:broker_lost 3500")


def test_a_broker_that_says_that_it_stops_is_down_at_once(tables: Tables):
    assert timeline(tables, "stopped") == "0 up:watching 3450 down:stopped 3500"


def test_who_leaves_in_order_is_absent_and_who_is_lost_is_down_since_its_last_sign_of_life(tables: Tables):
    assert timeline(tables, "w-left") == "0 absent:away 100 up:session 200 absent:left 1000 up:session 3500"
    assert timeline(tables, "w-lost") == "0 absent:away 100 up:session 205 down:lost 3500"
    assert timeline(tables, "s-lost") == "0 absent:away 100 up:offered 205 down:no_backend 3500"


def test_a_session_never_ends_before_it_begins(tables: Tables):
    assert sessions(tables, "w-stillborn") == [(1000.000001, 1000.000001, "lost")]
    assert timeline(tables, "w-stillborn").endswith(" 1000.000001 down:lost 3500")


def test_a_frontend_has_sessions_and_is_no_subject(tables: Tables):
    assert sessions(tables, "f-asks") == [(100, None, "open")]
    assert timeline(tables, "f-asks") == ""


def test_an_agent_is_up_with_any_session_and_in_downtime_as_long_as_the_whole_of_it_is(tables: Tables):
    assert timeline(tables, "a-moves") == "0 absent:away 100 up:session 2000 downtime:downtime 2600 down:lost 3500"
    assert timeline(tables, "disk") == ""


def test_a_service_is_up_while_anybody_offers_it(tables: Tables):
    expected = "0 absent:away 100 up:offered 1000 down:no_backend 1010 up:offered 3500"
    assert timeline(tables, "s-a") == expected


def test_a_node_offers_what_all_its_sessions_offer(tables: Tables):
    assert (START_HOUR, "w-twin", 5, HORIZON - 100) in tables["node_slots"]
    assert (START_HOUR, "w-restarted", 4, 990 + HORIZON - 1110) in tables["node_slots"]


def test_holes_rewinds_and_duplicates_are_counted_with_their_source(tables: Tables):
    counted = {row[1]: row[5:] for row in tables["source_hours"]}
    assert counted["holed"] == (1, 0, 0, 0)
    assert counted["twin-1"] == (0, 1, 0, 0)
    assert counted["calm"] == (0, 0, 2, 1)


def test_a_service_without_a_backend_is_absent_after_a_week_and_not_carried_on(spark: SparkSession):
    broker = Source("b").boot(0).client(10, "joined", "w", services=["s"]).client(20, "left", "w").alive(60, 120)
    day = 24 * 3600
    history = History(spark, broker.boot(8 * day).rows, 8 * day + 60)
    many = history.run(PresenceAggregation(), [history.hours])
    stepped = history.run(PresenceAggregation(), [30, 7 * 24, 7 * 24 + 1, history.hours])
    assert differences(stepped, many) == []
    assert timeline(many, "s").endswith(f"20 down:no_backend {7 * day + 20} absent:away {7 * day + 3600}")
    kept = {row[0] - START_HOUR for row in many["carry.world"] if row[2] == "service"}
    assert max(kept) == 7 * 24


# One step, a step for each hour, and the oracle agree, whatever happened when.


HOUR = 3600.0
STEPS_HORIZON = 3 * HOUR + 1234.5
TOGETHER = 16
"""Histories that go through Spark at once, with names of their own: a step costs much more than a row."""


class Turn(NamedTuple):
    """What happens next, to whom, after how long; `quiet`: its source recorded nothing meanwhile."""

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


def recorded(turns: list[Turn], tag: str) -> list[Row]:
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
            source.alive(last[number] + 100, STEPS_HORIZON, every=100)
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
    rows = [row for number, turns in enumerate(histories) for row in recorded(turns, f"h{number}-")]
    history = History(spark, rows, STEPS_HORIZON)
    world = PresenceAggregation()
    many = history.run(world, [history.hours])
    each = history.run(world, list(range(1, history.hours + 1)))
    assert differences(each, many) == []
    del many["carry.world"]
    assert differences(many, expected(history)) == []

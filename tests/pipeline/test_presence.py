"""The world: what brokers, clients, agents and services were, told as stories that share one run."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from scale0.pipeline.aggregations.presence import PresenceAggregation
from tests.pipeline.events import START_HOUR, START_US
from tests.pipeline.presence_histories import History, Row, Source, differences, expected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HORIZON = 3500.0
Slabs = dict[str, Counter[tuple[Any, ...]]]


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
def slabs(history: History) -> Slabs:
    return history.run(PresenceAggregation(), [1])


def pieces(slabs: Slabs, subject: str) -> list[tuple[float, float, str, str]]:
    """(from, to, class, reason) of a subject, in seconds."""
    rows = sorted(row for row in slabs["timeline.world"] if row[2] == subject)
    return [((row[3] - START_US) / 1e6, (row[4] - START_US) / 1e6, row[5], row[6]) for row in rows]


def sessions(slabs: Slabs, identity: str) -> list[tuple[float, float | None, str]]:
    """(joined, left, reason), in seconds."""
    rows = [row for name in ("sessions", "sessions.open") for row in slabs[name] if row[1] == identity]
    return sorted(
        ((row[3] - START_US) / 1e6, None if row[4] is None else (row[4] - START_US) / 1e6, row[5]) for row in rows
    )


def test_the_stories_are_what_the_oracle_says(slabs: Slabs, history: History):
    made = {name: rows for name, rows in slabs.items() if name != "carry.world"}
    assert differences(made, expected(history)) == []


def test_a_gapless_journal_proves_that_a_broker_was_down(slabs: Slabs):
    assert pieces(slabs, "restarted") == [
        (0, 1000, "up", "watching"),
        (1000, 1100, "down", "restarted"),
        (1100, HORIZON, "up", "watching"),
    ]


def test_a_hole_proves_nothing(slabs: Slabs):
    assert (960, 1100, "unobserved", "hole") in pieces(slabs, "holed")


def test_a_client_is_unobserved_until_its_broker_starts_again_and_then_down_until_it_joins(slabs: Slabs):
    assert sessions(slabs, "w-restarted") == [(10, 1000, "broker_lost"), (1110, None, "open")]
    assert pieces(slabs, "w-restarted")[1:] == [
        (10, 1000, "up", "session"),
        (1000, 1100, "unobserved", "broker_lost"),
        (1100, 1110, "down", "restarted"),
        (1110, HORIZON, "up", "session"),
    ]
    assert [piece[2] for piece in pieces(slabs, "s-restarted")] == ["absent", "up", "unobserved", "down", "up"]


def test_heartbeats_begin_a_session_again_after_a_silence_within_one_boot(slabs: Slabs):
    assert pieces(slabs, "asleep")[1] == (1000, 1400, "down", "asleep")
    assert sessions(slabs, "w-asleep") == [(10, 1000, "broker_lost"), (1430, None, "open")]
    assert pieces(slabs, "w-asleep")[2:4] == [
        (1000, 1400, "unobserved", "broker_lost"),
        (1400, 1430, "down", "unheard"),
    ]
    assert [piece[:3] for piece in pieces(slabs, "s-asleep")[2:4]] == [(1000, 1400, "unobserved"), (1400, 1430, "down")]
    assert pieces(slabs, "w-died")[2:] == [
        (1000, 1400, "unobserved", "broker_lost"),
        (1400, HORIZON, "down", "unheard"),
    ]


def test_a_peer_says_that_a_broker_is_down_where_nothing_else_is_known(slabs: Slabs):
    assert pieces(slabs, "silent")[1:] == [
        (2000, 2500, "unobserved", "silent"),
        (2500, 3000, "down", "peer_lost"),
        (3000, HORIZON, "unobserved", "silent"),
    ]
    assert pieces(slabs, "w-silent")[-1] == (2000, HORIZON, "unobserved", "broker_lost")


def test_a_broker_that_says_that_it_stops_is_down_at_once(slabs: Slabs):
    assert pieces(slabs, "stopped")[-1] == (3450, HORIZON, "down", "stopped")


def test_who_leaves_in_order_is_absent_and_who_is_lost_is_down_since_its_last_sign_of_life(slabs: Slabs):
    assert pieces(slabs, "w-left") == [
        (0, 100, "absent", "away"),
        (100, 200, "up", "session"),
        (200, 1000, "absent", "left"),
        (1000, HORIZON, "up", "session"),
    ]
    assert pieces(slabs, "w-lost")[1:] == [(100, 205, "up", "session"), (205, HORIZON, "down", "lost")]
    assert pieces(slabs, "s-lost")[-1] == (205, HORIZON, "down", "no_backend")


def test_a_session_never_ends_before_it_begins(slabs: Slabs):
    assert sessions(slabs, "w-stillborn") == [(1000.000001, 1000.000001, "lost")]
    assert pieces(slabs, "w-stillborn")[-1] == (1000.000001, HORIZON, "down", "lost")


def test_a_frontend_has_sessions_and_is_no_subject(slabs: Slabs):
    assert sessions(slabs, "f-asks") == [(100, None, "open")]
    assert pieces(slabs, "f-asks") == []


def test_an_agent_is_up_with_any_session_and_in_downtime_as_long_as_the_whole_of_it_is(slabs: Slabs):
    assert pieces(slabs, "a-moves")[1:] == [
        (100, 2000, "up", "session"),
        (2000, 2600, "downtime", "downtime"),
        (2600, HORIZON, "down", "lost"),
    ]
    assert pieces(slabs, "disk") == []


def test_a_service_is_up_while_anybody_offers_it(slabs: Slabs):
    assert [piece[:3] for piece in pieces(slabs, "s-a")[1:]] == [
        (100, 1000, "up"),
        (1000, 1010, "down"),
        (1010, HORIZON, "up"),
    ]


def test_a_node_offers_what_all_its_sessions_offer(slabs: Slabs):
    assert (START_HOUR, "w-twin", 5, HORIZON - 100) in slabs["node_slots"]
    assert (START_HOUR, "w-restarted", 4, 990 + HORIZON - 1110) in slabs["node_slots"]


def test_holes_rewinds_and_duplicates_are_counted_with_their_source(slabs: Slabs):
    counted = {row[1]: row[5:] for row in slabs["source_hours"]}
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
    assert pieces(many, "s")[-2:] == [
        (7 * day, 7 * day + 20, "down", "no_backend"),
        (7 * day + 20, 7 * day + 3600, "absent", "away"),
    ]
    kept = {row[0] - START_HOUR for row in many["carry.world"] if row[2] == "service"}
    assert max(kept) == 7 * 24

"""A pair of brokers: the standby takes over, and gives way.

Promise: NEGO-6
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scale0.transport.core.calls import CallAnswered, CallFailed
from scale0.transport.core.sockets import BACKEND, FRONTEND
from tests.fakes.examples import seeds
from tests.unit.broker.guests import answer, ask, caller, town, until_served, worker
from tests.unit.broker.network import Guest, Network, Node


def pair(**more: Any) -> tuple[Network, dict[str, Node]]:
    """`a` is active, `s` stands by for it."""
    return town("a", "s", s={"standby_for": "a", **more})


def shown(node: Node) -> str:
    return node.broker.state.shown


def changes(node: Node) -> list[str]:
    return [event.after for event in node.kinds("broker.state_changed")]


def work_on(network: Network, guest: Guest, seconds: float) -> int:
    """Time goes by, and this worker does what it is given; how much that was."""
    done = 0
    for _ in range(round(seconds / 0.05)):
        network.run(0.05)
        done += answer(guest)
    return done


def test_a_standby_takes_nobody_while_its_active_broker_is_heard():
    network, nodes = pair()
    assert (shown(nodes["a"]), shown(nodes["s"])) == ("active", "standby")
    assert nodes["a"].broker.peers.by_name["s"].shown == "standby"
    guests = worker(network, "s"), caller(network, "s")
    ask(guests[1], "x")
    network.run(3)
    assert [guest.place for guest in guests] == ["a", "a"]
    answer(guests[0])
    network.run(1)
    assert [news.tag for news in guests[1].told(CallAnswered)] == ["x"], "it is asked where it went"
    network.run(200)
    assert [guest.place for guest in guests] == ["a", "a"], (
        "nobody calls them back, though they came to the other first"
    )


def test_whoever_only_looks_is_answered_by_a_standby_itself():
    network, nodes = pair()
    looker = caller(network, "s")
    looker.act("request", "scale0.brokers", [], 5.0, False, "look")
    code, status = nodes["s"].manage("status")
    network.run(1)
    assert looker.place == "s"
    assert [news.tag for news in looker.told(CallAnswered)] == ["look"]
    assert (code, status["state"], status["draining"], status["standby_for"]) == (200, "standby", False, "a")


def test_somebody_who_cannot_be_told_where_to_go_hears_503():
    network, nodes = pair()
    nodes["a"].kill()
    nodes["s"].kill()
    nodes["s"].start()
    said = nodes["s"].ask(BACKEND, ("CHECKCONFIG", {"identity": "w"}))
    version = said[0][1]["config_version"]
    ready = ("READY", {"services": ["paint"], "config_version": version})
    told = nodes["s"].ask(BACKEND, ("CHECKCONFIG", {"identity": "w"}), ready)[-1]
    assert (told[0], told[1]["code"]) == ("DISCONNECTERROR", 503)
    told = nodes["s"].ask(FRONTEND, ("REQUEST", {"service": "paint", "id": "1"}))[-1]
    assert (told[0], told[1]["code"], told[1]["unrun"]) == ("ERROR", 503, True)
    network.run(4)
    assert shown(nodes["s"]) == "active", (
        "an active broker that never comes is not waited for longer than for a silent one"
    )


@pytest.mark.parametrize("make", [worker, caller])
@pytest.mark.parametrize("seed", seeds(10))
def test_it_serves_the_clients_of_an_active_broker_that_died_within_five_seconds(make: Any, seed: int):
    network, nodes = pair()
    network.dice.seed(seed)
    guest = make(network, "a")
    network.run(2 + network.dice.random())
    nodes["a"].kill()
    network.run(0)
    if make is caller:
        ask(guest, "x")
    until_served(network, guest, 4.75)
    assert guest.place == "s"
    assert changes(nodes["s"]) == ["standby", "active"]


def test_silence_is_judged_as_that_of_any_other_and_not_sooner():
    network, nodes = pair()
    nodes["a"].frozen = True
    network.run(1.95)  # its last heartbeat is up to an interval old
    assert shown(nodes["s"]) == "standby"
    network.run(1.5)
    assert shown(nodes["s"]) == "active"


def test_its_table_is_warm_whatever_is_shared_with_others():
    network, nodes = town("a", "s", a={"heartbeat_share": "off"}, s={"standby_for": "a", "heartbeat_share": "off"})
    worker(network, "a")
    network.run(3)
    assert nodes["s"].broker.peers.by_name["a"].table.offered.keys() == {"paint"}
    assert nodes["a"].broker.peers.by_name["s"].table.rows == {}


@pytest.mark.parametrize("command", ["drain", "disable"])
def test_it_takes_over_at_once_when_the_active_broker_says_that_it_does_not_serve(command: str):
    network, nodes = pair()
    guests = worker(network, "a"), caller(network, "a")
    network.run(2)
    assert nodes["a"].manage(command)[0] == 200
    network.run(0.5)
    assert shown(nodes["s"]) == "active"
    ask(guests[1], "x")
    work_on(network, guests[0], 6)
    assert [guest.place for guest in guests] == ["s", "s"]
    assert nodes["a"].manage("enable")[0] == 200
    network.run(6)
    assert [guest.place for guest in guests] == ["a", "a"]
    assert shown(nodes["s"]) == "standby"


def test_a_broker_that_drains_says_so_to_whoever_asks_it():
    network, nodes = pair()
    assert nodes["a"].manage("drain")[0] == 200
    network.run(1)
    for place in ("a", "s"):
        number = network.next_number()
        asked = msgspec.json.encode({"service": "scale0.brokers", "id": "1"})
        nodes[place].receive(FRONTEND, str(number).encode(), [b"SCALE0/1", b"REQUEST", asked])
        (reply,) = (frames for who, frames in nodes[place].admin if who == number)
        states = {row["broker"]: row["state"] for row in msgspec.json.decode(reply[3])["items"]}
        assert states == {"a": "draining", "s": "active"}


def test_who_asks_in_the_moment_when_the_active_broker_drains_is_sent_to_the_standby():
    network, nodes = pair()
    painter, asker = worker(network, "a"), caller(network, "a")
    network.run(2)
    network.cut(("a", "s"))
    assert nodes["a"].manage("drain")[0] == 200
    ask(asker, "x")
    network.run(0)
    network.heal()  # only now the standby hears of it
    work_on(network, painter, 8)
    assert asker.told(CallFailed) == []
    assert [news.tag for news in asker.told(CallAnswered)] == ["x"]


@pytest.mark.parametrize("seed", seeds(10))
def test_it_gives_way_and_nothing_that_was_asked_for_is_lost(seed: int):
    """Calls that must not run twice, one every 0.1 s, while the active broker comes back."""
    network, nodes = pair()
    network.dice.seed(seed)
    painter, asker = worker(network, "a"), caller(network, "a")
    network.run(2)
    nodes["a"].kill()
    ask(asker, "first", retry=True)
    work_on(network, painter, 8)
    assert (painter.place, asker.place) == ("s", "s")
    nodes["a"].start()
    tags = ["first"]
    for number in range(80):
        tags.append(f"{number}")
        ask(asker, tags[-1])
        work_on(network, painter, 0.1)
    work_on(network, painter, 5)
    assert asker.told(CallFailed) == []
    assert sorted(news.tag for news in asker.told(CallAnswered)) == sorted(tags)
    assert (painter.place, asker.place) == ("a", "a")
    assert shown(nodes["s"]) == "standby"
    assert nodes["s"].broker.state.draining
    assert changes(nodes["s"]) == ["standby", "active", "standby"]


def test_what_a_worker_of_the_standby_can_do_is_asked_for_until_it_has_gone():
    network, nodes = pair()
    painter = worker(network, "a")
    network.run(2)
    nodes["a"].kill()
    network.run(8)
    asker = caller(network, "s")
    ask(asker, "long")
    network.run(1)
    nodes["a"].start()
    network.run(3)
    assert painter.place == "s", "it has something in hand"
    assert shown(nodes["s"]) == "standby"
    other = caller(network, "a", name="g")
    network.run(0.5)
    assert nodes["s"].broker.state.gives_way
    ask(other, "x")
    work_on(network, painter, 10)
    assert [news.tag for news in (*asker.told(CallAnswered), *other.told(CallAnswered))] == ["long", "x"]
    assert painter.place == "a"
    assert nodes["s"].broker.state.standby


@pytest.mark.parametrize("seed", seeds(10))
def test_an_active_broker_that_dies_again_finds_its_standby_serving(seed: int):
    network, nodes = pair()
    network.dice.seed(seed)
    painter, asker = worker(network, "a"), caller(network, "a")
    network.run(2)
    for number in range(4):
        nodes["a"].kill()
        ask(asker, f"{number}", retry=True)
        work_on(network, painter, network.dice.uniform(4.0, 9.0))
        nodes["a"].start()
        work_on(network, painter, network.dice.uniform(0.0, 4.0))
    work_on(network, painter, 20)
    assert sorted(news.tag for news in asker.told(CallAnswered)) == ["0", "1", "2", "3"]
    assert (painter.place, asker.place) == ("a", "a")
    assert shown(nodes["s"]) == "standby"


def test_two_that_do_not_hear_each_other_both_serve_and_one_of_them_gives_way():
    """Heartbeats are all that a standby knows."""
    network, nodes = pair()
    painter = worker(network, "a")
    network.run(2)
    network.cut(("a", "s"))
    network.run(6)
    assert (shown(nodes["a"]), shown(nodes["s"])) == ("active", "active")
    other = worker(network, "s", name="v")
    network.run(2)
    assert (painter.place, other.place) == ("a", "s")
    network.heal()
    network.run(6)
    assert (painter.place, other.place) == ("a", "a")
    assert (shown(nodes["a"]), shown(nodes["s"])) == ("active", "standby")


def test_a_standby_that_is_told_to_drain_takes_nobody_over():
    network, nodes = pair()
    assert nodes["s"].manage("drain")[0] == 200
    network.run(1)
    assert shown(nodes["s"]) == "draining"
    nodes["a"].kill()
    network.run(6)
    assert shown(nodes["s"]) == "draining"
    assert nodes["s"].manage("enable") == (200, {"state": "active", "draining": False})


def test_a_client_that_asks_a_third_broker_is_not_sent_to_a_standby():
    network, nodes = town("a", "b", "s", s={"standby_for": "a"})
    guest = worker(network, "b")
    network.run(2)
    assert guest.place == "b"
    nodes["b"].kill()
    network.run(6)
    assert guest.place == "a"

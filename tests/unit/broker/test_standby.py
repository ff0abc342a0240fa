"""A pair of brokers: the standby takes over, and gives way.

Promise: NEGO-6
"""

from __future__ import annotations

from typing import Any

import pytest

from scale0.transport.core.calls import CallAnswered, CallFailed
from scale0.transport.core.sockets import BACKEND, FRONTEND
from tests.fakes.examples import seeds
from tests.fakes.network import FakeNetwork, NetworkBroker, SessionClient, network_of


@pytest.fixture
def network() -> FakeNetwork:
    """`a` is active, `s` stands by for it."""
    return network_of("a", "s", s={"standby_for": "a"})


def shown(node: NetworkBroker) -> str:
    return node.machine.state.shown


def changes(node: NetworkBroker) -> list[str]:
    return [event.after for event in node.of_kind("broker.state_changed")]


def work_on(network: FakeNetwork, client: SessionClient, seconds: float) -> int:
    """Time goes by, and this worker does what it is given; how much that was."""
    done = 0
    for _ in range(round(seconds / 0.05)):
        network.run(0.05)
        done += client.answer()
    return done


def test_a_standby_takes_nobody_while_its_active_broker_is_heard(network):
    assert (shown(network["a"]), shown(network["s"])) == ("active", "standby")
    assert network["a"].machine.peers.by_name["s"].shown == "standby"
    clients = network.worker("s"), network.caller("s")
    clients[1].ask("x")
    network.run(3)
    assert [client.served_by for client in clients] == ["a", "a"]
    clients[0].answer()
    network.run(1)
    assert [news.tag for news in clients[1].notified(CallAnswered)] == ["x"], "it is asked where it went"
    network.run(200)
    assert [client.served_by for client in clients] == ["a", "a"], (
        "nobody calls them back, though they came to the other first"
    )


def test_whoever_only_looks_is_answered_by_a_standby_itself(network):
    looker = network.caller("s")
    looker.act("request", "scale0.brokers", [], 5.0, False, "look")
    answer = network["s"].manage("status")
    network.run(1)
    assert looker.served_by == "s"
    assert [news.tag for news in looker.notified(CallAnswered)] == ["look"]
    assert (answer.code, *(answer.body[name] for name in ("state", "draining", "standby_for"))) == (
        200,
        "standby",
        False,
        "a",
    )


def test_somebody_who_cannot_be_told_where_to_go_hears_503(network):
    network["a"].kill()
    network["s"].kill()
    network["s"].start()
    ready = ("READY", {"services": ["paint"], "config_version": network["s"].rank[0]})
    refusal = network["s"].ask_once(BACKEND, ("CHECKCONFIG", {"identity": "w"}), ready)[-1]
    assert (refusal.command, refusal.code) == ("DISCONNECTERROR", 503)
    refusal = network["s"].ask_once(FRONTEND, ("REQUEST", {"service": "paint", "id": "1"}))[-1]
    assert (refusal.command, refusal.code, refusal.options["unrun"]) == ("ERROR", 503, True)
    network.run(4)
    assert shown(network["s"]) == "active", (
        "an active broker that never comes is not waited for longer than for a silent one"
    )


@pytest.mark.parametrize("make", [FakeNetwork.worker, FakeNetwork.caller])
@pytest.mark.parametrize("seed", seeds(10))
def test_it_serves_the_clients_of_an_active_broker_that_died_within_five_seconds(
    network: FakeNetwork, make: Any, seed: int
):
    network.rng.seed(seed)
    client = make(network, "a")
    network.run(2 + network.rng.random())
    network["a"].kill()
    network.run(0)
    if make is FakeNetwork.caller:
        client.ask("x")
    network.until_served(client, 4.75)
    assert client.served_by == "s"
    assert changes(network["s"]) == ["standby", "active"]


def test_silence_is_judged_as_that_of_any_other_and_not_sooner(network):
    network["a"].frozen = True
    network.run(1.95)  # its last heartbeat is up to an interval old
    assert shown(network["s"]) == "standby"
    network.run(1.5)
    assert shown(network["s"]) == "active"


def test_its_table_is_warm_whatever_is_shared_with_others():
    network = network_of("a", "s", a={"heartbeat_share": "off"}, s={"standby_for": "a", "heartbeat_share": "off"})
    network.worker("a")
    network.run(3)
    assert network["s"].machine.peers.by_name["a"].table.offered.keys() == {"paint"}
    assert network["a"].machine.peers.by_name["s"].table.rows == {}


@pytest.mark.parametrize("command", ["drain", "disable"])
def test_it_takes_over_at_once_when_the_active_broker_says_that_it_does_not_serve(network: FakeNetwork, command: str):
    clients = network.worker("a"), network.caller("a")
    network.run(2)
    assert network["a"].manage(command).code == 200
    network.run(0.5)
    assert shown(network["s"]) == "active"
    clients[1].ask("x")
    work_on(network, clients[0], 6)
    assert [client.served_by for client in clients] == ["s", "s"]
    assert network["a"].manage("enable").code == 200
    network.run(6)
    assert [client.served_by for client in clients] == ["a", "a"]
    assert shown(network["s"]) == "standby"


def test_a_broker_that_drains_says_so_to_whoever_asks_it(network):
    assert network["a"].manage("drain").code == 200
    network.run(1)
    for place in ("a", "s"):
        (reply,) = network[place].ask_once(FRONTEND, ("REQUEST", {"service": "scale0.brokers", "id": "1"}))
        states = {row["broker"]: row["state"] for row in reply.body["items"]}
        assert states == {"a": "draining", "s": "active"}


def test_who_asks_in_the_moment_when_the_active_broker_drains_is_sent_to_the_standby(network):
    painter, asker = network.worker("a"), network.caller("a")
    network.run(2)
    network.cut(("a", "s"))
    assert network["a"].manage("drain").code == 200
    asker.ask("x")
    network.run(0)
    network.heal()  # only now the standby hears of it
    work_on(network, painter, 8)
    assert asker.notified(CallFailed) == []
    assert [news.tag for news in asker.notified(CallAnswered)] == ["x"]


@pytest.mark.parametrize("seed", seeds(10))
def test_it_gives_way_and_nothing_that_was_asked_for_is_lost(network: FakeNetwork, seed: int):
    """Calls that must not run twice, one every 0.1 s, while the active broker comes back."""
    network.rng.seed(seed)
    painter, asker = network.worker("a"), network.caller("a")
    network.run(2)
    network["a"].kill()
    asker.ask("first", retry=True)
    work_on(network, painter, 8)
    assert (painter.served_by, asker.served_by) == ("s", "s")
    network["a"].start()
    tags = ["first"]
    for number in range(80):
        tags.append(f"{number}")
        asker.ask(tags[-1])
        work_on(network, painter, 0.1)
    work_on(network, painter, 5)
    assert asker.notified(CallFailed) == []
    assert sorted(news.tag for news in asker.notified(CallAnswered)) == sorted(tags)
    assert (painter.served_by, asker.served_by) == ("a", "a")
    assert shown(network["s"]) == "standby"
    assert network["s"].machine.state.draining
    assert changes(network["s"]) == ["standby", "active", "standby"]


def test_what_a_worker_of_the_standby_can_do_is_asked_for_until_it_has_gone(network):
    painter = network.worker("a")
    network.run(2)
    network["a"].kill()
    network.run(8)
    asker = network.caller("s")
    asker.ask("long")
    network.run(1)
    network["a"].start()
    network.run(3)
    assert painter.served_by == "s", "it has something in hand"
    assert shown(network["s"]) == "standby"
    other = network.caller("a", name="g")
    network.run(0.5)
    assert network["s"].machine.state.hands_back
    other.ask("x")
    work_on(network, painter, 10)
    assert [news.tag for news in (*asker.notified(CallAnswered), *other.notified(CallAnswered))] == ["long", "x"]
    assert painter.served_by == "a"
    assert network["s"].machine.state.standby


@pytest.mark.parametrize("seed", seeds(10))
def test_an_active_broker_that_dies_again_finds_its_standby_serving(network: FakeNetwork, seed: int):
    network.rng.seed(seed)
    painter, asker = network.worker("a"), network.caller("a")
    network.run(2)
    for number in range(4):
        network["a"].kill()
        asker.ask(f"{number}", retry=True)
        work_on(network, painter, network.rng.uniform(4.0, 9.0))
        network["a"].start()
        work_on(network, painter, network.rng.uniform(0.0, 4.0))
    work_on(network, painter, 20)
    assert sorted(news.tag for news in asker.notified(CallAnswered)) == ["0", "1", "2", "3"]
    assert (painter.served_by, asker.served_by) == ("a", "a")
    assert shown(network["s"]) == "standby"


def test_two_that_do_not_hear_each_other_both_serve_and_one_of_them_gives_way(network):
    """Heartbeats are all that a standby knows."""
    painter = network.worker("a")
    network.run(2)
    network.cut(("a", "s"))
    network.run(6)
    assert (shown(network["a"]), shown(network["s"])) == ("active", "active")
    other = network.worker("s", name="v")
    network.run(2)
    assert (painter.served_by, other.served_by) == ("a", "s")
    network.heal()
    network.run(6)
    assert (painter.served_by, other.served_by) == ("a", "a")
    assert (shown(network["a"]), shown(network["s"])) == ("active", "standby")


def test_a_standby_that_is_drain_requested_takes_nobody_over(network):
    assert network["s"].manage("drain").code == 200
    network.run(1)
    assert shown(network["s"]) == "draining"
    network["a"].kill()
    network.run(6)
    assert shown(network["s"]) == "draining"
    assert network["s"].manage("enable").body == {"state": "active", "draining": False}


def test_a_client_that_asks_a_third_broker_is_not_sent_to_a_standby():
    network = network_of("a", "b", "s", s={"standby_for": "a"})
    client = network.worker("b")
    network.run(2)
    assert client.served_by == "b"
    network["b"].kill()
    network.run(6)
    assert client.served_by == "a"

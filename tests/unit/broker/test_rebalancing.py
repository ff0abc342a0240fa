"""Clients of ours among brokers that die, drain and come back: they are served, and they come home.

Promise: NEGO-4, NEGO-5
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from scale0.transport.core.backend_session import RequestReceived
from scale0.transport.core.calls import CallAnswered, CallFailed
from scale0.transport.core.sockets import BACKEND, FRONTEND
from tests.fakes.examples import seeds
from tests.fakes.network import FakeNetwork, endpoint_of, network_of

INTERVAL = 1.0


@pytest.mark.parametrize("make", [FakeNetwork.worker, FakeNetwork.caller])
@pytest.mark.parametrize("seed", seeds(10))
def test_a_client_with_one_address_is_served_by_another_within_seconds(make: Any, seed: int):
    network = network_of("a", "b", "c")
    network.rng.seed(seed)
    client = make(network, "a")
    network.run(2)
    assert client.served_by == "a"
    network.run(network.rng.random() * 2)
    network["a"].kill()
    network.run(0)
    if make is FakeNetwork.caller:
        client.ask("x")  # an idle frontend expects nothing, and looks for nobody
    network.until_served(client, 5.0)
    assert client.served_by in ("b", "c")


@pytest.mark.parametrize("make", [FakeNetwork.worker, FakeNetwork.caller])
def test_it_comes_home_when_its_broker_is_back(make: Any):
    network = network_of("a", "b", "c")
    client = make(network, "a")
    network.run(2)
    network["a"].kill()
    network.run(10)
    assert client.served_by in ("b", "c")
    network["a"].start()
    network.run(6)
    assert client.served_by == "a"


def test_it_comes_home_though_nobody_noticed_that_its_broker_was_away():
    network = network_of("a", "b", "c")
    client = network.worker("a")
    network.run(2)
    network["a"].kill()
    network.until_served(client, 5.0)
    network["a"].start()
    network.run(5)
    assert client.served_by == "a"


@pytest.mark.parametrize("make", [FakeNetwork.worker, FakeNetwork.caller])
@pytest.mark.parametrize("seed", seeds(20))
def test_it_comes_home_soon_however_often_its_broker_dies_and_whenever_it_is_back(make: Any, seed: int):
    """Whoever is between two brokers when its own comes back, or was told to stay just before, hears of it too."""
    network = network_of("a", "b", "c")
    network.rng.seed(seed)
    dice = random.Random(seed)
    client = make(network, "a")
    network.run(3)
    for _ in range(6):
        network["a"].kill()
        network.run(0)
        network.run(dice.random() * 5 * INTERVAL)
        network["a"].start()
        begun = network.time
        while client.served_by != "a":
            if make is FakeNetwork.caller and not client.served_by:
                client.ask("x", timeout=1.5, retry=True)  # an idle frontend looks for nobody
            network.run(0.1)
            assert network.time - begun < 10 * INTERVAL, f"still at {client.served_by or 'nobody'}"


@pytest.mark.parametrize("make", [FakeNetwork.worker, FakeNetwork.caller])
def test_the_first_one_is_down_at_the_start(make: Any):
    network = network_of("a", "b")
    network["a"].kill()
    network.run(6)
    client = make(network, "a", "b")
    network.until_served(client, 5.0)
    assert client.served_by == "b"
    network["a"].start()
    network.run(6)
    assert client.served_by == "a", "the first address is where it belongs"


@pytest.mark.parametrize("make", [FakeNetwork.worker, FakeNetwork.caller])
def test_a_then_b_then_back_to_a(make: Any):
    network = network_of("a", "b")
    client = make(network, "a", "b")
    network.run(2)
    network["a"].kill()
    network.run(8)
    assert client.served_by == "b"
    network["b"].kill()
    network["a"].start()
    network.run(8)
    assert client.served_by == "a"


@pytest.mark.parametrize("make", [FakeNetwork.worker, FakeNetwork.caller])
def test_all_are_down_for_minutes(make: Any):
    network = network_of("a", "b", "c")
    client = make(network, "a")
    network.run(2)
    for node in network.brokers.values():
        node.kill()
    network.run(600)
    assert client.served_by == ""
    network["c"].start()
    network.until_served(client, 61.0)
    assert client.served_by == "c"


def test_a_crowd_is_spread_over_those_who_are_left():
    network = network_of("a", "b", "c")
    clients = [network.worker("a", name=f"w{number}") for number in range(40)]
    network.run(3)
    assert {client.served_by for client in clients} == {"a"}
    network["a"].kill()
    network.run(8)
    counts = [sum(client.served_by == name for client in clients) for name in "bc"]
    assert sum(counts) == 40
    assert min(counts) >= 12, counts
    network["a"].start()
    network.run(8)
    assert {client.served_by for client in clients} == {"a"}


def test_who_drains_sends_its_clients_away_and_fails_nothing():
    network = network_of("a", "b")
    backend, frontend = network.worker("a"), network.caller("a")
    network.run(2)
    frontend.ask("begun before")
    network.run(0)
    assert backend.notified(RequestReceived)
    assert network["a"].manage("drain").code == 200
    network.run(0)
    frontend.ask("asked meanwhile")
    network.run(3)
    assert backend.served_by == "a", "it has something in hand"
    backend.answer()
    network.run(3)
    assert frontend.notified(CallAnswered)[0].tag == "begun before"
    assert (backend.served_by, frontend.served_by) == ("b", "b")
    backend.answer()
    network.run(0)
    assert [one.tag for one in frontend.notified(CallAnswered)] == ["begun before", "asked meanwhile"]
    assert frontend.notified(CallFailed) == []
    assert network["a"].manage("enable").code == 200
    network.run(6)
    assert (backend.served_by, frontend.served_by) == ("a", "a")


def test_nobody_leaves_in_the_middle_of_its_work():
    network = network_of("a", "b")
    backend, frontend = network.worker("a"), network.caller("a", "b")
    network.run(2)
    network["a"].kill()
    network.run(8)
    assert (backend.served_by, frontend.served_by) == ("b", "b")
    frontend.ask("x", timeout=25)
    network.run(0)
    network["a"].start()
    network.run(8)
    assert (backend.served_by, frontend.served_by) == ("b", "b"), "both have something to end"
    backend.answer()
    network.run(3)
    assert [one.tag for one in frontend.notified(CallAnswered)] == ["x"]
    assert (backend.served_by, frontend.served_by) == ("a", "a")


def test_a_request_that_may_run_twice_outlives_its_broker():
    network = network_of("a", "b")
    worker_b, frontend = network.worker("b", name="wb"), network.caller("a")
    network.run(3)
    frontend.ask("once")
    frontend.ask("twice", retry=True)
    network.run(0)
    network["a"].kill()
    worker_b.answer()
    network.run(8)
    worker_b.answer()
    network.run(1)
    assert [one.tag for one in frontend.notified(CallAnswered)] == ["twice"]
    assert [(one.tag, one.code) for one in frontend.notified(CallFailed)] == [("once", 502)]


@pytest.mark.parametrize("seed", seeds(10))
def test_a_request_that_may_not_run_twice_does_not(seed: int):
    """Its broker dies, and so did the next one that is tried: that nothing left for that one says nothing of before."""
    network = network_of("a", "b", "c")
    network.rng.seed(seed)
    backend, frontend = network.worker("c"), network.caller("a")
    network.run(3)
    frontend.ask("once")
    network.run(0)
    assert len(backend.notified(RequestReceived)) == 1
    network["b"].kill()
    network["a"].kill()
    network.run(20)
    assert frontend.served_by == "c"
    assert len(backend.notified(RequestReceived)) == 1
    assert [(one.tag, one.code) for one in frontend.notified(CallFailed)] == [("once", 502)]


def test_what_was_held_back_for_a_move_is_sent_when_there_is_none():
    network = network_of("a", "b")
    backend, frontend = network.worker("a"), network.caller("a")
    network.run(2)
    frontend.ask("long", timeout=200)
    network.run(0)
    assert network["a"].manage("drain").code == 200
    network.run(2)
    frontend.ask("short", timeout=100)
    network.run(2)
    assert network["a"].manage("enable").code == 200
    network.run(40)
    assert len(backend.notified(RequestReceived)) == 2, (
        "it stays, because of the long one, and the short one is done here"
    )
    backend.answer()
    network.run(1)
    assert sorted(one.tag for one in frontend.notified(CallAnswered)) == ["long", "short"]


def test_a_backends_own_503_is_its_answer_though_we_are_about_to_go():
    network = network_of("a", "b")
    backend, frontend = network.worker("b"), network.caller("a")
    network.run(2)
    network["a"].kill()
    network.run(8)
    assert frontend.served_by == "b"
    frontend.ask("x")
    network.run(0)
    (work,) = backend.notified(RequestReceived)
    network["a"].start()
    network.run(3)
    backend.act("error", work.id, 503, "not today")
    network.run(8)
    assert [(one.tag, one.code) for one in frontend.notified(CallFailed)] == [("x", 503)]
    assert len(backend.notified(RequestReceived)) == 1


def test_who_drains_alone_sends_its_clients_away_once_there_is_another():
    network = network_of("a", "b")
    backend, frontend = network.worker("a"), network.caller("a")
    network.run(2)
    network["b"].kill()
    network.run(6)
    assert network["a"].manage("drain").code == 200
    network.run(10)
    assert (backend.served_by, frontend.served_by) == ("a", "a"), "there is nobody else"
    network["b"].start()
    network.run(10)
    assert (backend.served_by, frontend.served_by) == ("b", "b")


@pytest.mark.slow
def test_who_cannot_come_home_is_called_less_and_less_often():
    network = network_of("a", "b")
    client = network.worker("a")
    network.run(2)
    network.cut(("w", "a"))
    network.run(15)
    assert client.served_by == "b"
    served = 0
    for _ in range(1_800):
        network.run(1)
        served += client.served_by == "b"
    assert served > 0.97 * 1_800, served
    network.heal()
    network.run(3_700)
    assert client.served_by == "a"


def test_a_worker_is_not_called_away_from_what_waits_for_it():
    network = network_of("a", "b")
    backend = network.worker("a")
    network.run(2)
    network["a"].kill()
    network.run(8)
    frontends = [network.caller("b", name=f"f{number}") for number in range(6)]
    network.run(1)
    for frontend in frontends:
        frontend.ask("x", timeout=200)
    network.run(0)
    assert len(backend.notified(RequestReceived)) == 4, "it has four slots"
    network["a"].start()
    network.run(10)
    backend.answer()
    network.run(1)
    backend.answer()
    network.run(1)
    assert all(frontend.notified(CallAnswered) for frontend in frontends)
    network.run(130)
    assert backend.served_by == "a", "and in the end it comes home"


def test_nobody_can_say_for_another_where_it_belongs():
    network = network_of("a", "b")
    client = network.worker("a", name="victim")
    network["a"].ask_once(BACKEND, ("NEEDBROKER", {"identity": "victim", "preferred_broker": "b"}))
    network.run(2)
    network["b"].kill()
    network.run(6)
    network["b"].start()
    network.run(70)
    assert client.served_by == "a"


def test_a_broker_that_does_not_serve_it_is_no_home():
    network = network_of("a", "b", a={"services": ("glue",)})
    client = network.worker("a")
    network.run(3)
    assert client.served_by == "b", "a does not serve paint"
    network["a"].kill()
    network.run(6)
    network["a"].start()
    network.run(6)
    assert client.served_by == "b"


def test_what_an_administrator_says_goes_to_no_other_broker():
    network = network_of("a", "b")
    client = network.caller("a")
    network.run(2)
    network["a"].kill()
    network.run(0)
    client.act("manage", {"command": "status", "auth_token": "s0_test"}, b"", 30.0, "status")
    network.run(20)
    assert client.served_by == "b"
    assert client.notified(CallFailed) == []
    network.run(20)
    assert [one.tag for one in client.notified(CallFailed)] == ["status"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(40))
def test_whatever_happens_everybody_is_served_in_the_end(seed: int):
    """Kills, sleeps and cuts by chance; then all is well, and everybody is at home."""
    network = network_of("a", "b", "c", "d")
    dice = random.Random(seed)
    clients = [network.worker(*dice.sample("abcd", dice.randint(1, 3)), name=f"w{n}") for n in range(4)]
    clients += [network.caller(*dice.sample("abcd", dice.randint(1, 3)), name=f"f{n}") for n in range(4)]
    homes = {client.name: client.session.connection.endpoint for client in clients}
    network.run(3)
    for _ in range(40):
        node = dice.choice(list(network.brokers.values()))
        client = dice.choice(clients)
        match dice.randrange(5):
            case 0:
                node.kill() if node.up else node.start()
            case 1:
                node.frozen = not node.frozen
            case 2:
                network.cut((node.name, client.name))
            case 3:
                network.heal()
            case _ if client.socket == FRONTEND:
                client.ask("any", timeout=5.0, retry=True)
        network.run(dice.random() * 4)
        for one in clients:
            one.answer()
    network.repair()
    network.run(130)
    for _ in range(30):  # whoever asks for nothing is not looked for
        for client in clients:
            if client.socket == FRONTEND:
                client.ask("last", retry=True)
        network.run(1)
        for client in clients:
            client.answer()
        network.run(9)
    assert {client.name: client.served_by for client in clients if not client.served_by} == {}
    away = [client.name for client in clients if endpoint_of(client.served_by, client.socket) != homes[client.name]]
    assert away == []

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
from tests.unit.broker.guests import answer, ask, caller, town, until_served, worker
from tests.unit.broker.network import place_of

INTERVAL = 1.0


@pytest.mark.parametrize("make", [worker, caller])
@pytest.mark.parametrize("seed", seeds(10))
def test_a_client_with_one_address_is_served_by_another_within_seconds(make: Any, seed: int):
    network, nodes = town("a", "b", "c")
    network.dice.seed(seed)
    guest = make(network, "a")
    network.run(2)
    assert guest.place == "a"
    network.run(network.dice.random() * 2)
    nodes["a"].kill()
    network.run(0)
    if make is caller:
        ask(guest, "x")  # an idle frontend expects nothing, and looks for nobody
    until_served(network, guest, 5.0)
    assert guest.place in ("b", "c")


@pytest.mark.parametrize("make", [worker, caller])
def test_it_comes_home_when_its_broker_is_back(make: Any):
    network, nodes = town("a", "b", "c")
    guest = make(network, "a")
    network.run(2)
    nodes["a"].kill()
    network.run(10)
    assert guest.place in ("b", "c")
    nodes["a"].start()
    network.run(6)
    assert guest.place == "a"


def test_it_comes_home_though_nobody_noticed_that_its_broker_was_away():
    network, nodes = town("a", "b", "c")
    guest = worker(network, "a")
    network.run(2)
    nodes["a"].kill()
    until_served(network, guest, 5.0)
    nodes["a"].start()
    network.run(5)
    assert guest.place == "a"


@pytest.mark.parametrize("make", [worker, caller])
@pytest.mark.parametrize("seed", seeds(20))
def test_it_comes_home_soon_however_often_its_broker_dies_and_whenever_it_is_back(make: Any, seed: int):
    """Whoever is between two brokers when its own comes back, or was told to stay just before, hears of it too."""
    network, nodes = town("a", "b", "c")
    network.dice.seed(seed)
    dice = random.Random(seed)
    guest = make(network, "a")
    network.run(3)
    for _ in range(6):
        nodes["a"].kill()
        network.run(0)
        network.run(dice.random() * 5 * INTERVAL)
        nodes["a"].start()
        begun = network.time
        while guest.place != "a":
            if make is caller and not guest.place:
                ask(guest, "x", timeout=1.5, retry=True)  # an idle frontend looks for nobody
            network.run(0.1)
            assert network.time - begun < 10 * INTERVAL, f"still at {guest.place or 'nobody'}"


@pytest.mark.parametrize("make", [worker, caller])
def test_the_first_one_is_down_at_the_start(make: Any):
    network, nodes = town("a", "b")
    nodes["a"].kill()
    network.run(6)
    guest = make(network, "a", "b")
    until_served(network, guest, 5.0)
    assert guest.place == "b"
    nodes["a"].start()
    network.run(6)
    assert guest.place == "a", "the first address is where it belongs"


@pytest.mark.parametrize("make", [worker, caller])
def test_a_then_b_then_back_to_a(make: Any):
    network, nodes = town("a", "b")
    guest = make(network, "a", "b")
    network.run(2)
    nodes["a"].kill()
    network.run(8)
    assert guest.place == "b"
    nodes["b"].kill()
    nodes["a"].start()
    network.run(8)
    assert guest.place == "a"


@pytest.mark.parametrize("make", [worker, caller])
def test_all_are_down_for_minutes(make: Any):
    network, nodes = town("a", "b", "c")
    guest = make(network, "a")
    network.run(2)
    for node in nodes.values():
        node.kill()
    network.run(600)
    assert guest.place == ""
    nodes["c"].start()
    until_served(network, guest, 61.0)
    assert guest.place == "c"


def test_a_crowd_is_spread_over_those_who_are_left():
    network, nodes = town("a", "b", "c")
    guests = [worker(network, "a", name=f"w{number}") for number in range(40)]
    network.run(3)
    assert {guest.place for guest in guests} == {"a"}
    nodes["a"].kill()
    network.run(8)
    counts = [sum(guest.place == name for guest in guests) for name in "bc"]
    assert sum(counts) == 40
    assert min(counts) >= 12, counts
    nodes["a"].start()
    network.run(8)
    assert {guest.place for guest in guests} == {"a"}


def test_who_drains_sends_its_clients_away_and_fails_nothing():
    network, nodes = town("a", "b")
    backend, frontend = worker(network, "a"), caller(network, "a")
    network.run(2)
    ask(frontend, "begun before")
    network.run(0)
    assert backend.told(RequestReceived)
    assert nodes["a"].manage("drain")[0] == 200
    network.run(0)
    ask(frontend, "asked meanwhile")
    network.run(3)
    assert backend.place == "a", "it has something in hand"
    answer(backend)
    network.run(3)
    assert frontend.told(CallAnswered)[0].tag == "begun before"
    assert (backend.place, frontend.place) == ("b", "b")
    answer(backend)
    network.run(0)
    assert [one.tag for one in frontend.told(CallAnswered)] == ["begun before", "asked meanwhile"]
    assert frontend.told(CallFailed) == []
    assert nodes["a"].manage("enable")[0] == 200
    network.run(6)
    assert (backend.place, frontend.place) == ("a", "a")


def test_nobody_leaves_in_the_middle_of_its_work():
    network, nodes = town("a", "b")
    backend, frontend = worker(network, "a"), caller(network, "a", "b")
    network.run(2)
    nodes["a"].kill()
    network.run(8)
    assert (backend.place, frontend.place) == ("b", "b")
    ask(frontend, "x", timeout=25)
    network.run(0)
    nodes["a"].start()
    network.run(8)
    assert (backend.place, frontend.place) == ("b", "b"), "both have something to end"
    answer(backend)
    network.run(3)
    assert [one.tag for one in frontend.told(CallAnswered)] == ["x"]
    assert (backend.place, frontend.place) == ("a", "a")


def test_a_request_that_may_run_twice_outlives_its_broker():
    network, nodes = town("a", "b")
    worker_b, frontend = worker(network, "b", name="wb"), caller(network, "a")
    network.run(3)
    ask(frontend, "once")
    ask(frontend, "twice", retry=True)
    network.run(0)
    nodes["a"].kill()
    answer(worker_b)
    network.run(8)
    answer(worker_b)
    network.run(1)
    assert [one.tag for one in frontend.told(CallAnswered)] == ["twice"]
    assert [(one.tag, one.code) for one in frontend.told(CallFailed)] == [("once", 502)]


@pytest.mark.parametrize("seed", seeds(10))
def test_a_request_that_may_not_run_twice_does_not(seed: int):
    """Its broker dies, and so did the next one that is tried: that nothing left for that one says nothing of before."""
    network, nodes = town("a", "b", "c")
    network.dice.seed(seed)
    backend, frontend = worker(network, "c"), caller(network, "a")
    network.run(3)
    ask(frontend, "once")
    network.run(0)
    assert len(backend.told(RequestReceived)) == 1
    nodes["b"].kill()
    nodes["a"].kill()
    network.run(20)
    assert frontend.place == "c"
    assert len(backend.told(RequestReceived)) == 1
    assert [(one.tag, one.code) for one in frontend.told(CallFailed)] == [("once", 502)]


def test_what_was_held_back_for_a_move_is_sent_when_there_is_none():
    network, nodes = town("a", "b")
    backend, frontend = worker(network, "a"), caller(network, "a")
    network.run(2)
    ask(frontend, "long", timeout=200)
    network.run(0)
    assert nodes["a"].manage("drain")[0] == 200
    network.run(2)
    ask(frontend, "short", timeout=100)
    network.run(2)
    assert nodes["a"].manage("enable")[0] == 200
    network.run(40)
    assert len(backend.told(RequestReceived)) == 2, "it stays, because of the long one, and the short one is done here"
    answer(backend)
    network.run(1)
    assert sorted(one.tag for one in frontend.told(CallAnswered)) == ["long", "short"]


def test_a_backends_own_503_is_its_answer_though_we_are_about_to_go():
    network, nodes = town("a", "b")
    backend, frontend = worker(network, "b"), caller(network, "a")
    network.run(2)
    nodes["a"].kill()
    network.run(8)
    assert frontend.place == "b"
    ask(frontend, "x")
    network.run(0)
    (work,) = backend.told(RequestReceived)
    nodes["a"].start()
    network.run(3)
    backend.act("error", work.id, 503, "not today")
    network.run(8)
    assert [(one.tag, one.code) for one in frontend.told(CallFailed)] == [("x", 503)]
    assert len(backend.told(RequestReceived)) == 1


def test_who_drains_alone_sends_its_clients_away_once_there_is_another():
    network, nodes = town("a", "b")
    backend, frontend = worker(network, "a"), caller(network, "a")
    network.run(2)
    nodes["b"].kill()
    network.run(6)
    assert nodes["a"].manage("drain")[0] == 200
    network.run(10)
    assert (backend.place, frontend.place) == ("a", "a"), "there is nobody else"
    nodes["b"].start()
    network.run(10)
    assert (backend.place, frontend.place) == ("b", "b")


@pytest.mark.slow
def test_who_cannot_come_home_is_called_less_and_less_often():
    network, _ = town("a", "b")
    guest = worker(network, "a")
    network.run(2)
    network.cut(("w", "a"))
    network.run(15)
    assert guest.place == "b"
    served = 0
    for _ in range(1_800):
        network.run(1)
        served += guest.place == "b"
    assert served > 0.97 * 1_800, served
    network.heal()
    network.run(3_700)
    assert guest.place == "a"


def test_a_worker_is_not_called_away_from_what_waits_for_it():
    network, nodes = town("a", "b")
    backend = worker(network, "a")
    network.run(2)
    nodes["a"].kill()
    network.run(8)
    frontends = [caller(network, "b", name=f"f{number}") for number in range(6)]
    network.run(1)
    for frontend in frontends:
        ask(frontend, "x", timeout=200)
    network.run(0)
    assert len(backend.told(RequestReceived)) == 4, "it has four slots"
    nodes["a"].start()
    network.run(10)
    answer(backend)
    network.run(1)
    answer(backend)
    network.run(1)
    assert all(frontend.told(CallAnswered) for frontend in frontends)
    network.run(130)
    assert backend.place == "a", "and in the end it comes home"


def test_nobody_can_say_for_another_where_it_belongs():
    network, nodes = town("a", "b")
    guest = worker(network, "a", name="victim")
    nodes["a"].ask(BACKEND, ("NEEDBROKER", {"identity": "victim", "preferred_broker": "b"}))
    network.run(2)
    nodes["b"].kill()
    network.run(6)
    nodes["b"].start()
    network.run(70)
    assert guest.place == "a"


def test_a_broker_that_does_not_serve_it_is_no_home():
    network, nodes = town("a", "b", a={"services": ("glue",)})
    guest = worker(network, "a")
    network.run(3)
    assert guest.place == "b", "a does not serve paint"
    nodes["a"].kill()
    network.run(6)
    nodes["a"].start()
    network.run(6)
    assert guest.place == "b"


def test_what_an_administrator_says_goes_to_no_other_broker():
    network, nodes = town("a", "b")
    guest = caller(network, "a")
    network.run(2)
    nodes["a"].kill()
    network.run(0)
    guest.act("manage", {"command": "status", "auth_token": "s0_test"}, b"", 30.0, "status")
    network.run(20)
    assert guest.place == "b"
    assert guest.told(CallFailed) == []
    network.run(20)
    assert [one.tag for one in guest.told(CallFailed)] == ["status"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(40))
def test_whatever_happens_everybody_is_served_in_the_end(seed: int):
    """Kills, sleeps and cuts by chance; then all is well, and everybody is at home."""
    network, nodes = town("a", "b", "c", "d")
    dice = random.Random(seed)
    guests = [worker(network, *dice.sample("abcd", dice.randint(1, 3)), name=f"w{n}") for n in range(4)]
    guests += [caller(network, *dice.sample("abcd", dice.randint(1, 3)), name=f"f{n}") for n in range(4)]
    homes = {guest.name: guest.session.connection.endpoint for guest in guests}
    network.run(3)
    for _ in range(40):
        node = dice.choice(list(nodes.values()))
        guest = dice.choice(guests)
        match dice.randrange(5):
            case 0:
                node.kill() if node.up else node.start()
            case 1:
                node.frozen = not node.frozen
            case 2:
                network.cut((node.name, guest.name))
            case 3:
                network.heal()
            case _ if guest.door == FRONTEND:
                ask(guest, "any", timeout=5.0, retry=True)
        network.run(dice.random() * 4)
        for one in guests:
            answer(one)
    network.heal()
    for node in nodes.values():
        node.frozen = False
        if not node.up:
            node.start()
    network.run(130)
    for _ in range(30):  # whoever asks for nothing is not looked for
        for guest in guests:
            if guest.door == FRONTEND:
                ask(guest, "last", retry=True)
        network.run(1)
        for guest in guests:
            answer(guest)
        network.run(9)
    assert {guest.name: guest.place for guest in guests if not guest.place} == {}
    away = [guest.name for guest in guests if place_of(guest.place, guest.door) != homes[guest.name]]
    assert away == []

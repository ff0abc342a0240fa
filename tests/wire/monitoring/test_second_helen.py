"""Two Helens in one network: short heartbeats, old agents, forwarding, and kill -9."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import scale0
from tests.fakes.fake_agent import FakeAgent
from tests.fakes.helen_process import HelenProcess, helen_process
from tests.fakes.waiting import until
from tests.wire.monitoring.network import OK, Network, unique

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.fixture(scope="module")
def second_helen(wire_network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HelenProcess]:
    """Hers are short heartbeats, and she is particular about the age of agents."""
    folder = tmp_path_factory.mktemp("h2") / "helen-2"
    config: Any = {"heartbeat_seconds": 1, "min_equus_version": "2.0.0"}
    with helen_process(folder, wire_network.broker, "helen-2", **config) as helen:
        until(lambda: any(row["service"] == "helen.helen-2.check" for row in wire_network.client.services()))
        yield helen


@pytest.fixture
def second(second_helen: HelenProcess) -> Iterator[HelenProcess]:
    yield second_helen
    second_helen.close_agents()


def greet(helen: HelenProcess, name: str, version: int, software: str = "2.0.0") -> FakeAgent:
    agent = helen.agent(name)
    agent.hello(version, software)
    return agent


def asked_of_the_first(network: Network, agent: FakeAgent, name: str) -> str:
    """One `helen.check` that helen-1 is handed, as helen-2 had work last; what came of it."""
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            if not agent.is_silent(0.02):
                received = agent.message()
                if received.command == "check":
                    agent.answer(received, OK)
                elif received.command == "ping":
                    agent.send(b"pong %d\n" % received.number)

    network.ask("helen.helen-2.agents")
    server = threading.Thread(target=serve)
    server.start()
    try:
        return str(network.ask("helen.check", agent=name, check="c", args={}, timeout=5)["state"])
    except scale0.CallError as error:
        return str(error.code)
    finally:
        over.set()
        server.join()


def test_a_check_is_forwarded_as_soon_as_the_other_helen_is_there(network: Network, second: HelenProcess) -> None:
    """Her services are known to the network (the fixture saw them); so her agents are connected, and not 404."""
    name = unique("web")
    agent = greet(second, name, 2)
    agent.expect_accepted()
    assert asked_of_the_first(network, agent, name) == "ok"


# Promise: AGENT-12
def test_who_is_silent_is_asked_and_given_up_and_version_1_is_neither(network: Network, second: HelenProcess) -> None:
    """Three at once: one of version 2 that answers pings, one that does not, and one of version 1 that says nothing."""
    alive, dead, old = unique("web"), unique("web"), unique("web")
    living, dying, silent = greet(second, alive, 2), greet(second, dead, 2), greet(second, old, 1)
    assert dying.expect("accepted").number == 1
    living.expect_accepted()
    began = time.monotonic()
    pings = 0
    while not dying.is_closed():
        assert time.monotonic() - began < 8, "an agent that answers no ping was never given up"
        if not living.is_silent(0.05):
            living.send(b"pong %d\n" % living.expect("ping").number)
            pings += 1
    took = time.monotonic() - began
    assert took > 2.5, f"given up after {took:.1f} s, where three heartbeats are 3 s"
    assert took < 5.5
    assert pings >= 2
    until(lambda: dead not in {row["agent"] for row in network.connected("helen.helen-2.agents")})
    assert silent.is_silent(0.01), "version 1 knows no ping"
    for agent in (living, silent):
        network.check_answers(agent, "helen.helen-2.check")


def test_software_too_old_is_sent_reload_and_refused_if_it_comes_back_unchanged(second: HelenProcess) -> None:
    for version in (1, 2):
        name = unique("old")
        agent = greet(second, name, version, "1.9.9")
        assert agent.message().words == [b"reload"]
        agent.close()
        greet(second, name, version, "1.9.9").expect_error()
    name = unique("renewed")
    agent = greet(second, name, 2, "1.9.9")
    assert agent.message().words == [b"reload"]
    agent.close()
    greet(second, name, 2, "2.0.0").expect("accepted")


# Promise: AGENT-5
def test_a_helen_that_does_not_hold_the_agent_forwards(network: Network, second: HelenProcess) -> None:
    """`helen.check` goes to any Helen, and ends at the one who holds the agent."""
    name = unique("web")
    agent = greet(second, name, 2)
    agent.expect_accepted()
    until(lambda: asked_of_the_first(network, agent, name) == "ok", seconds=15, every=0.5)
    network.ask("helen.helen-2.agents")
    network.ask("helen.reload", agent=name)
    agent.expect("reload")
    assert network.refused("helen.check", agent="never-seen", check="c", args={}) == 404


# Promise: AGENT-6
def test_what_is_acknowledged_survives_kill_9_and_counts_once(network: Network, second: HelenProcess) -> None:
    name = unique("web")
    blobs = [json.dumps({"state": "ok", "spool": "s", "n": n}).encode() for n in range(1, 51)]
    sent = b"".join(b"report %d disk %d\n%s\n" % (n, len(blob), blob) for n, blob in enumerate(blobs, 1))
    agent = greet(second, name, 2)
    agent.expect_accepted()
    agent.send(sent)
    while agent.expect("ack").number < 50:
        pass
    second.close()  # kill -9
    second.start()
    assert len(second.events("check.answered", name)) == 50
    agent = greet(second, name, 2)
    agent.expect_accepted()
    agent.send(sent)
    while agent.expect("ack").number < 50:
        pass
    refs = [event["ref"] for event in second.events("check.answered", name)]
    assert sorted(refs) == sorted(f"s:{n}" for n in range(1, 51))

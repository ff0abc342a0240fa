"""Two Helens in one network: short heartbeats, old agents, forwarding, and kill -9."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import pytest

import scale0
from tests.fakes.waiting import until
from tests.wire.monitoring.network import Helen, Network, answer, unique
from tests.wire.monitoring.raw_agent import RawAgent

pytestmark = [pytest.mark.processes, pytest.mark.slow]

OK = {"state": "ok", "message": "fine"}


@pytest.fixture(scope="module")
def second_helen(wire_network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Helen]:
    """Hers are short heartbeats, and she is particular about the age of agents."""
    folder = tmp_path_factory.mktemp("h2") / "helen-2"
    helen = Helen(folder, wire_network.broker, "helen-2", heartbeat_seconds=1, min_equus_version="2.0.0")
    try:
        until(lambda: any(row["service"] == "helen.helen-2.check" for row in wire_network.client.services()))
        yield helen
    finally:
        helen.process.close()


@pytest.fixture
def second(second_helen: Helen) -> Iterator[Helen]:
    yield second_helen
    second_helen.let_go()


def greet(helen: Helen, name: str, version: int, software: str = "2.0.0") -> RawAgent:
    agent = helen.agent(name, None)
    agent.hello(version, software)
    return agent


def asked_of_the_first(network: Network, agent: RawAgent, name: str) -> str:
    """One `helen.check` that helen-1 is handed, as helen-2 had work last; what came of it."""
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            if not agent.silent(0.02):
                heard = agent.message()
                if heard.command == "check":
                    agent.answer(heard, OK)
                elif heard.command == "ping":
                    agent.send(b"pong %d\n" % heard.number)

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


def test_a_check_is_forwarded_as_soon_as_the_other_helen_is_there(network: Network, second: Helen) -> None:
    """Her services are known to the network (the fixture saw them); so her agents are connected, and not 404."""
    name = unique("web")
    agent = greet(second, name, 2)
    agent.hear("accepted")
    agent.hear("schedule")
    assert asked_of_the_first(network, agent, name) == "ok"


# Promise: AGENT-12
def test_who_is_silent_is_asked_and_given_up_and_version_1_is_neither(network: Network, second: Helen) -> None:
    """Three at once: one of version 2 that answers pings, one that does not, and one of version 1 that says nothing."""
    alive, dead, old = unique("web"), unique("web"), unique("web")
    living, dying, silent = greet(second, alive, 2), greet(second, dead, 2), greet(second, old, 1)
    assert dying.hear("accepted").number == 1
    living.hear("accepted")
    living.hear("schedule")
    began = time.monotonic()
    pings = 0
    while not dying.is_over():
        assert time.monotonic() - began < 8, "an agent that answers no ping was never given up"
        if not living.silent(0.05):
            living.send(b"pong %d\n" % living.hear("ping").number)
            pings += 1
    took = time.monotonic() - began
    assert took > 2.5, f"given up after {took:.1f} s, where three heartbeats are 3 s"
    assert took < 5.5
    assert pings >= 2
    until(lambda: dead not in {row["agent"] for row in network.connected("helen.helen-2.agents")})
    assert silent.silent(0.01), "version 1 knows no ping"
    for name, agent in ((alive, living), (old, silent)):
        asked = network.start("helen.helen-2.check", agent=name, check="c", args={})
        agent.answer(agent.hear("check"), OK)
        assert answer(asked)["state"] == "ok"


def test_software_too_old_is_told_to_reload_and_refused_if_it_comes_back_unchanged(second: Helen) -> None:
    for version in (1, 2):
        name = unique("old")
        agent = greet(second, name, version, "1.9.9")
        assert agent.message().words == [b"reload"]
        agent.close()
        greet(second, name, version, "1.9.9").refused()
    name = unique("renewed")
    agent = greet(second, name, 2, "1.9.9")
    assert agent.message().words == [b"reload"]
    agent.close()
    greet(second, name, 2, "2.0.0").hear("accepted")


# Promise: AGENT-5
def test_a_helen_that_does_not_hold_the_agent_forwards(network: Network, second: Helen) -> None:
    """`helen.check` goes to any Helen, and ends at the one who holds the agent."""
    name = unique("web")
    agent = greet(second, name, 2)
    agent.hear("accepted")
    agent.hear("schedule")
    until(lambda: asked_of_the_first(network, agent, name) == "ok", seconds=15, every=0.5)
    network.ask("helen.helen-2.agents")
    network.ask("helen.reload", agent=name)
    agent.hear("reload")
    with pytest.raises(scale0.CallError) as refused:
        network.ask("helen.check", agent="never-seen", check="c", args={})
    assert refused.value.code == 404


# Promise: AGENT-6
def test_what_is_acknowledged_survives_kill_9_and_counts_once(network: Network, second: Helen) -> None:
    name = unique("web")
    blobs = [json.dumps({"state": "ok", "spool": "s", "n": n}).encode() for n in range(1, 51)]
    sent = b"".join(b"report %d disk %d\n%s\n" % (n, len(blob), blob) for n, blob in enumerate(blobs, 1))
    agent = greet(second, name, 2)
    agent.hear("accepted")
    agent.hear("schedule")
    agent.send(sent)
    while agent.hear("ack").number < 50:
        pass
    second.process.close()  # kill -9
    second.restart()
    assert len(second.events("check.answered", name)) == 50
    agent = greet(second, name, 2)
    agent.hear("accepted")
    agent.hear("schedule")
    agent.send(sent)
    while agent.hear("ack").number < 50:
        pass
    refs = [event["ref"] for event in second.events("check.answered", name)]
    assert sorted(refs) == sorted(f"s:{n}" for n in range(1, 51))

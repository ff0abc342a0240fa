"""A raw agent of version 2: accepted, ping, schedule, report and ack, fetch (PROTOCOL 10)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes.fake_agent import FakeAgent
from tests.fakes.helen_process import HelenProcess
from tests.fakes.waiting import until
from tests.wire.monitoring.network import MIB, Network, answer, unique

pytestmark = pytest.mark.processes


def report(sequence: int, name: str, spool: str, n: int, **more: Any) -> bytes:
    blob = json.dumps({"state": "ok", "message": "m", "spool": spool, "n": n, **more}).encode()
    return b"report %d %s %d\n%s\n" % (sequence, name.encode(), len(blob), blob)


def acked(agent: FakeAgent, last: int) -> list[int]:
    """Every ack until the one of `last`; they must only grow. A schedule may come between."""
    received: list[int] = []
    while not received or received[-1] < last:
        message = agent.message()
        if message.command != "schedule":
            assert message.command == "ack", message
            received.append(message.number)
    assert received == sorted(set(received))
    assert received[-1] == last
    return received


# Promise: AGENT-11
def test_accepted_comes_first_then_the_schedule(helen: HelenProcess) -> None:
    agent = helen.agent(unique("web"), 2)
    first = agent.message()
    assert first.command == "accepted"
    assert len(first.words) == 2
    assert first.number >= 1
    schedule = agent.expect("schedule")
    assert set(schedule.json) == {"version", "checks"}


def test_a_ping_is_answered_by_a_pong_of_the_same_id(agent_2: FakeAgent) -> None:
    for number in (0, 7, 7, 2_147_483_647):
        agent_2.send(b"ping %d\n" % number)
        assert agent_2.expect("pong").words == [b"pong", b"%d" % number]


def test_checks_and_results_work_in_version_2_as_in_1(network: Network, agent_2: FakeAgent) -> None:
    asked = network.check(agent_2, "disk", {"a": 1})
    received = agent_2.expect("check")
    assert received.json == {"a": 1}
    agent_2.answer(received, {"state": "critical", "message": "full"})
    assert answer(asked)["state"] == "critical"


def test_a_fetch_is_answered_by_an_empty_file(agent_2: FakeAgent) -> None:
    for name in (b"stage0", b"../../../../etc/passwd", b"/etc/passwd", b"ca-key.pem", "größe".encode()):
        agent_2.send(b"fetch 9 %s\n" % name)
        received = agent_2.expect("file")
        assert received.words == [b"file", b"9", name, b"0"]
        assert received.blob == b""


# Promise: AGENT-11
def test_the_schedule_holds_what_the_document_says_and_follows_it(network: Network, helen: HelenProcess) -> None:
    name, check, elsewhere = unique("web"), unique("load"), unique("load")
    agent = network.join(name, 2)
    wanted = {"check": "cpu", "args": {"a": [1, "x y"], "ü": None}, "interval": 7.5, "timeout": 3}
    network.manage(
        "patch_config",
        set={
            f"checks.{check}": {"name": check, "agents": [name], **wanted},
            f"checks.{elsewhere}": {"name": elsewhere, "agents": ["nobody-*"]},
        },
    )
    first = agent.expect("schedule").json
    assert set(first) == {"version", "checks"}
    [mine] = [entry for entry in first["checks"] if entry["name"] == check]
    assert mine == {"name": check, **wanted}
    assert elsewhere not in {entry["name"] for entry in first["checks"]}

    late = helen.agent(unique("late"), 2)  # not of this check's agents
    late.expect("accepted")
    assert check not in {entry["name"] for entry in late.expect("schedule").json["checks"]}

    network.manage("patch_config", remove=[f"checks.{check}", f"checks.{elsewhere}"])
    second = agent.expect("schedule").json
    assert check not in {entry["name"] for entry in second["checks"]}
    assert second["version"] != first["version"]


# Promise: AGENT-6
def test_reports_are_acknowledged_up_to_the_last(helen: HelenProcess, agent_2: FakeAgent) -> None:
    agent_2.send(b"".join(report(n, "disk", "one", n) for n in range(1, 21)))
    acked(agent_2, 20)
    refs = [event["ref"] for event in helen.events("check.answered", agent_2.name)]
    assert sorted(refs) == sorted(f"one:{n}" for n in range(1, 21))
    agent_2.send(report(21, "disk", "one", 21))
    acked(agent_2, 21)


# Promise: AGENT-6
def test_a_repeated_report_is_acknowledged_and_counts_once(
    network: Network, helen: HelenProcess, agent_2: FakeAgent
) -> None:
    """On the same connection, and on the next one, where its sequence is another."""
    agent_2.send(report(1, "disk", "one", 5) + report(2, "disk", "one", 5))
    acked(agent_2, 2)
    agent_2.close()
    agent_2 = network.join(agent_2.name, 2)
    agent_2.send(report(1, "disk", "one", 5) + report(2, "disk", "one", 6) + report(3, "disk", "two", 5))
    acked(agent_2, 3)
    refs = [event["ref"] for event in helen.events("check.answered", agent_2.name)]
    assert sorted(refs) == ["one:5", "one:6", "two:5"]


def test_numbers_may_come_in_any_order(helen: HelenProcess, agent_2: FakeAgent) -> None:
    """After an outage new results may go before old ones; all of them count, and still once."""
    numbers = [90, 3, 1, 2, 50, 3, 1_000_000, 1, 4]
    agent_2.send(b"".join(report(at, "disk", "one", n) for at, n in enumerate(numbers, 1)))
    acked(agent_2, len(numbers))
    refs = [event["ref"] for event in helen.events("check.answered", agent_2.name)]
    assert sorted(refs) == sorted(f"one:{n}" for n in set(numbers))


def test_two_agents_with_one_spool_name_are_two(network: Network, helen: HelenProcess) -> None:
    one, two = unique("web"), unique("web")
    for name in (one, two):
        agent = network.join(name, 2)
        agent.send(report(1, "disk", "twin", 1))
        acked(agent, 1)
        assert [event["ref"] for event in helen.events("check.answered", name)] == ["twin:1"]


# Promise: AGENT-6
def test_a_repeated_problem_is_one_attempt(network: Network, agent_2: FakeAgent) -> None:
    check = unique("disk")
    definition = {"name": check, "agents": [agent_2.name], "max_attempts": 2}
    network.manage("patch_config", set={f"checks.{check}": definition})
    assert check in {entry["name"] for entry in agent_2.expect("schedule").json["checks"]}
    for sequence in range(1, 6):
        agent_2.send(report(sequence, check, "one", 1, state="critical"))
    acked(agent_2, 5)
    row = network.watched(agent_2, check)
    assert (row["state"], row["hard"]) == ("critical", False)
    agent_2.send(report(6, check, "one", 2, state="critical", message="still"))
    acked(agent_2, 6)
    assert network.watched(agent_2, check)["hard"] is True
    network.manage("patch_config", remove=[f"checks.{check}"])


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"no json",
        b"\xff",
        b"[]",
        b'{"state":"ok"}',
        b'{"state":"ok","spool":"s","n":-1}',
        b'{"state":"ok","spool":"s","n":1.5}',
        b'{"state":"ok","spool":"s","n":99999999999999999999999}',
        b'{"state":"ok","spool":7,"n":"1"}',
        b'{"state":"ok","spool":"s","n":1,"started":1e999,"seconds":-5,"age":-1e18,"sent":1e300}',
        b'{"state":"ok","spool":"s","n":1,"n":2}',
        b"[" * 100_000,
    ],
)
def test_a_report_that_is_none_is_acknowledged_or_refused_and_nothing_breaks(blob: bytes, agent_2: FakeAgent) -> None:
    """Never silence: an agent_2 would send it again for ever."""
    agent_2.send(b"report 1 disk %d\n%s\n" % (len(blob), blob))
    received = agent_2.message()
    assert received.command in ("ack", "error")
    if received.command == "ack":
        agent_2.send(report(2, "disk", "s", 77))
        acked(agent_2, 2)


def test_a_report_of_a_whole_mebibyte_is_taken(helen: HelenProcess, agent_2: FakeAgent) -> None:
    plain = json.dumps({"state": "ok", "spool": "s", "n": 1, "message": ""}).encode()
    blob = plain[:-2] + b"m" * (MIB - len(plain)) + plain[-2:]
    assert len(blob) == MIB
    agent_2.send(b"report 1 disk %d\n%s\n" % (MIB, blob))
    acked(agent_2, 1)
    assert len(helen.events("check.answered", agent_2.name)) == 1


# Promise: AGENT-9
def test_a_report_from_the_future_is_not_dated_after_now(helen: HelenProcess, agent_2: FakeAgent) -> None:
    agent_2.send(report(1, "disk", "s", 1, started=9e9, seconds=0.1, sent=9e9))
    acked(agent_2, 1)
    [event] = helen.events("check.answered", agent_2.name)
    assert event["at"] <= event["time"]


def test_labels_and_checks_of_the_agents_own_file_are_listed(network: Network, agent_2: FakeAgent) -> None:
    agent_2.send(report(1, "equus.agent", "s", 1, labels={"role": "db"}, checks=["cpu", "disk"]))
    acked(agent_2, 1)
    row = until(lambda: [row for row in network.connected() if row["agent"] == agent_2.name and row["labels"]])[0]
    assert row["labels"] == {"role": "db"}
    assert row["checks"] == ["cpu", "disk"]


def test_terminals_are_not_to_be_had_and_nothing_breaks(network: Network) -> None:
    """The words of terminals and upgrades, from an agent whom nobody asked: an answer or an error, and others go on."""
    name = unique("web")
    honest = network.join(name, 2)
    for line in (b"open 1 2\n{}\n", b"data 1 2\nls\n", b"resize 1 80 24\n", b"close 1 0\n", b"upgrade 1 2\n{}\n"):
        agent = network.join(unique("odd"), 2)
        agent.send(line + b"ping 3\n")
        assert agent.message().command in ("error", "pong", "close")
    honest.send(b"ping 1\n")
    honest.expect("pong")


@pytest.mark.parametrize("version", [3, 2_147_483_647])
def test_a_newer_protocol_is_met_with_what_helen_speaks_or_refused(helen: HelenProcess, version: int) -> None:
    agent = helen.agent(unique("web"), version)
    assert agent.message().command in ("accepted", "error")


def test_an_agent_too_old_is_sent_reload_and_refused_if_it_comes_back_unchanged(helen: HelenProcess) -> None:
    name = unique("old")
    agent = helen.agent(name, 0)
    assert agent.message().words == [b"reload"]
    agent.close()
    helen.agent(name, 0).expect_error()
    helen.agent(name, 2).expect("accepted")

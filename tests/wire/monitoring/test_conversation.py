"""A raw agent of version 1: hello, check, result, reload, with the bytes cut in every way (PROTOCOL 10)."""

from __future__ import annotations

import json
import time

import pytest

import scale0
from tests.fakes.fake_agent import FakeAgent
from tests.fakes.helen_process import HelenProcess
from tests.fakes.waiting import until
from tests.wire.monitoring.network import MIB, OK, Network, answer, error_code, unique

pytestmark = pytest.mark.processes


def text_result(length: int) -> bytes:
    """A result of exactly this many bytes."""
    empty = len(json.dumps({"state": "ok", "message": ""}))
    return json.dumps({"state": "ok", "message": "m" * (length - empty)}).encode()


# Promise: AGENT-5
def test_a_check_goes_out_and_its_result_comes_back(network: Network, agent: FakeAgent) -> None:
    asked = network.check(agent, "disk", {"path": "/var", "limit": 3})
    received = agent.expect("check")
    assert received.words[1] == b"disk"
    assert received.json == {"path": "/var", "limit": 3}
    metric = {"name": "used", "value": 1.5, "unit": "%", "warn": 80, "crit": 90, "min": 0, "max": 100}
    agent.answer(
        received, {"state": "warning", "message": "füll", "metrics": [metric], "started": 5.0, "seconds": 0.25}
    )
    got = answer(asked)
    assert (got["state"], got["message"], got["started"], got["seconds"]) == ("warning", "füll", 5.0, 0.25)
    assert got["metrics"][0]["name"] == "used"
    assert got["metrics"][0]["value"] == 1.5


# Promise: AGENT-3
def test_version_1_receives_nothing_but_version_1(network: Network, agent: FakeAgent) -> None:
    check = unique("check")
    network.manage("patch_config", set={f"checks.{check}": {"name": check, "agents": [agent.name]}})
    network.check_answers(agent)
    assert agent.is_silent()
    network.manage("patch_config", remove=[f"checks.{check}"])


# Promise: AGENT-4
def test_message_ids_are_never_repeated(network: Network, agent: FakeAgent) -> None:
    seen = set()
    for _ in range(20):
        asked = network.check(agent)
        received = agent.expect("check")
        agent.answer(received, OK)
        answer(asked)
        assert 0 <= received.number < 2**31
        seen.add(received.number)
    assert len(seen) == 20


# Promise: AGENT-4
def test_eight_checks_at_once_answered_in_reverse_in_one_record(network: Network, agent: FakeAgent) -> None:
    asked = {f"check-{n}": network.check(agent, f"check-{n}") for n in range(8)}
    received = [agent.expect("check") for _ in range(8)]
    assert {message.words[1].decode() for message in received} == set(asked)
    blobs = [json.dumps({"state": "ok", "message": message.words[1].decode()}).encode() for message in received]
    pairs = zip(reversed(received), reversed(blobs), strict=True)
    agent.send(b"".join(b"result %d %s %d\n%s\n" % (one.number, one.words[1], len(blob), blob) for one, blob in pairs))
    for check, pending in asked.items():
        assert answer(pending)["message"] == check


# Promise: AGENT-1
def test_bytes_may_come_one_at_a_time(network: Network, helen: HelenProcess) -> None:
    name = unique("web")
    agent = helen.agent(name)
    for byte in b"hello 1 slow/1\n":
        agent.send(bytes([byte]))
    until(lambda: network.knows(name))
    asked = network.check(agent)
    received = agent.expect("check")
    blob = json.dumps(OK).encode()
    for byte in b"result %d c %d\n%s\n" % (received.number, len(blob), blob):
        agent.send(bytes([byte]))
    assert answer(asked)["message"] == "fine"


def test_lines_may_end_in_carriage_return_and_newline(network: Network, helen: HelenProcess) -> None:
    name = unique("web")
    agent = helen.agent(name)
    agent.send(b"hello 1 dos/1\r\n")
    until(lambda: network.knows(name))
    asked = network.check(agent)
    received = agent.expect("check")
    agent.send(b'result %d c 14\r\n{"state":"ok"}\n' % received.number)
    assert answer(asked)["state"] == "ok"
    [row] = [row for row in network.connected() if row["agent"] == name]
    assert "\r" not in json.dumps(row)


def test_hello_and_more_may_come_with_the_handshake_in_one_record(helen: HelenProcess) -> None:
    agent = helen.agent(unique("web"))
    agent.send(b"hello 2 quick/1\n")
    agent.expect_accepted()
    agent.send(b"".join(b"ping %d\n" % n for n in range(100)))
    assert [agent.expect("pong").number for _ in range(100)] == list(range(100))


# Promise: AGENT-1
@pytest.mark.parametrize("length", [MIB - 1, MIB])
def test_a_result_of_a_whole_mebibyte_passes(network: Network, length: int, agent: FakeAgent) -> None:
    asked = network.check(agent)
    blob = text_result(length)
    assert len(blob) == length
    agent.answer_next(blob)
    got = answer(asked)
    assert got["state"] == "ok"
    assert got["message"].startswith("mmm")
    network.check_answers(agent)


# Promise: AGENT-1
def test_a_result_one_byte_over_is_refused_on_its_header(network: Network, agent: FakeAgent) -> None:
    network.check(agent, timeout=1)
    agent.send(b"result %d c %d\n" % (agent.expect("check").number, MIB + 1))
    agent.expect_error()


def test_a_result_one_byte_over_is_answered_though_all_of_it_was_sent(network: Network, agent: FakeAgent) -> None:
    network.check(agent, timeout=1)
    agent.answer_next(b"x" * (MIB + 1))
    agent.expect_error()


def test_args_of_a_whole_mebibyte_reach_the_agent_and_one_more_does_not(network: Network, agent: FakeAgent) -> None:
    fits = {"x": "a" * (MIB - len('{"x": ""}'))}
    assert len(json.dumps(fits)) == MIB
    asked = network.check(agent, args=fits)
    received = agent.expect("check")
    assert received.json == fits
    agent.answer(received, OK)
    assert answer(asked)["state"] == "ok"
    assert error_code(network.check(agent, args={"x": fits["x"] + "aa"}, timeout=5)) in (400, 413)
    assert agent.is_silent()


# Promise: CHECK-5
@pytest.mark.parametrize("blob", [b"", b"not json", b"\xff\xfe", b"[]", b"1", b"null", b"{}", b'{"state": "great"}'])
def test_a_result_that_is_no_result_is_unknown_and_harms_nobody(
    network: Network, blob: bytes, agent: FakeAgent
) -> None:
    asked = network.check(agent)
    agent.answer_next(blob)
    assert answer(asked)["state"] == "unknown"
    network.check_answers(agent)


# Promise: CHECK-5
def test_a_nan_in_a_result_never_reaches_the_network(network: Network, agent: FakeAgent) -> None:
    asked = network.check(agent)
    agent.answer_next(b'{"state":"ok","metrics":[{"name":"a","value":NaN},{"name":"b","value":1e999}]}')
    text = asked.result()[0]
    assert b"NaN" not in text
    assert b"Infinity" not in text


def test_nested_json_in_a_result_is_survived(network: Network, agent: FakeAgent) -> None:
    asked = network.check(agent)
    agent.answer_next(b'{"state":"ok","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    assert answer(asked)["state"] in ("ok", "unknown")


def given_up(network: Network) -> None:
    """Helen, too, waits no more: the broker's time began a moment before hers."""
    until(lambda: network.ask(f"helen.{network.helen.identity}.status")["open_checks"] == 0)


# Promise: AGENT-4, AGENT-5
def test_no_result_in_time_is_504_and_a_late_one_is_recorded_and_dropped(
    network: Network, helen: HelenProcess, agent: FakeAgent
) -> None:
    asked = network.check(agent, "slow", timeout=0.7)
    received = agent.expect("check")
    assert error_code(asked) == 504
    given_up(network)
    agent.answer(received, OK)
    until(lambda: helen.events("agent.late", agent.name))
    assert not helen.events("check.answered", agent.name)
    network.check_answers(agent)


def test_a_late_result_sent_twice_is_refused(network: Network, agent: FakeAgent) -> None:
    asked = network.check(agent, timeout=0.5)
    received = agent.expect("check")
    assert error_code(asked) == 504
    given_up(network)
    agent.answer(received, OK)
    agent.answer(received, OK)
    agent.expect_error()


# Promise: AGENT-5
def test_an_agent_that_is_not_connected_is_404_at_once(network: Network) -> None:
    began = time.monotonic()
    assert network.refused("helen.check", agent="never-seen", check="c", args={}) == 404
    assert time.monotonic() - began < 5


# Promise: AGENT-5
def test_a_check_whose_agent_goes_away_ends_in_an_error(network: Network, agent: FakeAgent) -> None:
    asked = network.check(agent, timeout=8)
    agent.expect("check")
    agent.close()
    assert error_code(asked) in (404, 502, 504)


def test_reload_is_sent_to_the_agent_and_404_without_one(network: Network, agent: FakeAgent) -> None:
    network.ask("helen.reload", agent=agent.name)
    assert agent.expect("reload").words == [b"reload"]
    assert network.refused("helen.reload", agent="never-seen") == 404


def test_agents_tells_who_is_connected_since_when_and_in_which_versions(network: Network, helen: HelenProcess) -> None:
    one, two = unique("web"), unique("web")
    before = time.time()
    first = helen.agent(one)
    first.hello(1, "ünï/7.1")
    second = helen.agent(two)
    second.hello(2, "raw/2.2")
    second.expect("accepted")
    rows = until(lambda: rows_of(network, one, two))
    assert (rows[one]["protocol"], rows[one]["software"]) == (1, "ünï/7.1")
    assert (rows[two]["protocol"], rows[two]["software"]) == (2, "raw/2.2")
    assert all(before - 1 < row["since"] < time.time() + 1 for row in rows.values())
    assert all("labels" in row for row in rows.values())
    first.close()
    until(lambda: not network.knows(one))


def rows_of(network: Network, *names: str) -> dict[str, dict[str, object]]:
    """What Helen says of these, once she knows them all."""
    found = {row["agent"]: row for row in network.connected() if row["agent"] in names}
    return found if len(found) == len(names) else {}


# Promise: AGENT-16
def test_the_newcomer_of_a_name_takes_over(network: Network, helen: HelenProcess) -> None:
    old = network.join(unique("web"))
    new = helen.agent(old.name, 1)
    old.expect_error()
    network.check_answers(new)
    assert len([row for row in network.connected() if row["agent"] == old.name]) == 1


def test_an_id_of_another_connection_is_refused(network: Network, helen: HelenProcess) -> None:
    """An id is issued on a connection: neither the same agent's next one nor another agent may answer it."""
    old, stranger = network.join(unique("web")), network.join(unique("web"))
    for _ in range(3):
        network.check(old, timeout=3)
    number = max(old.expect("check").number for _ in range(3))
    stranger.send(b"result %d c 2\n{}\n" % number)
    stranger.expect_error()
    new = helen.agent(old.name, 1)
    new.send(b"result %d c 2\n{}\n" % number)
    new.expect_error()


@pytest.mark.parametrize("check", ["a b", "a\nreload", "a 1 0\n\nreload", "", "a\r", "x" * 9_000])
def test_a_check_name_cannot_carry_another_command(network: Network, check: str, agent: FakeAgent) -> None:
    assert network.refused("helen.check", agent=agent.name, check=check, args={}, timeout=3) in (400, 404, 413)
    assert agent.is_silent(0.1)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"agent": 1}', b"[" * 100_000])
def test_a_body_that_is_none_is_400(network: Network, body: bytes) -> None:
    for service in ("helen.check", "helen.reload"):
        with pytest.raises(scale0.CallError) as refused:
            network.client.request(service, body, timeout=5)
        assert refused.value.code == 400


def test_each_service_is_there_again_under_helens_own_name(network: Network, agent: FakeAgent) -> None:
    assert agent.name in {row["agent"] for row in network.connected("helen.helen-1.agents")}
    network.check_answers(agent, "helen.helen-1.check")
    network.ask("helen.helen-1.reload", agent=agent.name)
    agent.expect("reload")


# Promise: AGENT-14
def test_an_agent_that_never_reads_slows_nobody(network: Network, agent: FakeAgent) -> None:
    deaf = network.join(unique("deaf"))
    big = {"x": "a" * 900_000}
    flood = [network.check(deaf, args=big, timeout=2) for _ in range(12)]
    began = time.monotonic()
    network.check_answers(agent)
    assert time.monotonic() - began < 2
    for pending in flood:
        assert error_code(pending)

"""A raw agent of version 1: hello, check, result, reload, with the bytes cut in every way (PROTOCOL 10)."""

from __future__ import annotations

import json
import time

import pytest

import scale0
from tests.fakes.waiting import until
from tests.wire.monitoring.network import Helen, Network, answer, unique

pytestmark = pytest.mark.processes

MIB = 1_048_576
OK = {"state": "ok", "message": "fine"}


def text_result(length: int) -> bytes:
    """A result of exactly this many bytes."""
    empty = len(json.dumps({"state": "ok", "message": ""}))
    return json.dumps({"state": "ok", "message": "m" * (length - empty)}).encode()


# Promise: AGENT-5
def test_a_check_goes_out_and_its_result_comes_back(network: Network, helen: Helen) -> None:
    name = unique("web")
    agent = network.join(name)
    asked = network.check(name, "disk", {"path": "/var", "limit": 3})
    heard = agent.hear("check")
    assert heard.words[1] == b"disk"
    assert heard.json == {"path": "/var", "limit": 3}
    metric = {"name": "used", "value": 1.5, "unit": "%", "warn": 80, "crit": 90, "min": 0, "max": 100}
    agent.answer(heard, {"state": "warning", "message": "füll", "metrics": [metric], "started": 5.0, "seconds": 0.25})
    got = answer(asked)
    assert (got["state"], got["message"], got["started"], got["seconds"]) == ("warning", "füll", 5.0, 0.25)
    assert got["metrics"][0]["name"] == "used"
    assert got["metrics"][0]["value"] == 1.5


# Promise: AGENT-3
def test_version_1_hears_nothing_but_version_1(network: Network, helen: Helen) -> None:
    name, check = unique("web"), unique("check")
    agent = network.join(name)
    network.manage("patch_config", set={f"checks.{check}": {"name": check, "agents": [name]}})
    asked = network.check(name)
    agent.answer(agent.hear("check"), OK)
    assert answer(asked)["state"] == "ok"
    assert agent.silent()
    network.manage("patch_config", remove=[f"checks.{check}"])


# Promise: AGENT-4
def test_message_ids_are_never_repeated(network: Network, helen: Helen) -> None:
    name = unique("web")
    agent = network.join(name)
    seen = set()
    for _ in range(20):
        asked = network.check(name)
        heard = agent.hear("check")
        agent.answer(heard, OK)
        answer(asked)
        assert 0 <= heard.number < 2**31
        seen.add(heard.number)
    assert len(seen) == 20


# Promise: AGENT-4
def test_eight_checks_at_once_answered_in_reverse_in_one_record(network: Network, helen: Helen) -> None:
    name = unique("web")
    agent = network.join(name)
    asked = {f"check-{n}": network.check(name, f"check-{n}") for n in range(8)}
    heard = [agent.hear("check") for _ in range(8)]
    assert {message.words[1].decode() for message in heard} == set(asked)
    blobs = [json.dumps({"state": "ok", "message": message.words[1].decode()}).encode() for message in heard]
    agent.send(
        b"".join(
            b"result %d %s %d\n%s\n" % (message.number, message.words[1], len(blob), blob)
            for message, blob in reversed(list(zip(heard, blobs, strict=True)))
        )
    )
    for check, pending in asked.items():
        assert answer(pending)["message"] == check


# Promise: AGENT-1
def test_bytes_may_come_one_at_a_time(network: Network, helen: Helen) -> None:
    name = unique("web")
    agent = helen.agent(name, None)
    for byte in b"hello 1 slow/1\n":
        agent.send(bytes([byte]))
    until(lambda: network.knows(name))
    asked = network.check(name)
    heard = agent.hear("check")
    blob = json.dumps(OK).encode()
    for byte in b"result %d c %d\n%s\n" % (heard.number, len(blob), blob):
        agent.send(bytes([byte]))
    assert answer(asked)["message"] == "fine"


def test_lines_may_end_in_carriage_return_and_newline(network: Network, helen: Helen) -> None:
    name = unique("web")
    agent = helen.agent(name, None)
    agent.send(b"hello 1 dos/1\r\n")
    until(lambda: network.knows(name))
    asked = network.check(name)
    heard = agent.hear("check")
    agent.send(b'result %d c 14\r\n{"state":"ok"}\n' % heard.number)
    assert answer(asked)["state"] == "ok"
    [row] = [row for row in network.connected() if row["agent"] == name]
    assert "\r" not in json.dumps(row)


def test_hello_and_more_may_come_with_the_handshake_in_one_record(network: Network, helen: Helen) -> None:
    agent = helen.agent(unique("web"), None)
    agent.send(b"hello 2 quick/1\n")
    agent.hear("accepted")
    agent.hear("schedule")
    agent.send(b"".join(b"ping %d\n" % n for n in range(100)))
    assert [agent.hear("pong").number for _ in range(100)] == list(range(100))


# Promise: AGENT-1
@pytest.mark.parametrize("length", [MIB - 1, MIB])
def test_a_result_of_a_whole_mebibyte_passes(network: Network, helen: Helen, length: int) -> None:
    name = unique("web")
    agent = network.join(name)
    asked = network.check(name)
    blob = text_result(length)
    assert len(blob) == length
    agent.answer(agent.hear("check"), blob)
    got = answer(asked)
    assert got["state"] == "ok"
    assert got["message"].startswith("mmm")
    again = network.check(name)
    agent.answer(agent.hear("check"), OK)
    assert answer(again)["message"] == "fine"


# Promise: AGENT-1
def test_a_result_one_byte_over_is_refused_on_its_header(network: Network, helen: Helen) -> None:
    name = unique("web")
    agent = network.join(name)
    network.check(name, timeout=1)
    agent.send(b"result %d c %d\n" % (agent.hear("check").number, MIB + 1))
    agent.refused()


def test_a_result_one_byte_over_is_told_so_though_all_of_it_was_sent(network: Network, helen: Helen) -> None:
    name = unique("web")
    agent = network.join(name)
    network.check(name, timeout=1)
    agent.answer(agent.hear("check"), b"x" * (MIB + 1))
    agent.refused()


def test_args_of_a_whole_mebibyte_reach_the_agent_and_one_more_does_not(network: Network, helen: Helen) -> None:
    name = unique("web")
    agent = network.join(name)
    fits = {"x": "a" * (MIB - len('{"x": ""}'))}
    assert len(json.dumps(fits)) == MIB
    asked = network.check(name, args=fits)
    heard = agent.hear("check")
    assert heard.json == fits
    agent.answer(heard, OK)
    assert answer(asked)["state"] == "ok"
    with pytest.raises(scale0.CallError) as refused:
        answer(network.check(name, args={"x": fits["x"] + "aa"}, timeout=5))
    assert refused.value.code in (400, 413)
    assert agent.silent()


# Promise: CHECK-5
@pytest.mark.parametrize("blob", [b"", b"not json", b"\xff\xfe", b"[]", b"1", b"null", b"{}", b'{"state": "great"}'])
def test_a_result_that_is_no_result_is_unknown_and_harms_nobody(network: Network, helen: Helen, blob: bytes) -> None:
    name = unique("web")
    agent = network.join(name)
    asked = network.check(name)
    agent.answer(agent.hear("check"), blob)
    assert answer(asked)["state"] == "unknown"
    again = network.check(name)
    agent.answer(agent.hear("check"), OK)
    assert answer(again)["state"] == "ok"


# Promise: CHECK-5
def test_a_nan_in_a_result_never_reaches_the_network(network: Network, helen: Helen) -> None:
    name = unique("web")
    agent = network.join(name)
    asked = network.check(name)
    agent.answer(agent.hear("check"), b'{"state":"ok","metrics":[{"name":"a","value":NaN},{"name":"b","value":1e999}]}')
    text = asked.result()[0]
    assert b"NaN" not in text
    assert b"Infinity" not in text


def test_nested_json_in_a_result_is_survived(network: Network, helen: Helen) -> None:
    name = unique("web")
    agent = network.join(name)
    asked = network.check(name)
    agent.answer(agent.hear("check"), b'{"state":"ok","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    assert answer(asked)["state"] in ("ok", "unknown")


def given_up(network: Network) -> None:
    """Helen, too, waits no more: the broker's time began a moment before hers."""
    until(lambda: network.ask(f"helen.{network.helen.identity}.status")["open_checks"] == 0)


# Promise: AGENT-4, AGENT-5
def test_no_result_in_time_is_504_and_a_late_one_is_recorded_and_dropped(network: Network, helen: Helen) -> None:
    name = unique("web")
    agent = network.join(name)
    asked = network.check(name, "slow", timeout=0.7)
    heard = agent.hear("check")
    with pytest.raises(scale0.CallError) as refused:
        answer(asked)
    assert refused.value.code == 504
    given_up(network)
    agent.answer(heard, OK)
    until(lambda: helen.events("agent.late", name))
    assert not helen.events("check.answered", name)
    again = network.check(name)
    agent.answer(agent.hear("check"), OK)
    assert answer(again)["message"] == "fine"


def test_a_late_result_sent_twice_is_refused(network: Network, helen: Helen) -> None:
    name = unique("web")
    agent = network.join(name)
    asked = network.check(name, timeout=0.5)
    heard = agent.hear("check")
    with pytest.raises(scale0.CallError):
        answer(asked)
    given_up(network)
    agent.answer(heard, OK)
    agent.answer(heard, OK)
    agent.refused()


# Promise: AGENT-5
def test_an_agent_that_is_not_connected_is_404_at_once(network: Network) -> None:
    began = time.monotonic()
    with pytest.raises(scale0.CallError) as refused:
        network.ask("helen.check", agent="never-seen", check="c", args={})
    assert refused.value.code == 404
    assert time.monotonic() - began < 5


# Promise: AGENT-5
def test_a_check_whose_agent_goes_away_ends_in_an_error(network: Network, helen: Helen) -> None:
    name = unique("web")
    agent = network.join(name)
    asked = network.check(name, timeout=8)
    agent.hear("check")
    agent.close()
    with pytest.raises(scale0.CallError) as refused:
        answer(asked)
    assert refused.value.code in (404, 502, 504)


def test_reload_is_said_to_the_agent_and_404_without_one(network: Network, helen: Helen) -> None:
    name = unique("web")
    agent = network.join(name)
    network.ask("helen.reload", agent=name)
    assert agent.hear("reload").words == [b"reload"]
    with pytest.raises(scale0.CallError) as refused:
        network.ask("helen.reload", agent="never-seen")
    assert refused.value.code == 404


def test_agents_tells_who_is_connected_since_when_and_in_which_versions(network: Network, helen: Helen) -> None:
    one, two = unique("web"), unique("web")
    before = time.time()
    first = helen.agent(one, None)
    first.hello(1, "ünï/7.1")
    second = helen.agent(two, None)
    second.hello(2, "raw/2.2")
    second.hear("accepted")
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
def test_the_newcomer_of_a_name_takes_over(network: Network, helen: Helen) -> None:
    name = unique("web")
    old = network.join(name)
    new = helen.agent(name)
    old.refused()
    asked = network.check(name)
    new.answer(new.hear("check"), OK)
    assert answer(asked)["state"] == "ok"
    assert len([row for row in network.connected() if row["agent"] == name]) == 1


def test_an_id_of_another_connection_is_refused(network: Network, helen: Helen) -> None:
    """An id is issued on a connection: neither the same agent's next one nor another agent may answer it."""
    name = unique("web")
    old, stranger = network.join(name), network.join(unique("web"))
    for _ in range(3):
        network.check(name, timeout=3)
    number = max(old.hear("check").number for _ in range(3))
    stranger.send(b"result %d c 2\n{}\n" % number)
    stranger.refused()
    new = helen.agent(name)
    new.send(b"result %d c 2\n{}\n" % number)
    new.refused()


@pytest.mark.parametrize("check", ["a b", "a\nreload", "a 1 0\n\nreload", "", "a\r", "x" * 9_000])
def test_a_check_name_cannot_carry_another_command(network: Network, helen: Helen, check: str) -> None:
    name = unique("web")
    agent = network.join(name)
    with pytest.raises(scale0.CallError) as refused:
        network.ask("helen.check", agent=name, check=check, args={}, timeout=3)
    assert refused.value.code in (400, 404, 413)
    assert agent.silent(0.1)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"agent": 1}', b"[" * 100_000])
def test_a_body_that_is_none_is_400(network: Network, body: bytes) -> None:
    for service in ("helen.check", "helen.reload"):
        with pytest.raises(scale0.CallError) as refused:
            network.client.request(service, body, timeout=5)
        assert refused.value.code == 400


def test_each_service_is_there_again_under_helens_own_name(network: Network, helen: Helen) -> None:
    name = unique("web")
    agent = network.join(name)
    assert name in {row["agent"] for row in network.connected("helen.helen-1.agents")}
    asked = network.start("helen.helen-1.check", agent=name, check="c", args={})
    agent.answer(agent.hear("check"), OK)
    assert answer(asked)["state"] == "ok"
    network.ask("helen.helen-1.reload", agent=name)
    agent.hear("reload")


# Promise: AGENT-14
def test_an_agent_that_never_reads_slows_nobody(network: Network, helen: Helen) -> None:
    deaf, name = unique("deaf"), unique("web")
    network.join(deaf)
    agent = network.join(name)
    big = {"x": "a" * 900_000}
    flood = [network.check(deaf, args=big, timeout=2) for _ in range(12)]
    began = time.monotonic()
    asked = network.check(name)
    agent.answer(agent.hear("check"), OK)
    assert answer(asked)["state"] == "ok"
    assert time.monotonic() - began < 2
    for pending in flood:
        with pytest.raises(scale0.CallError):
            pending.result()

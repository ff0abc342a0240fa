"""The real agent with a fake Helen: checks at once, fresh processes, and files that it refuses."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scale0.history.events.columns import EventMetric
from scale0.monitoring.agent.core.session import MAX_UNACKED_BYTES
from scale0.monitoring.agent.edge.agent import read_boot_id, read_instant, result_json
from scale0.monitoring.agent.edge.process import SPOOL_FOLDER
from scale0.monitoring.agent.edge.spool import Spool
from scale0.monitoring.protocol.results import OK, CheckFinding, read_result
from tests.fakes.agent_process import AgentProcess
from tests.fakes.certificates import Authority
from tests.fakes.fake_helen import FakeHelen, ServingHelen
from tests.fakes.waiting import until
from tests.processes.checks.servers import hold, tcp_server

pytestmark = pytest.mark.processes


@pytest.fixture
def helen(authority: Authority) -> Iterator[FakeHelen]:
    helen = FakeHelen(authority.helen_context())
    yield helen
    helen.close()


def test_a_result_that_is_no_json_is_unknown_and_no_end_of_the_agent(caplog):
    found = read_result(
        result_json(CheckFinding(OK, "fine", (EventMetric("full:/mnt/\udcff", 1.0),), 5.0, 1.0))
    ).finding
    assert found.state == "unknown"
    assert "cannot be encoded" in found.message
    assert "surrogates" in caplog.text


def test_a_boot_that_has_no_name_is_like_no_other(monkeypatch, tmp_path):
    monkeypatch.setattr("scale0.monitoring.agent.edge.agent.BOOT_ID_FILE", tmp_path / "none")
    assert read_boot_id() != read_boot_id()


def test_large_results_wait_for_acknowledgements(authority: Authority, tmp_path: Path):
    """No more of them are on their way than the window has bytes for, whatever their number."""
    size = 1_000_000
    spool = Spool(tmp_path / "data" / SPOOL_FOLDER, "old", read_boot_id())
    for number in range(20):
        spool.append("big", json.dumps({"state": "ok", "message": f"{number}".ljust(size)}).encode(), read_instant())
    spool.close()
    with ServingHelen(authority.helen_context()) as helen:
        helen.acks = False
        with AgentProcess(tmp_path, authority, helen.port):
            most = MAX_UNACKED_BYTES // size + 1
            until(lambda: len(helen.reports) >= most)
            helen.agent.check("uptime")
            until(lambda: helen.results)
            assert len(helen.reports) == most
            helen.agent.send(b"ack %d\n" % helen.reports[-1].sequence)
            until(lambda: len(helen.reports) > most)


# Promise: AGENT-4
def test_checks_run_at_once_and_answer_in_any_order(helen: FakeHelen, authority: Authority, tmp_path: Path):
    connected, go = [], threading.Event()

    def answer_late(connection: Any) -> None:
        connected.append(connection)
        assert go.wait(20)
        connection.sendall(b"hello\n")

    with tcp_server(answer_late) as port, AgentProcess(tmp_path, authority, helen.port):
        agent = helen.welcome()
        numbers = [agent.check("tcp", {"host": "127.0.0.1", "port": port, "expect": "hello"}) for _ in range(10)]
        # The last one is quick, and need not wait.
        assert agent.run("load")["state"] in ("ok", "warning", "critical")
        until(lambda: len(connected) == 10)  # so all ten run at once
        go.set()
        found = [agent.result() for _ in range(10)]
        assert sorted(result.number for result in found) == numbers
        assert {(result.name, result.json["state"]) for result in found} == {("tcp", "ok")}


# Promise: CHECK-1
def test_a_check_that_is_unknown_or_asked_wrongly_or_too_slow_answers_so(helen, authority, tmp_path):
    with tcp_server(hold) as port, AgentProcess(tmp_path, authority, helen.port, check_timeout=0.5):
        agent = helen.welcome()
        agent.check("nobody-knows-it")
        agent.check("load", b"this is not JSON")
        agent.check("load", b"")
        agent.check("tcp", {"host": "127.0.0.1", "port": port, "expect": "hello"})
        found = {result.number: result.json for result in (agent.result() for _ in range(4))}
        assert "nobody-knows-it" in found[1]["message"]
        assert found[2]["state"] == "unknown"
        assert found[3]["state"] in ("ok", "warning", "critical")  # however busy this machine is
        assert found[4]["state"] in ("critical", "unknown")
        assert found[4]["seconds"] < 2


# Promise: AGENT-21
def test_reload_gives_a_fresh_process(helen: FakeHelen, authority: Authority, tmp_path: Path):
    with AgentProcess(tmp_path, authority, helen.port) as process:
        agent = helen.welcome()
        agent.run("uptime")
        first = process.child
        agent.send(b"reload\n")
        assert agent.read_to_end() == b""
        helen.welcome().run("uptime")
        assert process.child not in (0, first)


def processes_with(word: str) -> list[int]:
    """The processes that have this word in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


# Promise: CHECK-2
@pytest.mark.slow
def test_a_plugin_does_not_outlive_an_agent_that_was_killed(helen: FakeHelen, authority: Authority, tmp_path: Path):
    word = f"slow-{tmp_path.name}"
    plugins = [{"name": "slow", "command": ["/bin/sh", "-c", "sleep 60; true", word]}]
    with AgentProcess(tmp_path, authority, helen.port, plugins=plugins) as process:
        helen.welcome().check("slow")
        until(lambda: processes_with(word))
        os.kill(process.child, signal.SIGKILL)
        until(lambda: not processes_with(word))
        helen.welcome().run("uptime")


@pytest.mark.slow
def test_a_new_lua_file_is_a_check_at_once(helen: FakeHelen, authority: Authority, tmp_path: Path):
    with AgentProcess(tmp_path, authority, helen.port) as process:
        agent = helen.welcome()
        assert agent.run("late")["state"] == "unknown"
        (process.checks_dir / "late.lua").write_text('return function(args) return {state = "warning"} end')
        assert agent.run("late")["state"] == "warning"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"certificate": "nowhere.pem"}, "nowhere.pem"),
        ({"server_ca": "pyproject.toml"}, "OpenSSL"),
        ({"helen": []}, "helen"),
        ({"check_timeout": -1}, "check_timeout"),
        ({"unheard": 1}, "unheard"),
        ({"plugins": [{"name": "load", "command": ["/bin/true"]}]}, "load is a built-in check"),
        ({"plugins": [{"name": "mine", "command": ["/bin/true"]}]}, "mine is a plugin"),
    ],
)
def test_a_file_that_cannot_be_used_ends_it_at_once_with_the_reason(authority, tmp_path, change, reason):
    agent = AgentProcess(tmp_path, authority, 1, **change)
    (agent.checks_dir / "mine.lua").write_text("return function() end")
    assert reason in agent.fail_to_start()


@pytest.mark.slow
def test_two_agents_do_not_share_a_folder(authority: Authority, tmp_path: Path):
    (tmp_path / "second").mkdir()
    with AgentProcess(tmp_path, authority, 1) as agent:
        second = AgentProcess(tmp_path / "second", authority, 1, data_dir=str(agent.data_dir))
        assert "is in use by process" in second.fail_to_start()

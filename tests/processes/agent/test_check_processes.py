"""Plugins and Lua checks of a real agent: they answer, end in time, and never outlive it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.waiting import until
from tests.processes.agent.agents import AgentProcess
from tests.processes.agent.credentials import Credentials
from tests.processes.agent.helen_version_1 import Helen

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.fixture
def helen(credentials: Credentials) -> Iterator[Helen]:
    helen = Helen(*credentials.helen, credentials.ca)
    yield helen
    helen.close()


def processes_with(word: str) -> list[int]:
    """Whoever has this word in its command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def plugin(name: str, *words: str) -> dict[str, object]:
    return {"name": name, "command": list(words)}


# Promise: CHECK-1, CHECK-2
def test_plugins_answer_and_a_slow_one_is_ended_in_time(helen: Helen, credentials: Credentials, tmp_path: Path):
    word = f"slow-{tmp_path.name}"
    plugins = [
        plugin("fine", "/bin/sh", "-c", "echo 'FINE - all is well | n=5;8;9'"),
        plugin("bad", "/bin/sh", "-c", "echo BAD; exit 2"),
        plugin("slow", "/bin/sh", "-c", "sleep 60; true", word),
    ]
    with AgentProcess(tmp_path, credentials, [helen.port], plugins=plugins, check_timeout=1) as agent:
        agent.wait_ready()
        with helen.accept() as equus:
            for number, name in enumerate(("slow", "fine", "bad"), 1):
                equus.check(name, number, b"{}")
            found = [equus.result() for _ in range(3)]
            assert found[-1][1] == "slow"
            results = {name: json.loads(body) for _, name, body in found}
            assert results["fine"]["state"] == "ok"
            assert results["fine"]["metrics"][0]["value"] == 5
            assert results["bad"]["state"] == "critical"
            assert results["slow"]["state"] == "unknown"
            assert results["slow"]["seconds"] < 5
            until(lambda: not processes_with(word))


# Promise: CHECK-2
def test_a_plugin_does_not_outlive_an_agent_that_was_killed(helen: Helen, credentials: Credentials, tmp_path: Path):
    word = f"slow-{tmp_path.name}"
    plugins = [plugin("slow", "/bin/sh", "-c", "sleep 60; true", word)]
    with AgentProcess(tmp_path, credentials, [helen.port], plugins=plugins) as agent:
        agent.wait_ready()
        with helen.accept() as equus:
            equus.check("slow", 1)
            until(lambda: processes_with(word))
            os.kill(agent.child, signal.SIGKILL)
            until(lambda: not processes_with(word))
        with helen.accept() as equus:
            equus.check("uptime", 1)
            assert equus.result()[0] == 1


def test_two_checks_of_one_name_are_refused_at_the_start(credentials: Credentials, tmp_path: Path):
    agent = AgentProcess(tmp_path, credentials, [1], plugins=[plugin("load", "/bin/true")])
    assert agent.process.wait(20) == 2
    agent.stop()
    assert "load is a built-in check" in "".join(agent.log)


# Promise: CHECK-1, CHECK-2
def test_lua_files_answer_new_ones_too_and_one_that_spins_is_ended(
    helen: Helen, credentials: Credentials, tmp_path: Path
):
    checks = tmp_path / "checks"
    checks.mkdir()
    (checks / "fine.lua").write_text('return function(args) return {state = "ok", message = "fine " .. args.n} end')
    (checks / "spin.lua").write_text("return function(args) while true do end end")
    with AgentProcess(tmp_path, credentials, [helen.port], check_timeout=1) as agent:
        agent.wait_ready()
        with helen.accept() as equus:
            equus.check("spin", 1)
            equus.check("fine", 2, b'{"n": 7}')
            message_id, _, body = equus.result()
            assert (message_id, json.loads(body)["message"]) == (2, "fine 7")
            (checks / "late.lua").write_text('return function(args) return {state = "warning"} end')
            equus.check("late", 3)
            found = {message_id: json.loads(body)["state"] for message_id, _, body in (equus.result(), equus.result())}
            assert found == {1: "unknown", 3: "warning"}


def test_a_lua_file_with_the_name_of_a_plugin_is_refused_at_the_start(credentials: Credentials, tmp_path: Path):
    checks = tmp_path / "checks"
    checks.mkdir()
    (checks / "mine.lua").write_text("return function() end")
    agent = AgentProcess(tmp_path, credentials, [1], plugins=[plugin("mine", "/bin/true")])
    assert agent.process.wait(20) == 2
    agent.stop()
    assert "mine is a plugin" in "".join(agent.log)

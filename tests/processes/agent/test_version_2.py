"""The real agent with a Helen of version 2: schedules, reports, acknowledgements, outages, kills."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.waiting import until
from tests.processes.agent.agents import AgentProcess
from tests.processes.agent.credentials import Credentials
from tests.processes.agent.helen_version_1 import Equus
from tests.processes.agent.helen_version_2 import Helen2, Report

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.extended]


def every_second(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "check": "uptime", "args": {}, "interval": 1, "timeout": 5} for name in names]


@pytest.fixture
def helen(credentials: Credentials) -> Iterator[Helen2]:
    with Helen2(*credentials.helen, credentials.ca) as helen:
        yield helen


def ends(report: Report) -> float:
    """When the check ended, by what the report says about its own age."""
    return report.arrived_wall - float(report.body["age"])


def waiting_bytes(agent: AgentProcess) -> int:
    """What is in the spool."""
    return sum(path.stat().st_size for path in (agent.folder / "spool").glob("*.spool"))


def wait_for_more(agent: AgentProcess, count: int) -> None:
    """Until the spool has grown by so many bytes."""
    before = waiting_bytes(agent)
    until(lambda: waiting_bytes(agent) > before + count)


# Promise: AGENT-11
def test_an_agent_says_who_it_is_and_runs_what_helen_says_by_itself(
    helen: Helen2, credentials: Credentials, tmp_path: Path
):
    helen.schedule = every_second("up-1", "up-2", "up-3")
    with AgentProcess(tmp_path, credentials, [helen.port], labels={"role": "web"}) as agent:
        agent.wait_ready()
        (introduction,) = until(lambda: helen.introductions)
        assert introduction["labels"] == {"role": "web"}
        assert {"load", "disk", "tcp"} <= set(introduction["checks"])
        until(lambda: {report.name for report in helen.reports} == {"up-1", "up-2", "up-3"})
        first = helen.reports[0].body
        assert first["state"] == "ok"
        assert 0 <= first["age"] < 2
        assert abs(first["sent"] - time.time()) < 60
        helen.schedule = every_second("up-4")
        helen.send_schedule(helen.agent)
        seen = len(helen.reports)
        until(lambda: any(report.name == "up-4" for report in helen.reports[seen:]))
        until(lambda: waiting_bytes(agent) == 0)
    assert len(helen.refs) == len(set(helen.refs))


def test_helen_asks_and_pings_while_the_schedule_goes_on(helen: Helen2, credentials: Credentials, tmp_path: Path):
    helen.schedule = every_second("up-1")
    helen.heartbeat = 1
    with AgentProcess(tmp_path, credentials, [helen.port]) as agent:
        agent.wait_ready()
        helen.agent.check("load", 5)
        helen.agent.say("ping 77")
        helen.agent.say("terminal 1 2 3")
        until(lambda: helen.results and "pong 77" in helen.lines)
        assert helen.results[0][:2] == (5, "load")
        helen.schedule = []
        helen.send_schedule(helen.agent)
        until(lambda: any(line.startswith("ping ") for line in helen.lines))
        assert helen.connections == 1


# Promise: AGENT-7
def test_results_of_an_outage_arrive_once(credentials: Credentials, tmp_path: Path):
    with Helen2(*credentials.helen, credentials.ca) as helen:
        helen.schedule = every_second("up-1", "up-2")
        agent = AgentProcess(tmp_path, credentials, [helen.port])
        agent.wait_ready()
        until(lambda: len(helen.reports) >= 2)
    with agent:
        until(lambda: waiting_bytes(agent) > 1_200)
        with Helen2(*credentials.helen, credentials.ca, port=helen.port) as again:
            until(lambda: again.reports and again.reports[-1].body["age"] < 1, "what is new comes after what waited")
            again.schedule = []  # what is on its way arrives, and nothing new is made
            again.send_schedule(again.agent)
            until(lambda: waiting_bytes(agent) == 0)
            assert len(set(again.refs)) == len(again.refs), "one connection tells each result once"
            assert numbers_missing([*helen.all_refs, *again.all_refs]) == set()
            old = [report for report in again.reports if report.body["age"] > 2]
            assert old, "what waited says how long"
            for report in old:
                ended = report.body["started"] + report.body["seconds"]
                assert abs(ends(report) - ended) < 1


def numbers_missing(refs: list[tuple[str, int]]) -> set[int]:
    """Gaps in the numbers of one spool."""
    assert len({spool for spool, _ in refs}) == 1
    found = {number for _, number in refs}
    return set(range(1, max(found) + 1)) - found


# Promise: AGENT-7, AGENT-21
def test_a_killed_agent_is_started_again_and_loses_nothing(helen: Helen2, credentials: Credentials, tmp_path: Path):
    helen.schedule = every_second("up-1", "up-2")
    helen.acks = False
    with AgentProcess(tmp_path, credentials, [helen.port]) as agent:
        agent.wait_ready()
        until(lambda: len(helen.reports) >= 4)
        first, unacked = agent.child, set(helen.refs)
        helen.acks = True
        os.kill(first, signal.SIGKILL)
        agent.wait_log("was ended by signal 9")
        seen = len(helen.reports)
        until(lambda: unacked <= set(helen.refs[seen:]))
        assert agent.child not in (0, first)
        until(lambda: len({spool for spool, _ in helen.refs}) == 2)
        until(lambda: len(helen.introductions) == 2)


# Promise: AGENT-11
def test_the_schedule_outlives_a_restart_without_helen(credentials: Credentials, tmp_path: Path):
    with Helen2(*credentials.helen, credentials.ca) as helen:
        helen.schedule = every_second("up-1")
        with AgentProcess(tmp_path, credentials, [helen.port]) as agent:
            agent.wait_ready()
            until(lambda: helen.reports and (agent.folder / "schedule.json").exists())
    with AgentProcess(tmp_path, credentials, [helen.port]) as agent:
        agent.wait_ready()
        until(lambda: waiting_bytes(agent) > 300)


JUMPING_CLOCK = """
import os, pathlib, time
real, place = time.time, pathlib.Path(os.environ["JUMP_FILE"])
time.time = lambda: real() + float(place.read_text() or 0)
"""


# Promise: AGENT-9, AGENT-12
def test_a_wall_clock_that_jumps_changes_no_age_and_no_rhythm(credentials: Credentials, tmp_path: Path):
    """The agent's own clock is moved by a day, ahead and back, while results wait for Helen."""
    jump, startup = tmp_path / "jump", tmp_path / "startup"
    startup.mkdir()
    (startup / "sitecustomize.py").write_text(JUMPING_CLOCK)
    jump.write_text("0")
    environment = {"PYTHONPATH": f"{startup}{os.pathsep}{os.environ.get('PYTHONPATH', '')}", "JUMP_FILE": str(jump)}
    with Helen2(*credentials.helen, credentials.ca) as helen:
        helen.schedule = every_second("up-1")
        agent = AgentProcess(tmp_path, credentials, [helen.port], environment=environment)
        agent.wait_ready()
        until(lambda: helen.reports)
    with agent:
        for days in (1, -1):
            partial = tmp_path / "partial"
            partial.write_text(str(days * 86_400))
            partial.rename(jump)
            wait_for_more(agent, 300)
        with Helen2(*credentials.helen, credentials.ca, port=helen.port) as again:
            until(lambda: again.reports and again.reports[-1].body["age"] < 1, "what is new comes after what waited")
            again.schedule = []  # what is on its way arrives, and nothing new is made
            again.send_schedule(again.agent)
            until(lambda: waiting_bytes(agent) == 0)
            assert not any("was ended" in line for line in agent.log)
            found = sorted(again.reports, key=lambda report: report.body["n"])
            assert {round((report.body["sent"] - report.arrived_wall) / 86_400) for report in found} == {-1}
            assert {round((report.body["started"] - report.arrived_wall) / 86_400) for report in found} >= {1, -1}
            moments = [ends(report) for report in found]
            assert all(0.5 < later - earlier < 2.5 for earlier, later in itertools.pairwise(moments))
            assert numbers_missing([*helen.all_refs, *again.all_refs]) == set()


# Promise: AGENT-13
def test_a_redirect_is_followed(helen: Helen2, credentials: Credentials, tmp_path: Path):
    with Helen2(*credentials.helen, credentials.ca) as first:

        def send_away(equus: Equus) -> bool:
            equus.say(f"redirect 127.0.0.1:{helen.port}")
            return False

        first.first_words = send_away
        with AgentProcess(tmp_path, credentials, [first.port]) as agent:
            agent.wait_ready()
            until(lambda: helen.introductions)
            assert first.connections == 1


# Promise: AGENT-13
def test_an_agent_with_two_helens_goes_to_the_other_when_one_is_away(
    helen: Helen2, credentials: Credentials, tmp_path: Path
):
    with Helen2(*credentials.helen, credentials.ca) as first:
        agent = AgentProcess(tmp_path, credentials, [first.port, helen.port])
        agent.wait_ready()
        until(lambda: first.introductions)
    with agent:
        until(lambda: helen.introductions)


# Promise: AGENT-12
def test_a_helen_who_falls_silent_is_left(helen: Helen2, credentials: Credentials, tmp_path: Path):
    helen.heartbeat = 1
    with AgentProcess(tmp_path, credentials, [helen.port]) as agent:
        agent.wait_ready()
        silent: list[Equus] = []

        def say_nothing(equus: Equus) -> bool:
            equus.say("accepted 1")
            silent.append(equus)
            agent.wait_log("silent")
            return False

        until(lambda: helen.introductions)
        helen.first_words = say_nothing
        helen.agent.say("error go away for a moment")
        until(lambda: silent)
        helen.first_words = lambda _: True
        until(lambda: len(helen.introductions) == 2)


# Promise: AGENT-21
def test_sigterm_ends_all_in_order(helen: Helen2, credentials: Credentials, tmp_path: Path):
    with AgentProcess(tmp_path, credentials, [helen.port]) as agent:
        agent.wait_ready()
        until(lambda: helen.introductions)
        child = agent.child
        assert agent.stop() == 0
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)
    assert not any("ERROR" in line or "Traceback" in line for line in agent.log)


# Promise: AGENT-21
def test_an_agent_whose_stage0_is_killed_ends_by_itself(helen: Helen2, credentials: Credentials, tmp_path: Path):
    agent = AgentProcess(tmp_path, credentials, [helen.port])
    agent.wait_ready()
    until(lambda: helen.introductions)
    child = agent.child
    agent.process.kill()
    until(lambda: not is_alive(child))
    agent.stop()


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# Promise: AGENT-21
def test_sighup_gives_a_fresh_process_that_has_read_its_file_again(
    helen: Helen2, credentials: Credentials, tmp_path: Path
):
    with AgentProcess(tmp_path, credentials, [helen.port], labels={"role": "web"}) as agent:
        agent.wait_ready()
        until(lambda: helen.introductions)
        file = tmp_path / "web-1.json"
        config = json.loads(file.read_text())
        config["labels"] = {"role": "db"}
        file.write_text(json.dumps(config))
        agent.process.send_signal(signal.SIGHUP)
        until(lambda: len(helen.introductions) == 2)
        assert helen.introductions[1]["labels"] == {"role": "db"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"certificate": "nowhere.pem"}, "nowhere.pem"),
        ({"server_ca": "pyproject.toml"}, "OpenSSL"),
        ({"helen": []}, "helen"),
        ({"check_timeout": -1}, "check_timeout"),
        ({"unheard": 1}, "unheard"),
    ],
)
def test_a_file_that_cannot_be_used_ends_it_at_once_with_the_reason(
    credentials: Credentials, tmp_path: Path, change, reason
):
    agent = AgentProcess(tmp_path, credentials, [1], **change)
    assert agent.process.wait(20) == 2
    agent.stop()
    assert reason in "".join(agent.log)


def test_two_agents_do_not_share_a_folder(helen: Helen2, credentials: Credentials, tmp_path: Path):
    with AgentProcess(tmp_path, credentials, [helen.port]) as agent:
        agent.wait_ready()
        second = AgentProcess(tmp_path, credentials, [helen.port])
        assert second.process.wait(20) == 2
        second.stop()
        assert "is in use by process" in "".join(second.log)

"""The real agent with schedules: what it reports over outages, kills, restarts and jumps of the clock."""

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

from tests.fakes.agent_process import AgentProcess
from tests.fakes.certificates import Authority
from tests.fakes.fake_helen import Report, ServingHelen
from tests.fakes.jumping_clock import JumpingClock
from tests.fakes.processes import gone
from tests.fakes.waiting import until

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.extended]


def every_second(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "check": "uptime", "args": {}, "interval": 1, "timeout": 5} for name in names]


@pytest.fixture
def helen(authority: Authority) -> Iterator[ServingHelen]:
    with ServingHelen(authority.helen_context()) as helen:
        yield helen


def ends(report: Report) -> float:
    """When the check ended, by what the report says about its own age."""
    return report.arrived_wall - float(report.body["age"])


def waiting_bytes(agent: AgentProcess) -> int:
    """What is in the spool."""
    return sum(path.stat().st_size for path in (agent.data_dir / "spool").glob("*.spool"))


def wait_for_more(agent: AgentProcess, count: int) -> None:
    """Until the spool has grown by so many bytes."""
    before = waiting_bytes(agent)
    until(lambda: waiting_bytes(agent) > before + count)


# Promise: AGENT-11
def test_an_agent_introduces_itself_and_runs_its_schedule(helen: ServingHelen, authority: Authority, tmp_path: Path):
    helen.checks = every_second("up-1", "up-2", "up-3")
    with AgentProcess(tmp_path, authority, helen.port, labels={"role": "web"}) as agent:
        (introduction,) = until(lambda: helen.introductions)
        assert introduction["labels"] == {"role": "web"}
        assert {"load", "disk", "tcp"} <= set(introduction["checks"])
        until(lambda: {report.name for report in helen.reports} == {"up-1", "up-2", "up-3"})
        first = helen.reports[0].body
        assert first["state"] == "ok"
        assert 0 <= first["age"] < 2
        assert abs(first["sent"] - time.time()) < 60
        helen.reschedule(*every_second("up-4"))
        seen = len(helen.reports)
        until(lambda: any(report.name == "up-4" for report in helen.reports[seen:]))
        until(lambda: waiting_bytes(agent) == 0)
    assert len(helen.refs) == len(set(helen.refs))


# Promise: AGENT-7
def test_results_of_an_outage_arrive_once(authority: Authority, tmp_path: Path):
    with ServingHelen(authority.helen_context()) as helen:
        helen.checks = every_second("up-1", "up-2")
        agent = AgentProcess(tmp_path, authority, helen.port)
        agent.start()
        until(lambda: len(helen.reports) >= 2)
    with agent:
        until(lambda: waiting_bytes(agent) > 1_200)
        with ServingHelen(authority.helen_context(), helen.port) as again:
            until(lambda: again.reports and again.reports[-1].body["age"] < 1, "what is new comes after what waited")
            again.reschedule()  # what is on its way arrives, and nothing new is made
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
def test_a_killed_agent_is_started_again_and_loses_nothing(helen: ServingHelen, authority: Authority, tmp_path: Path):
    helen.checks = every_second("up-1", "up-2")
    helen.acks = False
    with AgentProcess(tmp_path, authority, helen.port) as agent:
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
def test_the_schedule_outlives_a_restart_without_helen(authority: Authority, tmp_path: Path):
    with ServingHelen(authority.helen_context()) as helen:
        helen.checks = every_second("up-1")
        with AgentProcess(tmp_path, authority, helen.port) as agent:
            until(lambda: helen.reports and (agent.data_dir / "schedule.json").exists())
    with AgentProcess(tmp_path, authority, helen.port) as agent:
        until(lambda: waiting_bytes(agent) > 300)


# Promise: AGENT-9, AGENT-12
def test_a_wall_clock_that_jumps_changes_no_age_and_no_rhythm(authority: Authority, tmp_path: Path):
    """The agent's own clock is moved by a day, ahead and back, while results wait for Helen."""
    clock = JumpingClock(tmp_path)
    with ServingHelen(authority.helen_context()) as helen:
        helen.checks = every_second("up-1")
        agent = AgentProcess(tmp_path, authority, helen.port)
        agent.prefix = clock.prefix
        agent.start()
        until(lambda: helen.reports)
    with agent:
        for days in (1, -1):
            clock.set(days * 86_400)
            wait_for_more(agent, 300)
        with ServingHelen(authority.helen_context(), helen.port) as again:
            until(lambda: again.reports and again.reports[-1].body["age"] < 1, "what is new comes after what waited")
            again.reschedule()  # what is on its way arrives, and nothing new is made
            until(lambda: waiting_bytes(agent) == 0)
            assert "was ended" not in agent.log_text()
            found = sorted(again.reports, key=lambda report: report.body["n"])
            assert {round((report.body["sent"] - report.arrived_wall) / 86_400) for report in found} == {-1}
            assert {round((report.body["started"] - report.arrived_wall) / 86_400) for report in found} >= {1, -1}
            moments = [ends(report) for report in found]
            assert all(0.5 < later - earlier < 2.5 for earlier, later in itertools.pairwise(moments))
            assert numbers_missing([*helen.all_refs, *again.all_refs]) == set()


# Promise: AGENT-13
def test_an_agent_with_two_helens_goes_to_the_other_when_one_is_away(
    helen: ServingHelen, authority: Authority, tmp_path: Path
):
    with ServingHelen(authority.helen_context()) as first:
        agent = AgentProcess(tmp_path, authority, first.port, helen.port)
        agent.start()
        until(lambda: first.introductions)
    with agent:
        until(lambda: helen.introductions)


# Promise: AGENT-21
def test_sigterm_ends_all_in_order(helen: ServingHelen, authority: Authority, tmp_path: Path):
    with AgentProcess(tmp_path, authority, helen.port) as agent:
        until(lambda: helen.introductions)
        child = agent.child
        assert agent.end() == 0
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)
    assert "ERROR" not in agent.log_text()
    agent.assert_no_traceback()


# Promise: AGENT-21
def test_an_agent_whose_stage0_is_killed_ends_by_itself(helen: ServingHelen, authority: Authority, tmp_path: Path):
    agent = AgentProcess(tmp_path, authority, helen.port)
    agent.start()
    until(lambda: helen.introductions)
    child = agent.child
    agent.kill9()
    until(lambda: gone(child))


# Promise: AGENT-21
def test_sighup_gives_a_fresh_process_that_has_read_its_file_again(
    helen: ServingHelen, authority: Authority, tmp_path: Path
):
    with AgentProcess(tmp_path, authority, helen.port, labels={"role": "web"}) as agent:
        until(lambda: helen.introductions)
        agent.file.write_text(json.dumps({**agent.config, "labels": {"role": "db"}}))
        agent.process.send_signal(signal.SIGHUP)
        until(lambda: len(helen.introductions) == 2)
        assert helen.introductions[1]["labels"] == {"role": "db"}

"""An agent with unusual or large input."""

from __future__ import annotations

import json

import pytest

from scale0.history.events.columns import EventMetric
from scale0.monitoring.agent.core.session import MAX_UNACKED_BYTES
from scale0.monitoring.agent.edge.agent import read_boot_id, read_instant, result_json
from scale0.monitoring.agent.edge.process import SPOOL_FOLDER
from scale0.monitoring.agent.edge.spool import Spool
from scale0.monitoring.protocol.results import OK, CheckFinding, read_result
from tests.fakes.waiting import until
from tests.processes.agent.agents import AgentProcess
from tests.processes.agent.credentials import Credentials
from tests.processes.agent.helen_version_2 import Helen2


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


@pytest.mark.processes
def test_large_results_wait_for_acknowledgements(credentials: Credentials, tmp_path):
    """No more of them are on their way than the window has bytes for, whatever their number."""
    size = 1_000_000
    spool = Spool(tmp_path / "agent" / SPOOL_FOLDER, "old", read_boot_id())
    for number in range(20):
        spool.append("big", json.dumps({"state": "ok", "message": f"{number}".ljust(size)}).encode(), read_instant())
    spool.close()
    with Helen2(*credentials.helen, credentials.ca) as helen:
        helen.acks = False
        with AgentProcess(tmp_path, credentials, [helen.port]) as agent:
            agent.wait_ready()
            most = MAX_UNACKED_BYTES // size + 1
            until(lambda: len(helen.reports) >= most)
            helen.agent.check("uptime", 1)
            until(lambda: helen.results)
            assert len(helen.reports) == most
            helen.agent.say(f"ack {helen.reports[-1].sequence}")
            until(lambda: len(helen.reports) > most)

"""Agents, checks and incidents, with a real Helen and an agent by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.fakes.helen_process import HelenProcess, helen_process
from tests.fakes.journals import recorded
from tests.fakes.processes import background
from tests.fakes.waiting import until

pytestmark = pytest.mark.processes

RAW_AGENT = Path(__file__).resolve().parents[3] / "examples" / "raw_agent.py"


@pytest.fixture(scope="module")
def watched(site, broker, tmp_path_factory):
    with helen_process(tmp_path_factory.mktemp("helen"), broker) as helen:
        viewer = site.by_token("viewer")
        until(lambda: viewer.get("/agents").json()["helens"], "Helen is connected")
        yield helen


def test_without_a_helen_every_list_is_empty_and_says_so(site):
    # Promise: HTTP-10
    viewer = site.by_token("viewer")
    for path in ("/agents", "/checks", "/incidents"):
        assert viewer.get(path).json() == {"items": [], "next": None, "helens": [], "silent": []}
    response = site.by_token("operator").post("/checks/web-1/disk/run")
    assert (response.status_code, response.json()["message"]) == (404, "no Helen is connected")
    part = {one["part"]: one for one in viewer.get("/overview").json()["health"]}["agents"]
    assert part["state"] == "unknown"
    assert "scale0 helen --config FILE" in part["next"]


def test_an_agent_is_seen_while_it_is_there_and_when_it_is_away(site, watched: HelenProcess):
    viewer = site.by_token("viewer")

    def state() -> dict[str, str]:
        return {row["agent"]: row["state"] for row in viewer.get("/agents").json()["items"]}

    with watched.accepted("web-1"):
        until(lambda: state().get("web-1") == "connected", "the agent is seen")
        row = viewer.get("/agents").json()["items"][0]
        assert row["helen"] == viewer.get("/agents").json()["helens"][0]
        response = site.by_token("operator").post("/checks/nobody/disk/run", json={"timeout": 2})
        assert response.status_code == 404
    until(lambda: state().get("web-1") == "away", "it is missed")
    assert "agent web-1" in [one["what"] for one in viewer.get("/overview").json()["attention"]]


def test_a_check_runs_when_it_is_asked_for_and_is_watched_when_it_is_defined(site, watched: HelenProcess):
    certificate, key = watched.certificate("by-hand")
    place = ("127.0.0.1", str(watched.port))
    words = [sys.executable, str(RAW_AGENT), *place, str(certificate), str(key), str(watched.files / "ca.pem")]
    with background(words, watched.folder):
        operator = site.by_token("operator")
        until(lambda: "by-hand" in {row["agent"] for row in operator.get("/agents").json()["items"]}, "it is there")
        found = until(lambda: ran(operator), "it answers")
        assert found["state"] == "ok"
        entry = {"name": "age", "check": "age", "interval": 3_600, "agents": ["by-hand"]}
        assert operator.patch("/config", json={"set": {"checks.[age]": entry}}).status_code == 200
        asked = {"check": "age"}
        until(lambda: ran(operator) and operator.get("/checks", params=asked).json()["items"], "its result counts")
        row = operator.get("/checks", params={"agent": "by-*"}).json()["items"][0]
        assert (row["agent"], row["check"], row["state"]) == ("by-hand", "age", "ok")
        assert operator.get("/checks", params={"problems": "true"}).json()["items"] == []
        assert operator.get("/overview").json()["counts"]["checks"]["ok"] == 1
        who_ran_it(site, operator)


def who_ran_it(site, operator) -> None:
    """Promise: HTTP-7, MGMT-6"""
    robot = site.by_token("operator", name="robot")
    response = robot.post("/checks/by-hand/age/run", json={"timeout": 10, "args": {"password": "hunter2"}})
    assert (response.status_code, response.json()["state"]) == (200, "ok")
    assert site.by_token("viewer").post("/checks/by-hand/age/run", json={"timeout": 10}).status_code == 403
    assert robot.post("/checks/nobody/age/run", json={"timeout": 2}).status_code == 404
    events = [one for one in recorded(site.broker, "run_check") if one["identity"] == "robot"]
    assert [(one["code"], one["after"]) for one in events] == [
        (200, {"agent": "by-hand", "check": "age", "args": ["password"]}),
        (200, {"agent": "nobody", "check": "age"}),
        (404, {"agent": "nobody", "check": "age"}),
    ]
    assert all(one["origin"].endswith(" for http/127.0.0.1") for one in events)
    assert "hunter2" not in str(events)
    seen = until(lambda: audited(operator, "robot"), "the audit shows it")
    assert {one["data"]["command"] for one in seen} == {"run_check"}


def audited(operator, who: str) -> list[dict]:
    rows = operator.get("/audit", params={"limit": 100}).json()["items"]
    return [one for one in rows if one["identity"] == who]


def ran(operator) -> dict | None:
    response = operator.post("/checks/by-hand/age/run", json={"timeout": 10})
    return response.json() if response.status_code == 200 else None


def test_a_helen_that_is_silent_is_listed(site, watched: HelenProcess):
    # Promise: HTTP-10
    viewer = site.by_token("viewer")
    assert viewer.get("/checks").json()["silent"] == []
    assert viewer.get("/incidents", params={"open": "false"}).status_code == 200
    assert viewer.get("/checks", params={"state": "critical", "problems": "true", "agent": "web-*"}).status_code == 200

"""Helen with the real evaluation: from configuration to schedule, from report to state, from task to recheck."""

from __future__ import annotations

from typing import Any

import msgspec

from scale0.monitoring.helen.core.evaluation import Evaluation, StoredChecks
from scale0.monitoring.protocol.messages import Ack, Hello, Result
from tests.unit.monitoring.helen_world import HelenWorld, report

PART = {
    "checks": [
        {"name": "root-disk", "check": "disk", "args": {"path": "/"}, "labels": {"role": "db"}, "max_attempts": 1},
        {"name": "load", "interval": 30},
    ]
}
FULL = msgspec.json.encode({"state": "critical", "message": "full"})


def configured() -> HelenWorld:
    world = HelenWorld(evaluation=Evaluation(StoredChecks()), token="secret")
    world.configure(msgspec.json.encode(PART))
    assert world.helen.config_error == ""
    return world


def names(body: bytes) -> list[str]:
    return sorted(check["name"] for check in msgspec.json.decode(body)["checks"])


# Promise: AGENT-11
def test_labels_choose_what_an_agent_runs():
    world = configured()
    connection = world.connect()
    _, schedule = world.say(connection, Hello(2, "0.1.0"))
    assert names(schedule.body) == ["load"]
    schedule, ack = world.say(connection, report(1, "equus.agent", labels={"role": "db"}, checks=["disk", "load"]))
    assert names(schedule.body) == ["load", "root-disk"]
    assert ack == Ack(1)


# Promise: CHECK-10
def test_a_report_becomes_a_state_and_an_incident_in_one_commit():
    world = configured()
    connection = world.agent()
    world.say(connection, report(1, "equus.agent", labels={"role": "db"}, checks=["disk"]))
    world.holds_commits = True
    world.say(connection, report(2, "root-disk", state="critical", seconds=0.1, age=2))
    kinds = world.kinds()
    assert kinds[-3:] == ["check.answered", "check.state_changed", "incident.opened"]
    answered = next(event for event in world.events if event.kind == "check.answered")
    assert (answered.ref, answered.at, answered.scheduled) == ("s1:2", world.wall - 2, True)
    assert {"PutCheckState", "PutIncident", "PutSpool"} <= {type(write).__name__ for write in world.writes}
    assert world.hear(connection) == []
    world.commit()
    assert world.hear(connection)[-1] == Ack(2)
    world.holds_commits = False
    page: Any = msgspec.json.decode(world.request("helen.checks", {"agent": "web-*"})[0][1])
    assert [(item["check"], item["state"], item["hard"]) for item in page["items"]] == [("root-disk", "critical", True)]
    page = msgspec.json.decode(world.request("helen.incidents", {"open": True})[0][1])
    assert len(page["items"]) == 1
    assert world.request("helen.checks", {"limit": 0})[0][:2] == [b"error", b"400"]


# Promise: CHECK-9
def test_a_recheck_ends_an_incident_and_a_check_by_hand_does_not():
    world = configured()
    connection = world.agent()
    world.say(connection, report(1, "equus.agent", labels={"role": "db"}, checks=["disk"]))
    world.say(connection, report(2, "root-disk", state="critical"))
    world.pass_time(1)
    world.hear(connection)
    world.request("helen.check", {"agent": "web-1", "check": "root-disk"})
    (check,) = world.hear(connection)
    world.say(connection, Result(check.message_id, check.name, b'{"state":"ok"}'))
    assert world.kinds()[-1] == "check.answered"
    params = b'{"agent":"web-1","check":"root-disk"}'
    world.task(b"t", "helen.recheck", params)
    (check,) = world.hear(connection)
    assert (check.name, check.args) == ("disk", b'{"path":"/"}')
    world.say(connection, Result(check.message_id, check.name, b'{"state":"ok"}'))
    assert "incident.closed" in world.kinds()[-3:]


def test_an_agent_that_is_forgotten_leaves_no_state_behind():
    world = configured()
    connection = world.agent()
    world.say(connection, report(1, "load", state="warning"))
    world.gone(connection)
    world.request("helen.forget", {"agent": "web-1", "token": "secret"})
    page: Any = msgspec.json.decode(world.request("helen.checks")[0][1])
    assert page["items"] == []

"""A database that does not answer: every call is answered within seconds, with the reason, and what was refused has no
effect later."""

# Promise: STORE-10
from __future__ import annotations

import json

import pytest

from scale0.broker.core.state import StoreOutage
from tests.fakes.broker import TOKEN
from tests.fakes.messages import RPC
from tests.unit.tasks.harness import CLIENT, FRONT, Group, Refused, TaskBroker

NOT_STORED = -32060
NOTICED_SECONDS = 1.5
"""How soon waiting calls are refused after the broker knows that its database is unavailable."""


def begin(broker: TaskBroker) -> None:
    """The database hangs; the broker does not know it yet."""
    broker.hold()
    broker.ask(FRONT, "client_new_task", CLIENT, "m", [0])


def notice(broker: TaskBroker) -> None:
    state = broker.machine.state
    state.full, state.outage = True, StoreOutage(broker.wall, "no answer within 5 s at 10.0.0.7")


def end(broker: TaskBroker) -> None:
    state = broker.machine.state
    state.full, state.outage = False, None
    broker.let_go()
    broker.run(NOTICED_SECONDS)


def is_refused(answer: object) -> bool:
    return isinstance(answer, Refused) and answer.code == NOT_STORED and "the database is unavailable" in answer.message


CLIENT_CALLS = [
    ("client_new_task", CLIENT, "m", [1]),
    ("client_new_task", CLIENT, "m", [1], None, {"key": "a"}),
    ("client_new_task", CLIENT, "m", [1], "own.000000000001"),
    ("client_new_task", CLIENT, "m", [1], None, {"after": ["open"]}),
    ("client_task_status", CLIENT, "open"),
    ("client_task_status", CLIENT, "ended"),
    ("client_task_result", CLIENT, "ended"),
    ("client_task_wait", CLIENT, ["open"], 60),
    ("client_task_cancel", CLIENT, "open"),
    ("client_connect", "new"),
    ("client_disconnect", CLIENT),
]
NODE_CALLS = [
    ("node_connect", "other", ["m"]),
    ("node_tasks_request", "node"),
    ("node_task_request", "node", "open"),
    ("node_task_finished", "node", "ended", None, 1),
    ("node_disconnect", "node"),
]


def with_tasks(broker: TaskBroker) -> str:
    node = broker.node("node", "done")
    broker.submit("ended", "done")
    assert broker.pull(node) == ["ended"]
    assert broker.call("node_task_finished", "node", "ended", 1, 1, connection=node) is True
    broker.submit("open")
    return node


@pytest.mark.parametrize("call", CLIENT_CALLS, ids=lambda call: "-".join(map(str, call)))
def test_a_client_is_answered_at_once_while_the_database_is_unavailable(broker, call):
    with_tasks(broker)
    begin(broker)
    notice(broker)
    assert is_refused(broker.call(*call))


@pytest.mark.parametrize("call", NODE_CALLS, ids=lambda call: call[0])
def test_a_node_is_answered_at_once_while_the_database_is_unavailable(broker, call):
    node = with_tasks(broker)
    begin(broker)
    notice(broker)
    assert is_refused(broker.call(*call, connection=node))
    assert broker.call("node_heartbeat", "node", connection=node) is True


def test_an_unknown_method_is_answered_at_once_too(broker):
    begin(broker)
    notice(broker)
    assert broker.call("nonsense").code == -32601


def test_the_error_says_which_store_is_unavailable_and_no_address_of_it(broker):
    begin(broker)
    notice(broker)
    number = broker.ask(FRONT, "client_new_task", CLIENT, "m", [1])
    (said,) = [one.body for one in broker.received(FRONT, RPC) if one.body["id"] == number]
    assert said["error"]["data"] == {"cause": "database", "since": broker.wall}
    assert "10.0.0.7" not in json.dumps(said)


def test_the_error_of_a_full_disk_speaks_of_the_disk(broker):
    broker.machine.state.full = True
    number = broker.ask(FRONT, "client_new_task", CLIENT, "m", [1])
    (said,) = [one.body for one in broker.received(FRONT, RPC) if one.body["id"] == number]
    assert said["error"]["data"] == {"cause": "disk"}
    assert "database" not in said["error"]["message"]


WAITING = [CLIENT_CALLS[number] for number in (1, 2, 3, 5, 6, 7)]


@pytest.mark.parametrize("call", WAITING, ids=lambda call: "-".join(map(str, call)))
def test_a_call_that_waits_for_the_store_is_refused_when_the_outage_is_noticed(broker, call):
    with_tasks(broker)
    begin(broker)
    number = broker.ask(FRONT, *call)
    broker.run(NOTICED_SECONDS)
    notice(broker)
    broker.run(NOTICED_SECONDS)
    assert is_refused(broker.answer(number))
    end(broker)
    assert number not in [one.body.get("id") for one in broker.received(FRONT, RPC)], "it was answered twice"


@pytest.mark.parametrize("call", CLIENT_CALLS[1:4], ids=lambda call: str(call[3:]))
def test_a_submission_that_was_refused_is_not_accepted_later_and_may_be_repeated(broker, call):
    with_tasks(broker)
    begin(broker)
    numbers = [broker.ask(FRONT, *call) for _ in range(2)]
    notice(broker)
    broker.run(NOTICED_SECONDS)
    assert all(is_refused(broker.answer(number)) for number in numbers)
    before = broker.machine.tasks.queue.total_submitted
    end(broker)
    assert broker.machine.tasks.queue.total_submitted == before
    id_ = broker.call(*call)
    assert isinstance(id_, str)
    assert broker.machine.tasks.queue.total_submitted == before + 1


@pytest.mark.parametrize("call", [("node_task_request", "node", "one"), ("node_tasks_request", "node", 5)])
def test_a_task_is_not_handed_out_to_a_request_that_was_refused(call):
    broker = Group("ann")["ann"]
    broker.submit_many(["one", "two"])
    node = broker.node("node", "m")
    begin(broker)
    number = broker.ask(node, *call)
    notice(broker)
    broker.run(NOTICED_SECONDS)
    assert is_refused(broker.answer(number))
    end(broker)
    assert [broker.status(id_) for id_ in ("one", "two")] == ["queued", "queued"]
    assert {"one", "two"} <= set(broker.pull(node))


# Promise: TERM-1
def test_an_administrator_joins_and_sees_the_outage_while_it_lasts(broker):
    begin(broker)
    notice(broker)
    (told,) = broker.exchange("frontend-late", "CHECKCONFIG", {"identity": "late"})
    assert told.command == "CONFIG"
    said = broker.manage("status")
    assert said.options["code"] == 200
    assert said.body["full"] is True
    assert said.body["outage"] == {"since": broker.wall, "reason": "no answer within 5 s at 10.0.0.7"}
    for command in ("list_tasks", "show_task", "config_history", "drain"):
        refused = broker.manage(command, task_id="open")
        assert refused.options["code"] == 503
        assert "the database is unavailable" in refused.options["message"]
    assert broker.manage("list_queues").options["code"] == 200


# Promise: CONF-2
def test_a_document_that_is_not_stored_is_told_to_nobody_during_an_outage(broker):
    broker.hold()
    changed = {"command": "patch_config", "id": "m", "auth_token": TOKEN, "set": {"network": "n"}}
    broker.send("frontend-admin", "MANAGEMENTREQ", changed)
    notice(broker)
    assert broker.exchange("frontend-late", "CHECKCONFIG", {"identity": "late"}) == []
    end(broker)
    assert broker.received("frontend-late")[0].command == "CONFIG"

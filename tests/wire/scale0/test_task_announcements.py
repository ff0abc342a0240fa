"""How a node learns of a beginning and a client of an end: what is published, and to whom (PROTOCOL 6)."""

# Promise: TASK-9
from __future__ import annotations

import json
import time
from typing import Any

import pytest
import zmq

from tests.fakes.waiting import until
from tests.wire.scale0.conftest import own_broker
from tests.wire.scale0.raw import Raws, raws, unique
from tests.wire.scale0.rpc import Client, Node, client, node

pytestmark = pytest.mark.processes

INTERVAL = 0.5
"""What is unassigned is announced again about as often."""
SHORT = 0.3
REPEAT_SECONDS = 5.0
"""How long a repeated announcement may let us wait."""
NODE_STATUS_SECONDS = 10.0


@pytest.fixture(scope="module")
def chatty(tmp_path_factory):
    """A broker that repeats itself often."""
    with own_broker(tmp_path_factory.mktemp("chatty"), default_heartbeat_interval=INTERVAL) as (broker, _):
        yield broker


@pytest.fixture
def net(chatty):
    with raws(chatty.endpoints) as made:
        yield made


def pair(net: Raws) -> tuple[Client, Node, str]:
    method = unique("method")
    return client(net), node(net, method), method


class Ear:
    """A SUB socket of `task_pub_port`."""

    def __init__(self, net: Raws, *topics: str) -> None:
        self.socket = net.context.socket(zmq.SUB)
        self.socket.set(zmq.LINGER, 0)
        self.socket.connect(net.endpoints["task_pub"])
        net._made.append(self.socket)
        for topic in topics:
            self.subscribe(topic)

    def subscribe(self, topic: str) -> None:
        self.socket.set(zmq.SUBSCRIBE, topic.encode())

    def hear_or_none(self, seconds: float) -> tuple[str, dict[str, Any]] | None:
        """A topic and its notification; the rules of every announcement are checked."""
        if not self.socket.poll(max(0, round(seconds * 1000))):
            return None
        frames = self.socket.recv_multipart()
        assert len(frames) == 2, frames
        said = json.loads(frames[1])
        assert said["jsonrpc"] == "2.0"
        assert "id" not in said
        return frames[0].decode(), said

    def hear(self, seconds: float = REPEAT_SECONDS) -> tuple[str, dict[str, Any]]:
        heard = self.hear_or_none(seconds)
        assert heard is not None, f"nothing was announced for {seconds} s"
        return heard


@pytest.fixture(scope="module")
def early(chatty):
    """An ear for the nodes' topic, open from the start, so that its test need not wait for long."""
    with raws(chatty.endpoints) as made:
        yield Ear(made, "node")


@pytest.fixture(autouse=True)
def _early(early):
    """Open it with the first test of this file."""


def heard_of(ear: Ear, task: str, seconds: float = REPEAT_SECONDS) -> tuple[str, dict[str, Any]]:
    """The next announcement of one task."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        topic, said = ear.hear(left)
        if said["params"].get("task_id") == task:
            return topic, said
    raise AssertionError(f"{task} was not announced for {seconds} s")


def listening(net: Raws, owner: Client, method: str) -> Ear:
    """An ear for one method that is known to hear: its first announcement has come, and its task is gone."""
    ear, task = Ear(net, f"task.{method}"), owner.submit(method)
    heard_of(ear, task)
    owner.cancel(task)
    return ear


def test_a_new_task_is_announced_under_its_method(net):
    owner, worker, method = pair(net)
    ear = listening(net, owner, method)
    task = owner.submit(method)
    topic, said = heard_of(ear, task, 2)
    assert topic == f"task.{method}"
    assert said["method"] == "zerotask.node.broker_new_task"
    assert said["params"] == {"method": method, "task_id": task}
    assert worker.rpc.call("node_task_request", task)["id"] == task


@pytest.mark.parametrize("topic", ["", "task."])
def test_a_shorter_topic_hears_too(net, topic):
    owner, _, method = pair(net)
    ear = Ear(net, topic)
    heard, said = heard_of(ear, owner.submit(method))
    assert (heard, said["params"]["method"]) == (f"task.{method}", method)


def test_another_methods_topic_hears_nothing(net):
    owner, _, method = pair(net)
    ear = listening(net, owner, method)
    owner.submit(unique("other"))
    last = owner.submit(method)
    assert {said["params"]["task_id"] for _, said in [ear.hear()]} <= {last}


def test_who_subscribes_later_hears_of_what_is_still_unassigned(net):
    owner, worker, method = pair(net)
    task = owner.submit(method)
    ear = Ear(net, f"task.{method}")
    start = time.monotonic()
    heard_of(ear, task)
    heard_of(ear, task)
    took = time.monotonic() - start
    held = worker.take(task)
    while ear.hear_or_none(0.1):
        pass
    assert ear.hear_or_none(min(took, 1.5)) is None, "it is announced while it is unassigned only"
    worker.fail(held, retry=True)
    heard_of(ear, task)


def test_a_task_for_later_is_announced_when_its_time_has_come(net):
    owner, worker, method = pair(net)
    ear = listening(net, owner, method)
    start = time.monotonic()
    task = owner.submit(method, [], delay=SHORT)
    heard_of(ear, task)
    assert time.monotonic() - start >= SHORT - 0.02
    assert worker.take(task)["id"] == task


def test_an_announced_task_is_stored_already(net):
    owner, worker, method = pair(net)
    ear = listening(net, owner, method)
    taken: set[str] = set()
    for _ in range(20):
        owner.rpc.ask("client_new_task", owner.id, method, [])
        task = ear.hear()[1]["params"]["task_id"]
        while task in taken:  # it was announced again before it was taken
            task = ear.hear()[1]["params"]["task_id"]
        taken.add(task)
        assert worker.take(task)["id"] == task


def test_an_end_is_published_to_its_client_without_the_result(net):
    owner, worker, method = pair(net)
    ear = Ear(net, f"result.{owner.id}")

    def ended() -> tuple[str, dict[str, Any]] | None:
        task = owner.submit(method)
        worker.finish(worker.take(task), "not for everybody")
        return ear.hear_or_none(0.1)

    topic, said = until(ended)
    assert topic == f"result.{owner.id}"
    assert said["method"] == "zerotask.client.task_complete"
    assert set(said["params"]) == {"task_id", "status"}
    assert said["params"]["status"] == "finished"
    while ear.hear_or_none(0.1):
        pass
    task = owner.submit(method)
    owner.cancel(task)
    assert ear.hear()[1]["params"] == {"task_id": task, "status": "cancelled"}


def test_nodes_are_asked_for_their_status_every_ten_seconds(early):
    topic, said = early.hear(NODE_STATUS_SECONDS + 2)
    assert topic == "node"
    assert said["method"] == "zerotask.node.broker_node_status"
    assert said["params"] == {"heartbeat_interval": INTERVAL}

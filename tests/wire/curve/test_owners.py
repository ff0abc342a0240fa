"""Whose task is whose, with keys: a task belongs to the public key that submitted it, not to the name of that key."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import zmq

from tests.fakes.waiting import until
from tests.wire.curve.keys import Lock, Pair, locked, new_pair
from tests.wire.curve.test_identities import call
from tests.wire.scale0.raw import Raw, unique

pytestmark = pytest.mark.processes

BAD_TASK = -32020
HEARD_SECONDS = 1.5


def replaced(lock: Lock, role: str, name: str) -> Pair:
    """The key of this name is revoked, and another one is stored under it."""
    return lock.new(role, name)


def client(lock: Lock, pair: Pair, id_: str) -> Raw:
    raw = lock.raw("frontend", pair)
    assert call(raw, "client_connect", id_)["result"] == id_
    return raw


def finished(lock: Lock, raw: Raw, id_: str, method: str, **options: Any) -> str:
    """A task with a result."""
    task: str = call(raw, "client_new_task", id_, method, [1], None, options)["result"]
    name = unique("node")
    node = lock.raw("backend", lock.new("backend", name))
    assert call(node, "node_connect", name, [method])["result"] == name
    assert [row["id"] for row in call(node, "node_tasks_request", name)["result"]] == [task]
    assert call(node, "node_task_finished", name, task, "secret")["result"] is True
    return task


# Promise: OWN-1, OWN-2
@pytest.mark.parametrize("restart", [False, True])
def test_the_next_key_of_a_name_inherits_no_task_and_no_idempotency_key(tmp_path: Path, restart: bool) -> None:
    with locked(tmp_path) as lock:
        mine = client(lock, lock.new("frontend", "web"), "web-tasks")
        method = unique("method")
        task = finished(lock, mine, "web-tasks", method, key="order-1")
        waiting = call(mine, "client_new_task", "web-tasks", "nobody.does", [1])["result"]
        assert call(mine, "client_task_result", "web-tasks", task)["result"] == "secret"
        later = replaced(lock, "frontend", "web")
        if restart:
            lock.broker.kill9()
            lock.broker.restart()
        raw = client(lock, later, "web-tasks")
        for id_ in (task, waiting):
            for name in ("client_task_status", "client_task_result", "client_task_cancel"):
                assert call(raw, name, "web-tasks", id_)["error"]["code"] == BAD_TASK, name
            assert call(raw, "client_task_wait", "web-tasks", [id_], 1)["error"]["code"] == BAD_TASK
        own = call(raw, "client_new_task", "web-tasks", "another.method", [2], None, {"key": "order-1"})
        assert own["result"] not in (task, waiting)
        token = {"auth_token": (lock.folder.parent / "token").read_text()}
        listed = raw.manage("list_tasks", token).body["items"]
        assert {row["task_id"] for row in listed} == {task, waiting, own["result"]}, "an operator sees all"


# Promise: OWN-3
def test_the_next_key_of_a_workers_name_cannot_finish_its_task(tmp_path: Path) -> None:
    with locked(tmp_path) as lock:
        mine, worker = client(lock, lock.new("frontend", "web"), "web-tasks"), lock.new("backend", "work")
        task = call(mine, "client_new_task", "web-tasks", "sum", [1])["result"]
        node = lock.raw("backend", worker)
        assert call(node, "node_connect", "work", ["sum"])["result"] == "work"
        assert [row["id"] for row in call(node, "node_tasks_request", "work")["result"]] == [task]
        lock.broker.kill9()
        later = new_pair()
        lock.store("backend", "work", later)
        lock.broker.restart()
        forger = lock.raw("backend", later)
        assert call(forger, "node_connect", "work", [])["result"] == "work"
        assert "error" in call(forger, "node_task_finished", "work", task, "forged")
        assert call(mine_again(lock, mine), "client_task_status", "web-tasks", task)["result"]["status"] != "finished"


def mine_again(lock: Lock, raw: Raw) -> Raw:
    """The same socket, after the broker was restarted: libzmq reconnects by itself."""
    assert call(raw, "client_connect", "web-tasks")["result"] == "web-tasks"
    return raw


def topics(socket: zmq.Socket[bytes], seconds: float) -> set[str]:
    """What a subscriber hears about tasks within this time."""
    heard, end = set(), time.monotonic() + seconds
    while socket.poll(max(0, round((end - time.monotonic()) * 1000))):
        topic, body = socket.recv_multipart()
        assert json.loads(body)["jsonrpc"] == "2.0"
        if topic != b"node":
            heard.add(topic.decode())
    return heard


# Promise: OWN-4
def test_a_key_hears_of_its_own_tasks_only_whatever_it_subscribes_to(tmp_path: Path) -> None:
    with locked(tmp_path, default_heartbeat_interval=0.5) as lock:
        pair, method, other_method = lock.new("frontend", "web"), unique("method"), unique("other")
        other = lock.new("frontend", "other")
        worker, barred = lock.new("backend", "work"), new_pair()
        lock.store("backend", "barred", barred, allow="take:nothing")
        lock.admitted("backend", barred)
        ears = {
            who: lock.subscriber("task_pub", one)
            for who, one in {"mine": pair, "other": other, "worker": worker, "barred": barred}.items()
        }
        mine, theirs = client(lock, pair, "web-tasks"), client(lock, other, "other-tasks")
        call(mine, "client_new_task", "web-tasks", "nobody.does", [1])
        until(lambda: topics(ears["mine"], 0.2) == {"task.nobody.does"}, "the subscription is known")
        finished(lock, mine, "web-tasks", method)
        finished(lock, theirs, "other-tasks", other_method)
        heard = {who: topics(ear, HEARD_SECONDS) for who, ear in ears.items()}
        assert "result.web-tasks" in heard["mine"]
        assert "result.other-tasks" in heard["other"]
        assert not {f"task.{other_method}", "result.other-tasks"} & heard["mine"]
        assert not {f"task.{method}", "task.nobody.does", "result.web-tasks"} & heard["other"]
        assert {f"task.{method}", f"task.{other_method}", "task.nobody.does"} <= heard["worker"]
        assert not {"result.web-tasks", "result.other-tasks"} & heard["worker"]
        assert heard["barred"] == set(), "a worker hears of what it may take"

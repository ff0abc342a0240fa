"""`scale0 status`: one screen, what is wrong in words, and what to type next; and --watch through a broker's death."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

import scale0
from tests.fakes.broker_process import BrokerProcess, broker_process
from tests.fakes.shell import Shell, manager_of
from tests.fakes.waiting import until

pytestmark = pytest.mark.processes


def waiting(broker: BrokerProcess, service: str) -> Iterator[None]:
    """A request for what nobody offers, as long as it is wanted."""
    with scale0.Client(broker.endpoints["frontend"]) as client:
        pending = client.start(service, timeout=60)
        until(lambda: any(row["service"] == service for row in client.services()), "it waits")
        assert not pending.done
        yield


# Promise: TERM-1
def test_a_broker_that_is_well_says_so(manager):
    done = manager.run("status")
    assert (done.returncode, done.stderr) == (0, "")
    assert "No problems." in done.stdout
    assert len(done.stdout.splitlines()) <= 24
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert manager.json("status")["findings"] == []


# Promise: TERM-1
def test_a_problem_is_reported_with_the_next_step(manager, broker):
    for _ in waiting(broker, "thumbs.make"):
        done = manager.run("status")
        assert done.returncode == 1
        assert "critical  service thumbs.make: 1 request waits for it, and no worker offers it" in done.stdout
        assert "next: start a worker that offers it: scale0 worker FILE.py:worker" in done.stdout
        found = json.loads(manager.run("status", "--json").stdout)["findings"]
        assert [(one["severity"], one["what"], one["page"]) for one in found] == [
            ("critical", "service thumbs.make", "services")
        ]


# Promise: TERM-1
def test_a_lost_peer_is_wrong(tmp_path):
    with broker_process(tmp_path / "a") as first:
        peers = {"peers": [first.endpoints["peer"]], "identity": "broker-2"}
        with broker_process(tmp_path / "b", **peers) as second:
            manager = manager_of(second, tmp_path)
            until(lambda: manager.run("status").returncode == 0, "both are there")
            first.kill9()
            until(lambda: "peer broker-1: lost" in manager.run("status").stdout, "it is missed")
            assert manager.run("status").returncode == 1


# Promise: TERM-2
def test_a_watcher_sees_the_broker_go_and_come_back(tmp_path):
    with broker_process(tmp_path / "broker") as broker:
        shell = manager_of(broker, tmp_path)
        with shell.background("status", "--watch") as watcher:
            watcher.wait_for("No problems.")
            broker.kill9()
            watcher.wait_for("no broker answers")
            broker.restart()
            seen = len(watcher.output)
            watcher.wait_until(lambda: "No problems." in watcher.output[seen:])
            assert watcher.process.poll() is None


# Promise: TERM-2
@pytest.mark.parametrize(
    "words",
    [("task", "list"), ("config", "history"), ("silence", "list"), ("queues",), ("access", "list")],
    ids=" ".join,
)
def test_watch_looks_again(manager, words):
    with manager.background(*words, "--json", "--watch") as watcher:
        watcher.wait_until(lambda: watcher.output.count("\n") >= 2)
        for line in watcher.output.splitlines()[:2]:
            assert isinstance(json.loads(line), list)


# Promise: TERM-2
def test_watch_ends_with_its_reader(manager):
    with manager.background("services", "--watch", "--json") as watcher:
        watcher.wait_for("\n")
        assert watcher.process.stdout is not None
        watcher.process.stdout.close()
        assert watcher.process.wait(30) == 0


def test_the_first_look_of_a_watcher_fails_as_without(tmp_path):
    done = Shell(tmp_path, SCALE0_JOIN="127.0.0.1:1").run("status", "--watch")
    assert done.returncode == 3


# Promise: TERM-4
def test_queues_show_who_waits_and_who_is_next(served, manager, tmp_path):
    gate = tmp_path / "gate"
    with scale0.Client(served.endpoints["frontend"]) as client:
        pending = [client.start("wait.for", str(gate), timeout=60) for _ in range(50)]
        rows = until(
            lambda: [row for row in manager.json("queues", "--match", "wait.*", "--busy") if row["waiting"]],
            "some wait",
        )
        assert rows[0]["backends"] == 1
        assert rows[0]["oldest_seconds"] >= 0
        assert manager.run("queues", "--match", "wait.*").stdout.splitlines()[1].startswith("wait.for ")
        found = json.loads(manager.run("status", "--json").stdout)["findings"]
        assert ("warning", "service wait.for") in [(one["severity"], one["what"]) for one in found]
        gate.touch()
        assert {one.result() for one in pending} == {"finished"}
    assert manager.run("queues", "--busy").stdout.startswith("No queue matches.")


# Promise: TERM-4
def test_an_error_client_is_shown_and_forgiven(broker, manager):
    name = an_error_client(broker)
    assert name in manager.run("error-clients").stdout
    shown = manager.run("status")
    assert shown.returncode == 1
    assert f"1 client is ignored for bad input: {name}" in shown.stdout
    assert manager.run("error-clients", "forgive", name).stdout == f"{name} is accepted again\n"
    assert "is not ignored" in manager.refuses("error-clients", "forgive", name)
    assert manager.run("error-clients").stdout == "No client is ignored.\n"


def an_error_client(broker: BrokerProcess) -> str:
    """The name of a client that sent invalid messages too often."""
    token = broker.token.strip()
    context = zmq.Context()
    bad = context.socket(zmq.DEALER)
    bad.linger = 0
    bad.connect(broker.endpoints["frontend"])
    try:
        with scale0.Client(broker.endpoints["frontend"]) as client:

            def banned() -> list[dict[str, Any]]:
                bad.send_multipart([b"SCALE0", b"NONSENSE", b"{}"])
                rows: list[dict[str, Any]] = client.manage("list_error_clients", auth_token=token)["items"]
                return rows

            name: str = until(banned, "it is ignored")[0]["client"]
            return name
    finally:
        bad.close()
        context.term()

"""A new broker requires keys, and programs of its user find theirs without being given any."""

# Promise: CURVE-21
from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest
import zmq

from tests.fakes.broker_process import ANY_PORTS, BrokerProcess, broker_process
from tests.fakes.ports import free_port
from tests.fakes.processes import scale0_command
from tests.fakes.shell import Shell
from tests.fakes.waiting import until

pytestmark = pytest.mark.processes

NOBODY = 65_534
"""A user that runs nothing."""

HELLO = """
import scale0

worker = scale0.Worker(identity="thumbs-1")

@worker.service("hello")
def hello(name: str) -> str:
    return f"Hello, {name}!"
"""


def shell_in(tmp_path, name: str, user: str, broker: BrokerProcess | None = None, **variables: str) -> Shell:
    """A shell of this user, in a directory of its own."""
    folder = tmp_path / name
    folder.mkdir()
    if broker is not None:
        variables |= {"SCALE0_JOIN": broker.address(), "SCALE0_JOIN_BACKEND": broker.address("backend")}
    return Shell(folder, XDG_CONFIG_HOME=str(tmp_path / f"{user}-config"), **variables)


@pytest.fixture
def user(tmp_path, monkeypatch):
    """The user that runs the brokers of a test."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "ann-config"))
    return "ann"


@pytest.fixture
def locked(tmp_path, user):
    with broker_process(tmp_path, curve=None) as running:
        yield running


def answers_null(endpoint: str) -> bool:
    """Whether a socket without a key gets an answer."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.set(zmq.LINGER, 0)
        socket.connect(endpoint)
        socket.send_multipart([b"SCALE0/1", b"CHECKCONFIG", b"{}"])
        return bool(socket.poll(1_000))


def test_a_new_broker_refuses_sockets_without_a_key(locked):
    assert not answers_null(locked.endpoints["frontend"])


def test_programs_of_the_same_user_work_in_any_directory_and_under_any_name(locked, tmp_path, user):
    shell = shell_in(tmp_path, "elsewhere", user, locked)
    (shell.folder / "hello.py").write_text(HELLO)
    with shell.background("worker", "hello.py:worker") as worker:
        worker.wait_for("ready thumbs-1")
        assert shell.run("call", "hello", "Ada").stdout == "Hello, Ada!\n"


def test_another_user_is_refused_and_is_told_what_to_do(locked, tmp_path):
    error = shell_in(tmp_path, "elsewhere", "bob", locked).refuses("services", status=3)
    assert "scale0 token" in error


def test_a_data_directory_that_was_used_without_keys_stays_without_and_the_log_says_so(tmp_path, user):
    with broker_process(tmp_path, curve=False) as broker:
        assert answers_null(broker.endpoints["frontend"])
        broker.terminate()
        broker.config["curve"] = None
        broker.start()
        assert answers_null(broker.endpoints["frontend"])
        assert "was used without keys before" in broker.log_text()


# Promise: CURVE-25
def test_a_broker_whose_store_knows_keys_does_not_start_without_any(tmp_path, user):
    with broker_process(tmp_path, curve=None) as broker:
        broker.terminate()
        shutil.rmtree(broker.data_dir / "keys")
        (broker.data_dir / "accepted-keys.json").unlink(missing_ok=True)
        ended = subprocess.run(broker.command, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 2
        assert "scale0 keys init" in ended.stderr
        subprocess.run(scale0_command("keys", "init", "--data-dir", str(broker.data_dir)), check=True, timeout=60)
        broker.start()


def test_a_link_that_a_killed_broker_left_does_not_disturb_the_next_at_its_ports(locked, tmp_path, user):
    locked.kill9()
    ports = {f"{name}_port": locked.config[f"{name}_port"] for name in locked.endpoints}
    (tmp_path / "next").mkdir()
    with broker_process(tmp_path / "next", curve=False, **ports) as unencrypted:
        assert shell_in(tmp_path, "elsewhere", user, unencrypted).run("services").returncode == 0


def test_a_broker_that_stops_removes_its_links(locked, tmp_path):
    folder = tmp_path / "ann-config" / "scale0" / "keys" / "running"
    assert len(os.listdir(folder)) == 3
    locked.end(signal.SIGTERM)
    assert os.listdir(folder) == []


def test_brokers_of_one_user_on_one_machine_join_without_a_token(locked, tmp_path, user):
    shell = shell_in(tmp_path, "second", user, SCALE0_DATA_DIR=locked.config["data_dir"], SCALE0_JOIN=locked.address())
    words = ["broker", "--identity", "second", "--data-dir", "data", "--join", locked.address("peer"), *ANY_PORTS[:2]]
    ports = ["--peer-port", str(free_port()), *ANY_PORTS[3:]]
    with shell.background(*words, *ports) as second:
        second.wait_for("ready second")
        until(lambda: any(row["broker"] == "second" for row in shell.json("peers")))


IMPOSTOR = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("ready", flush=True)
while True:
    connection, _ = listener.accept()
    print("connected", flush=True)
"""


# Promise: CURVE-26
@pytest.mark.parametrize(
    "words", [("services",), ("call", "hello", "Ada"), ("status",), ("reload",), ("worker", "hello.py:worker")]
)
def test_another_user_who_listens_where_the_broker_did_receives_nothing(locked, tmp_path, user, words):
    shell = shell_in(tmp_path, "elsewhere", user, locked, SCALE0_TOKEN="s0_secret")
    (shell.folder / "hello.py").write_text(HELLO)
    locked.end(signal.SIGTERM)
    port = locked.address("backend" if words[0] == "worker" else "frontend").rpartition(":")[2]
    command = [sys.executable, "-c", IMPOSTOR, port, str(NOBODY)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as impostor:
        assert impostor.stdout is not None
        try:
            assert impostor.stdout.readline() == "ready\n"
            error = shell.refuses(*words, status=2)
            assert "another user listens there" in error
            assert "s0_secret" not in error
        finally:
            impostor.kill()
        assert impostor.stdout.read() == ""


# Promise: CURVE-26
def test_a_running_worker_sends_nothing_to_another_user_who_listens_where_its_broker_did(tmp_path, user):
    with broker_process(tmp_path, curve=False) as broker:
        shell = shell_in(tmp_path, "elsewhere", user, broker)
        (shell.folder / "hello.py").write_text(HELLO)
        port = broker.address("backend").rpartition(":")[2]
        with shell.background("worker", "hello.py:worker") as worker:
            until(lambda: "hello" in shell.run("services").stdout)
            broker.kill9()
            command = [sys.executable, "-c", IMPOSTOR, port, str(NOBODY)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as impostor:
                assert impostor.stdout is not None
                try:
                    assert impostor.stdout.readline() == "ready\n"
                    worker.wait_for("another user listens there")
                finally:
                    impostor.kill()
                assert impostor.stdout.read() == ""

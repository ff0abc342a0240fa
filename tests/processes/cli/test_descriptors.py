"""Connections that use up all descriptors leave some for the broker's own files."""

from __future__ import annotations

import contextlib
import socket
import subprocess

import pytest

import scale0
from scale0.broker.edge.accepted_keys import AcceptedKeys, read_accepted
from scale0.broker.edge.key_folder import KeyFolder
from scale0.transport.edge.curve_certificates import CurveCertificate, new_certificate
from tests.fakes.broker_process import ANY_PORTS, broker_process
from tests.fakes.processes import scale0_command
from tests.fakes.waiting import until

pytestmark = pytest.mark.processes

LIMIT = 256
"""Descriptors that the broker may have."""
FLOOD = 2 * LIMIT


def test_when_connections_are_refused_keys_commits_marks_and_management_still_work(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with broker_process(tmp_path, curve=None) as broker, contextlib.ExitStack() as stack:
        broker.end()
        broker.prefix = ["prlimit", f"--nofile={LIMIT}:{LIMIT}"]
        broker.start()
        client = stack.enter_context(scale0.Client(broker.endpoints["frontend"]))
        status = client.manage("status", auth_token=broker.token)
        assert status["broker"] == "broker-1"
        mark = (broker.data_dir / "commits").read_bytes()
        host, port = broker.address().split(":")
        for _ in range(FLOOD):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=5))
        until(lambda: "no connection is accepted for" in broker.log_text())

        KeyFolder(broker.data_dir).store("frontend", "late", CurveCertificate(public=new_certificate().public))

        client.manage("patch_config", set={"default_heartbeat_interval": 2.0}, auth_token=broker.token)
        assert client.manage("get_config", auth_token=broker.token)["config"]["default_heartbeat_interval"] == 2.0
        until(lambda: (broker.data_dir / "commits").read_bytes() != mark)
        until(lambda: any(key.name == "late" for key in (read_accepted(broker.data_dir) or AcceptedKeys()).keys))
        assert "the keys are not read again" not in broker.log_text()


@pytest.mark.parametrize("hard", [64, 100, LIMIT - 1])
def test_a_limit_that_would_admit_no_client_is_refused_at_the_start(tmp_path, hard):
    command = ["prlimit", f"--nofile={hard}:{hard}", *scale0_command("broker", "--data-dir", str(tmp_path), *ANY_PORTS)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert f"at most {hard} open files are permitted" in ended.stderr
    assert "LimitNOFILE" in ended.stderr


def test_a_soft_limit_is_raised_to_the_hard_one(tmp_path):
    with broker_process(tmp_path) as broker:
        broker.end()
        broker.prefix = ["prlimit", f"--nofile=64:{LIMIT}"]
        broker.start()
        with scale0.Client(broker.endpoints["frontend"]) as client:
            assert client.manage("status", auth_token=broker.token)["broker"] == "broker-1"

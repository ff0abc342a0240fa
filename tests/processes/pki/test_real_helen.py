"""The whole sequence with a Helen process: init, token, enrol, connect, renew, revoke."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from scale0.cli.monitoring.helen import CONFIG_FILE
from scale0.config import AgentConfig
from scale0.config.edge.files import read_config
from scale0.monitoring.pki.authority import CertificateAuthority
from scale0.monitoring.pki.enrolment import EnrolError, EnrolmentEndpoint, enrol, renew

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.processes, pytest.mark.slow]

READY_SECONDS = 30
HELEN = (sys.executable, "-m", "scale0", "helen")


@pytest.fixture
def data_dir(tmp_path):
    folder = tmp_path / "helen"
    done = subprocess.run(
        [*HELEN, "init", str(folder), "--port", "0", "--broker", "127.0.0.1:1"],
        capture_output=True,
        text=True,
        timeout=READY_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@contextlib.contextmanager
def running(folder: Path) -> Iterator[int]:
    """Helen as her first file has her; the port."""
    command = [*HELEN, "--config", str(folder / CONFIG_FILE)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("ready"), (folder / "log").read_text()
            yield int(line.rpartition("port=")[2])
        finally:
            process.terminate()
            process.wait(READY_SECONDS)
            assert process.stdout is not None
            process.stdout.close()


@contextlib.contextmanager
def connected(config: AgentConfig, port: int) -> Iterator[ssl.SSLSocket]:
    context = ssl.create_default_context(cafile=config.server_ca)
    context.load_cert_chain(config.certificate, config.private_key)
    with (
        socket.create_connection(("127.0.0.1", port), 10) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        yield connection


# Promise: AGENT-17
def test_an_agent_enrols_connects_renews_and_is_revoked_at_once(data_dir, tmp_path):
    with running(data_dir) as port:
        place = EnrolmentEndpoint("127.0.0.1", port)
        operator = CertificateAuthority(data_dir)
        token = operator.make_token(time.time(), 60, "web-1")
        files = enrol(place, token, "web-1", tmp_path / "agent")
        config = read_config(files.config, AgentConfig)
        with pytest.raises(EnrolError, match="was used"):
            enrol(place, token, "web-1", tmp_path / "second")
        with connected(config, port) as agent:
            agent.sendall(b"hello 2 test\n")
            assert agent.recv(100).startswith(b"accepted")
            assert renew(config) > time.time()  # beside the connection, which stays
            agent.sendall(b"ping 5\n")
            received = b""
            while b"pong 5\n" not in received:
                data = agent.recv(1_000)
                assert data, received
                received += data
            began = time.monotonic()
            assert operator.revoke("web-1", time.time()) == 2
            while data := agent.recv(1_000):
                received += data
            assert b"error the certificate is revoked" in received
            assert time.monotonic() - began < 5
        with connected(config, port) as late:
            assert late.recv(100).startswith(b"error")
        with pytest.raises(EnrolError, match="revoked"):
            renew(config)
        again = operator.make_token(time.time(), 60, "web-1")
        enrol(place, again, "web-1", tmp_path / "agent", replace=True)
        with connected(config, port) as back:
            back.sendall(b"hello 1 test\n")
        assert renew(config) > time.time()
    assert token.secret not in (data_dir / "log").read_text()

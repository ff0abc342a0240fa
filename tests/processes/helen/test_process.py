"""Helen as a process: raw agents, requests of the network, revocation, signals, restarts."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import ssl
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from scale0.client.client import Client
from scale0.errors import CallError
from scale0.monitoring.pki.authority import create_authority
from scale0.monitoring.pki.certificates import key_pem, new_key, request_pem
from tests.fakes.broker_process import BrokerProcess
from tests.fakes.waiting import PATIENCE_SECONDS, until
from tests.processes.helen.helen_process import Agent, HelenProcess, helen_process

pytestmark = pytest.mark.processes

OK: dict[str, Any] = {"state": "ok", "message": "fine", "metrics": [{"name": "n", "value": 1}]}


def answer(agent: Agent, result: dict[str, Any]) -> bytes:
    """Answer the next check; its args."""
    word, name, number, size = agent.line().split(b" ")
    assert word == b"check"
    args = agent.blob(int(size))
    agent.say_blob(b"result %b %b" % (number, name), result)
    return args


# Promise: AGENT-5
def test_check_goes_to_the_agent_and_its_result_comes_back(helen: HelenProcess, client: Client) -> None:
    with helen.agent("one") as agent, ThreadPoolExecutor(1) as threads:
        agent.say(b"hello 1 by-hand\n")
        until(lambda: "one" in [row["agent"] for row in client.call("helen.agents")["items"]])
        asked = threads.submit(client.call, "helen.check", agent="one", check="load", args={"w": 5})
        assert json.loads(answer(agent, OK)) == {"w": 5}
        assert asked.result(PATIENCE_SECONDS) == OK


# Promise: AGENT-5
def test_agent_that_is_not_there_is_404(client: Client) -> None:
    with pytest.raises(CallError, match="404"):
        client.call("helen.check", agent="nobody", check="load", args={})


# Promise: AGENT-5
def test_silent_agent_is_504(helen: HelenProcess, client: Client) -> None:
    with helen.agent("slow") as agent:
        agent.say(b"hello 1 by-hand\n")
        until(lambda: "slow" in [row["agent"] for row in client.call("helen.agents")["items"]])
        with pytest.raises(CallError, match="504"):
            client.request("helen.check", b'{"agent": "slow", "check": "load", "args": {}, "timeout": 0.3}')


# Promise: AGENT-6
def test_reports_are_acknowledged_once_they_are_stored(helen: HelenProcess) -> None:
    with helen.accepted("two") as agent:
        assert agent.schedule()["checks"] == []
        for number in range(1, 101):
            agent.say_blob(b"report %d load" % number, {**OK, "spool": "s1", "n": number, "age": 0})
        last = 0
        while last < 100:
            word, number_ = agent.line().split(b" ")
            assert word == b"ack"
            assert int(number_) > last
            last = int(number_)


def test_openssl_typed_by_hand_is_an_agent(helen: HelenProcess, client: Client) -> None:
    certificate, key = helen.certificate("typed")
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{helen.port}", "-CAfile", str(helen.files / "ca.pem")]
    command += ["-cert", str(certificate), "-key", str(key), "-verify_return_error", "-quiet"]
    typed = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert typed.stdin is not None
    assert typed.stdout is not None
    try:
        with ThreadPoolExecutor(1) as threads:
            typed.stdin.write(b"hello 1 openssl\n")
            typed.stdin.flush()
            until(lambda: "typed" in [row["agent"] for row in client.call("helen.agents")["items"]])
            asked = threads.submit(client.call, "helen.check", agent="typed", check="load", args={})
            assert typed.stdout.readline() == b"check load 1 2\n"
            assert typed.stdout.readline() == b"{}\n"
            body = json.dumps(OK).encode()
            typed.stdin.write(b"result 1 load %d\n%b\n" % (len(body), body))
            typed.stdin.flush()
            assert asked.result(PATIENCE_SECONDS) == OK
            typed.stdin.write(b"nonsense\n")
            typed.stdin.flush()
            assert typed.stdout.readline().startswith(b"error ")
            assert typed.stdout.readline() == b""
            typed.wait(PATIENCE_SECONDS)
    finally:
        typed.kill()
        typed.wait(PATIENCE_SECONDS)
        typed.stdin.close()
        typed.stdout.close()


# Promise: AGENT-18
def test_enrolment_by_token_gives_a_certificate_that_works_once(helen: HelenProcess, tmp_path: Path) -> None:
    key = new_key()
    token = helen.authority.make_token(time.time(), 5, "fresh").text()
    asks = {"token": token, "csr": request_pem(key, "fresh")}
    with helen.connect() as stranger:
        stranger.say_blob(b"enrol", asks)
        word, size = stranger.line().split(b" ")
        assert word == b"enrolled"
        chain = stranger.blob(int(size))
        assert stranger.ended()
    files = tmp_path / "fresh.pem", tmp_path / "fresh-key.pem"
    files[0].write_bytes(chain)
    files[1].write_text(key_pem(key))
    with helen.connect(files) as agent:
        agent.say(b"hello 2 trial\n")
        assert agent.line().startswith(b"accepted")
    with helen.connect() as stranger:
        stranger.say_blob(b"enrol", asks)
        assert stranger.line().startswith(b"error ")


# Promise: AGENT-15
def test_stranger_may_only_enrol(helen: HelenProcess) -> None:
    with helen.connect() as stranger:
        stranger.say(b"hello 2 trial\n")
        assert stranger.line().startswith(b"error ")
        assert stranger.ended()


# Promise: AGENT-17
def test_revoked_certificate_ends_its_connection_at_once_and_comes_in_no_more(helen: HelenProcess) -> None:
    files = helen.certificate("thief")
    with helen.connect(files) as agent:
        agent.say(b"hello 2 trial\n")
        assert agent.line().startswith(b"accepted")
        agent.schedule()
        began = time.monotonic()
        assert helen.authority.revoke("thief", time.time()) == 1
        assert agent.line().startswith(b"error ")
        assert agent.ended()
        assert time.monotonic() - began < 5.0
    with helen.connect(files) as agent:
        assert agent.line().startswith(b"error ")
        assert agent.ended()


def test_sighup_reads_the_certificate_anew(broker: BrokerProcess, tmp_path: Path) -> None:
    with helen_process(tmp_path / "helen", broker, "h2") as helen:
        other = tmp_path / "other"
        create_authority(other, ["localhost"], time.time())
        for name in ("helen.pem", "helen-key.pem"):
            shutil.copy(other / name, helen.folder / name)
        helen.process.send_signal(signal.SIGHUP)
        until(lambda: "certificate was reloaded" in helen.said())
        with pytest.raises(ssl.SSLCertVerificationError):
            helen.connect()
        (helen.folder / "helen.pem").write_text("nonsense")
        helen.process.send_signal(signal.SIGHUP)
        until(lambda: "the previous one stays" in helen.said())
        with pytest.raises(ssl.SSLCertVerificationError):
            helen.connect()


# Promise: AGENT-6
def test_sigterm_ends_her_in_order_and_a_restart_remembers(broker: BrokerProcess, tmp_path: Path) -> None:
    with (
        helen_process(tmp_path, broker, "h3") as helen,
        Client(broker.endpoints["frontend"], timeout=PATIENCE_SECONDS) as client,
    ):
        with helen.accepted("three") as agent:
            report = {**OK, "spool": "s", "n": 1, "labels": {"role": "web"}, "checks": ["load"]}
            agent.say_blob(b"report 1 equus.agent", report)
            agent.schedule()
            assert agent.line() == b"ack 1"
            began = time.monotonic()
            assert helen.end() == 0
            assert time.monotonic() - began < 5.0
            assert agent.ended()
        helen.start()
        rows = client.call("helen.h3.agents", all=True)["items"]
        assert [(row["agent"], row["labels"]) for row in rows] == [("three", {"role": "web"})]


def test_helen_that_lost_her_identity_ends_and_says_so(broker: BrokerProcess, tmp_path: Path) -> None:
    with helen_process(tmp_path / "one", broker, "twin") as first:
        until(lambda: "connected to the network" in first.said())
        with helen_process(tmp_path / "two", broker, "twin"):
            assert first.process.wait(PATIENCE_SECONDS) == 1
            assert "409" in first.said()


def failing(helen: HelenProcess) -> str:
    with pytest.raises(AssertionError, match="not ready"):
        helen.start()
    assert helen.process.wait(PATIENCE_SECONDS) != 0
    return helen.said()


def test_wrong_files_and_a_taken_port_are_said(broker: BrokerProcess, tmp_path: Path) -> None:
    helen = HelenProcess(tmp_path, broker, "h4", None, {})
    good = helen.config["client_ca"]
    helen.config["client_ca"] = str(tmp_path / "nothing.pem")
    assert "nothing.pem" in failing(helen)
    helen.config["client_ca"] = good
    with socket.create_server(("127.0.0.1", 0)) as taken:
        helen.config["helen_port"] = taken.getsockname()[1]
        assert "Choose another port" in failing(helen)

"""Helen as a process: schedules, notifications, other Helens, a broker that restarts, signals and wrong files.

tests/wire/monitoring has her protocol: requests, reports, enrolment and refusals.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import sqlite3
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from scale0.client.client import Client
from scale0.client.worker import Worker
from scale0.errors import CallError
from scale0.monitoring.pki.authority import create_authority
from tests.fakes.broker_process import BrokerProcess, broker_process
from tests.fakes.fake_agent import FakeAgent
from tests.fakes.helen_process import HelenProcess, helen_process
from tests.fakes.waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.processes

CHECK = {"name": "disk", "interval": 60, "max_attempts": 1, "args": {"path": "/"}}


def configure(broker: BrokerProcess, **sections: Any) -> None:
    """Change the network's document."""
    with Client(broker.endpoints["frontend"], timeout=PATIENCE_SECONDS) as client:
        found = client.manage("get_config", auth_token=broker.token)
        document = {**found["config"], **sections}
        client.manage("set_config", config=document, base=found["version"], auth_token=broker.token)


def report(agent: FakeAgent, number: int, state: str, name: str = "disk") -> None:
    """A report, and its acknowledgement."""
    body = {"state": state, "message": f"it is {state}", "spool": f"s-{time.time_ns()}", "n": number, "age": 0}
    agent.send_blob(b"report %d %b" % (number, name.encode()), body)
    while agent.message().words != [b"ack", b"%d" % number]:
        pass


@contextlib.contextmanager
def webhook() -> Iterator[tuple[str, list[Any]]]:
    got: list[Any] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            # The first attempt fails: the queue tries again.
            self.send_response(500 if len(got) == 1 else 200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/", got
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def plain(broker: BrokerProcess, helen: HelenProcess) -> Iterator[None]:
    """Whatever a test configures is gone after it, and Helen knows."""
    yield
    configure(broker, checks=[], handlers=[], silences=[], downtimes=[])
    with helen.agent("probe", 2) as agent:
        agent.expect("accepted")
        while agent.expect("schedule").json["checks"]:
            pass


# Promise: AGENT-11
def test_schedule_is_pushed_when_the_configuration_changes(
    broker: BrokerProcess, helen: HelenProcess, client: Client, plain: None
) -> None:
    with helen.accepted("sched") as agent:
        configure(broker, checks=[CHECK])
        [entry] = agent.expect("schedule").json["checks"]
        assert (entry["name"], entry["args"], entry["interval"]) == ("disk", {"path": "/"}, 60)
        report(agent, 1, "ok")
        assert [row["check"] for row in client.call("helen.checks", agent="sched")["items"]] == ["disk"]


# Promise: CHECK-12
def test_problem_goes_out_by_webhook_and_is_tried_again(
    broker: BrokerProcess, helen: HelenProcess, client: Client, plain: None
) -> None:
    with webhook() as (url, got), helen.accepted("hooked") as agent:
        handler = {"name": "hook", "type": "webhook", "url": url, "backoff": 0.05}
        configure(broker, checks=[{**CHECK, "handlers": ["hook"]}], handlers=[handler])
        agent.expect("schedule")
        report(agent, 1, "critical")
        until(lambda: len(got) == 2)
        assert got[0] == got[1]
        assert (got[1]["agent"], got[1]["check"], got[1]["state"]) == ("hooked", "disk", "critical")
        incidents = client.call("helen.incidents", open=True)["items"]
        assert [(row["agent"], row["check"]) for row in incidents] == [("hooked", "disk")]
        report(agent, 2, "ok")
        until(lambda: len(got) == 3)
        assert got[2]["state"] == "ok"


# Promise: CHECK-18
def test_without_a_broker_a_problem_goes_out_directly_and_once_over_a_kill_of_helen(tmp_path: Path) -> None:
    with (
        broker_process(tmp_path / "broker", config_service=True) as broker,
        helen_process(tmp_path / "helen", broker) as helen,
        webhook() as (url, got),
    ):
        handler = {"name": "hook", "type": "webhook", "url": url, "backoff": 0.05}
        with helen.accepted("direct") as agent:
            configure(broker, checks=[{**CHECK, "handlers": ["hook"]}], handlers=[handler])
            agent.expect("schedule")
            broker.kill9()
            until(lambda: "the connection to the network was lost" in helen.log_text())
            report(agent, 1, "critical")
            until(lambda: [b"offered\xc2" in body for body in notices(helen)] == [True], "it is stored as refused")
            helen.kill9()
        helen.start()
        until(lambda: len(got) == 2)
        assert got[0] == got[1]  # the first delivery failed
        sent = until(lambda: helen.events("notice.sent", "direct"))
        assert [json.loads(event["data"]) for event in sent] == [{"handler": "hook", "via": "direct"}]
        broker.start()
        with helen.accepted("direct") as agent:
            report(agent, 1, "ok")
            until(lambda: len(helen.events("notice.sent", "direct")) == 2)
        until(lambda: len(got) == 3)
        assert [one["state"] for one in got] == ["critical", "critical", "ok"]


def notices(helen: HelenProcess) -> list[bytes]:
    """The notifications in her store, as she encodes them."""
    with contextlib.closing(sqlite3.connect(f"file:{helen.folder / 'scale0.db'}?mode=ro", uri=True)) as store:
        return [body for (body,) in store.execute("SELECT body FROM notices")]


# Promise: CHECK-15
def test_problem_starts_a_task_and_the_check_runs_again_after_it(
    broker: BrokerProcess, helen: HelenProcess, client: Client, plain: None
) -> None:
    healed: list[Any] = []
    worker = Worker(broker.endpoints["backend"])
    worker.add("heal", healed.append)
    with worker, helen.accepted("sick") as agent:
        handler = {"name": "doctor", "type": "task", "method": "heal"}
        configure(broker, checks=[{**CHECK, "handlers": ["doctor"]}], handlers=[handler])
        agent.expect("schedule")
        report(agent, 1, "critical")
        check = agent.expect("check")
        assert (check.name, check.json) == ("disk", {"path": "/"})
        assert [one["agent"] for one in healed] == ["sick"]
        agent.answer(check, {"state": "ok", "message": "healed"})
        until(lambda: client.call("helen.checks", agent="sick")["items"][0]["state"] == "ok")


# Promise: AGENT-5
@pytest.mark.slow
def test_question_for_an_agent_of_another_helen_reaches_it(
    broker: BrokerProcess, helen: HelenProcess, client: Client, tmp_path: Path
) -> None:
    with helen_process(tmp_path, broker, "h2", ca=helen) as other:
        until(lambda: client.call("helen.h1.status")["siblings"] == ["h2"], seconds=PATIENCE_SECONDS + 10)
        with other.accepted("theirs") as agent, ThreadPoolExecutor(1) as threads:
            with pytest.raises(CallError, match="404"):
                client.call("helen.h1.check", agent="theirs", check="load", args={})
            # By the common name either of them may be asked, and each finds it.
            until(lambda: client.call("helen.h2.status")["siblings"] == ["h1"], seconds=PATIENCE_SECONDS + 10)
            for _ in range(4):
                asked = threads.submit(client.call, "helen.check", agent="theirs", check="load", args={})
                agent.answer_next({"state": "ok"})
                assert asked.result(PATIENCE_SECONDS)["state"] == "ok"


# Promise: AGENT-22
@pytest.mark.slow
def test_full_helen_sends_agents_to_another(broker: BrokerProcess, helen: HelenProcess, tmp_path: Path) -> None:
    with (
        helen_process(tmp_path, broker, "small", ca=helen, max_agents=1) as small,
        Client(broker.endpoints["frontend"], timeout=PATIENCE_SECONDS) as client,
        small.accepted("first"),
    ):
        until(lambda: client.call("helen.small.status")["siblings"] == ["h1"], seconds=PATIENCE_SECONDS + 10)

        def turned_away() -> bytes:
            with small.agent("second", 2) as agent:
                return agent.line()

        until(lambda: turned_away() == b"redirect 127.0.0.1:%d" % helen.port)


@pytest.mark.slow
def test_helen_serves_agents_without_a_broker_and_comes_back_to_it(tmp_path: Path) -> None:
    with (
        broker_process(tmp_path / "broker", default_heartbeat_interval=0.2) as broker,
        helen_process(tmp_path / "helen", broker) as helen,
        Client(broker.endpoints["frontend"], timeout=PATIENCE_SECONDS, retry=True) as client,
    ):
        assert client.call("helen.h1.status")["agents"] == 0
        broker.kill9()
        until(lambda: "the connection to the network was lost" in helen.log_text())
        with helen.accepted("steady") as agent:
            report(agent, 1, "ok", "load")
            broker.restart()
            until(lambda: helen.log_text().count("connected to the network") == 2)
            assert client.call("helen.h1.status")["agents"] == 1


# Promise: AGENT-5
@pytest.mark.slow
def test_many_checks_at_once_are_all_answered(helen: HelenProcess, client: Client) -> None:
    with helen.accepted("busy") as agent:

        def serve() -> None:
            for _ in range(2_000):
                check = agent.expect("check")
                agent.answer(check, {"state": "ok", "message": check.blob.decode()})

        thread = threading.Thread(target=serve)
        thread.start()
        bodies = [json.dumps({"agent": "busy", "check": "c", "args": {"n": n}}).encode() for n in range(2_000)]
        answers = client.map("helen.check", bodies, in_flight=500, raw=True)
        found = [json.loads(json.loads(body[0])["message"])["n"] for body in answers]
        thread.join(PATIENCE_SECONDS)
        assert found == list(range(2_000))


def test_sighup_reads_the_certificate_again(broker: BrokerProcess, tmp_path: Path) -> None:
    with helen_process(tmp_path / "helen", broker, "h2") as helen:
        other = tmp_path / "other"
        create_authority(other, ["localhost"], time.time())
        for name in ("helen.pem", "helen-key.pem"):
            shutil.copy(other / name, helen.folder / name)
        helen.process.send_signal(signal.SIGHUP)
        until(lambda: "certificate was reloaded" in helen.log_text())
        with pytest.raises(ssl.SSLCertVerificationError):
            helen.connect(None)
        (helen.folder / "helen.pem").write_text("nonsense")
        helen.process.send_signal(signal.SIGHUP)
        until(lambda: "the previous one stays" in helen.log_text())
        with pytest.raises(ssl.SSLCertVerificationError):
            helen.connect(None)


# Promise: AGENT-6
def test_sigterm_ends_her_in_order_and_a_restart_remembers(broker: BrokerProcess, tmp_path: Path) -> None:
    with (
        helen_process(tmp_path, broker, "h3") as helen,
        Client(broker.endpoints["frontend"], timeout=PATIENCE_SECONDS) as client,
    ):
        with helen.accepted("three") as agent:
            about = {"state": "ok", "spool": "s", "n": 1, "labels": {"role": "web"}, "checks": ["load"]}
            agent.send_blob(b"report 1 equus.agent", about)
            agent.expect("ack")
            began = time.monotonic()
            assert helen.end() == 0
            assert time.monotonic() - began < 5.0
            agent.read_to_end()
        helen.start()
        rows = client.call("helen.h3.agents", all=True)["items"]
        assert [(row["agent"], row["labels"]) for row in rows] == [("three", {"role": "web"})]


def test_helen_that_lost_her_identity_ends_and_says_so(broker: BrokerProcess, tmp_path: Path) -> None:
    with helen_process(tmp_path / "one", broker, "twin") as first:
        until(lambda: "connected to the network" in first.log_text())
        with helen_process(tmp_path / "two", broker, "twin"):
            assert first.process.wait(PATIENCE_SECONDS) == 1
            assert "409" in first.log_text()


def failing(helen: HelenProcess) -> str:
    with pytest.raises(AssertionError, match="not ready"):
        helen.start()
    assert helen.process.wait(PATIENCE_SECONDS) != 0
    return helen.log_text()


def test_wrong_files_and_a_taken_port_are_logged(broker: BrokerProcess, tmp_path: Path) -> None:
    helen = HelenProcess(tmp_path, broker, "h4")
    good = helen.config["client_ca"]
    helen.config["client_ca"] = str(tmp_path / "nothing.pem")
    assert "nothing.pem" in failing(helen)
    helen.config["client_ca"] = good
    with socket.create_server(("127.0.0.1", 0)) as taken:
        helen.config["helen_port"] = taken.getsockname()[1]
        assert "Choose another port" in failing(helen)

"""Helen on the network: schedules, notifications through the queue, other Helens, and a broker that restarts."""

from __future__ import annotations

import contextlib
import json
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
from tests.fakes.broker_process import BrokerProcess, broker_process
from tests.fakes.waiting import PATIENCE_SECONDS, until
from tests.processes.helen.helen_process import Agent, HelenProcess, helen_process

pytestmark = pytest.mark.processes

CHECK = {"name": "disk", "interval": 60, "max_attempts": 1, "args": {"path": "/"}}


def configure(broker: BrokerProcess, **sections: Any) -> None:
    """Change the network's document."""
    token = (Path(broker.config["data_dir"]) / "token").read_text()
    with Client(broker.endpoints["frontend"], timeout=PATIENCE_SECONDS) as client:
        found = client.manage("get_config", auth_token=token)
        document = {**found["config"], **sections}
        client.manage("set_config", config=document, base=found["version"], auth_token=token)


def report(agent: Agent, number: int, state: str, name: str = "disk") -> None:
    """A report, and its acknowledgement."""
    body = {"state": state, "message": f"it is {state}", "spool": f"s-{time.time_ns()}", "n": number, "age": 0}
    agent.say_blob(b"report %d %b" % (number, name.encode()), body)
    while (line := agent.line()) != b"ack %d" % number:
        assert line, "the connection ended"


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
def plain(broker: BrokerProcess) -> Iterator[None]:
    """Whatever a test configures is gone after it."""
    yield
    configure(broker, checks=[], handlers=[], silences=[], downtimes=[])


# Promise: AGENT-11
def test_schedule_is_pushed_when_the_configuration_changes(
    broker: BrokerProcess, helen: HelenProcess, client: Client, plain: None
) -> None:
    with helen.accepted("sched") as agent:
        assert agent.schedule()["checks"] == []
        configure(broker, checks=[CHECK])
        [entry] = agent.schedule()["checks"]
        assert (entry["name"], entry["args"], entry["interval"]) == ("disk", {"path": "/"}, 60)
        report(agent, 1, "ok")
        assert [row["check"] for row in client.call("helen.checks", agent="sched")["items"]] == ["disk"]


# Promise: CHECK-12
def test_problem_goes_out_by_webhook_and_is_tried_again(
    broker: BrokerProcess, helen: HelenProcess, client: Client, plain: None
) -> None:
    with webhook() as (url, got), helen.accepted("hooked") as agent:
        agent.schedule()
        handler = {"name": "hook", "type": "webhook", "url": url, "backoff": 0.05}
        configure(broker, checks=[{**CHECK, "handlers": ["hook"]}], handlers=[handler])
        agent.schedule()
        report(agent, 1, "critical")
        until(lambda: len(got) == 2)
        assert got[0] == got[1]
        assert (got[1]["agent"], got[1]["check"], got[1]["state"]) == ("hooked", "disk", "critical")
        incidents = client.call("helen.incidents", open=True)["items"]
        assert [(row["agent"], row["check"]) for row in incidents] == [("hooked", "disk")]
        report(agent, 2, "ok")
        until(lambda: len(got) == 3)
        assert got[2]["state"] == "ok"


# Promise: CHECK-15
def test_problem_starts_a_task_and_the_check_runs_again_after_it(
    broker: BrokerProcess, helen: HelenProcess, client: Client, plain: None
) -> None:
    healed: list[Any] = []
    worker = Worker(broker.endpoints["backend"])
    worker.add("heal", healed.append)
    with worker, helen.accepted("sick") as agent:
        agent.schedule()
        handler = {"name": "doctor", "type": "task", "method": "heal"}
        configure(broker, checks=[{**CHECK, "handlers": ["doctor"]}], handlers=[handler])
        agent.schedule()
        report(agent, 1, "critical")
        word, name, number, size = agent.line().split(b" ")
        assert (word, name) == (b"check", b"disk")
        assert json.loads(agent.blob(int(size))) == {"path": "/"}
        assert [one["agent"] for one in healed] == ["sick"]
        agent.say_blob(b"result %b disk" % number, {"state": "ok", "message": "healed"})
        until(lambda: client.call("helen.checks", agent="sick")["items"][0]["state"] == "ok")


# Promise: AGENT-5
@pytest.mark.slow
def test_question_for_an_agent_of_another_helen_reaches_it(
    broker: BrokerProcess, helen: HelenProcess, client: Client, tmp_path: Path
) -> None:
    with helen_process(tmp_path, broker, "h2", ca=helen) as other:
        until(lambda: client.call("helen.h1.status")["siblings"] == ["h2"], seconds=PATIENCE_SECONDS + 10)
        with other.accepted("theirs") as agent, ThreadPoolExecutor(1) as threads:
            agent.schedule()
            with pytest.raises(CallError, match="404"):
                client.call("helen.h1.check", agent="theirs", check="load", args={})
            # By the common name either of them may be asked, and each finds it.
            until(lambda: client.call("helen.h2.status")["siblings"] == ["h1"], seconds=PATIENCE_SECONDS + 10)
            for _ in range(4):
                asked = threads.submit(client.call, "helen.check", agent="theirs", check="load", args={})
                _, _, number, size = agent.line().split(b" ")
                agent.blob(int(size))
                agent.say_blob(b"result %b load" % number, {"state": "ok"})
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
            with small.agent("second") as agent:
                agent.say(b"hello 2 trial\n")
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
        until(lambda: "the connection to the network was lost" in helen.said())
        with helen.accepted("steady") as agent:
            agent.schedule()
            report(agent, 1, "ok", "load")
            broker.restart()
            until(lambda: helen.said().count("connected to the network") == 2)
            assert client.call("helen.h1.status")["agents"] == 1


# Promise: AGENT-5
@pytest.mark.slow
def test_many_checks_at_once_are_all_answered(helen: HelenProcess, client: Client) -> None:
    with helen.accepted("busy") as agent:
        agent.schedule()

        def serve() -> None:
            for _ in range(2_000):
                _, name, number, size = agent.line().split(b" ")
                args = agent.blob(int(size))
                agent.say_blob(b"result %b %b" % (number, name), {"state": "ok", "message": args.decode()})

        thread = threading.Thread(target=serve)
        thread.start()
        bodies = [json.dumps({"agent": "busy", "check": "c", "args": {"n": n}}).encode() for n in range(2_000)]
        answers = client.map("helen.check", bodies, in_flight=500, raw=True)
        found = [json.loads(json.loads(body[0])["message"])["n"] for body in answers]
        thread.join(PATIENCE_SECONDS)
        assert found == list(range(2_000))

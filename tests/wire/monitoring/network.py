"""A broker, a Helen and a client of the network, with fake agents."""

from __future__ import annotations

import itertools
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import scale0
from tests.fakes.broker_process import BrokerProcess
from tests.fakes.fake_agent import FakeAgent
from tests.fakes.helen_process import HelenProcess
from tests.fakes.processes import environment, scale0_command
from tests.fakes.waiting import until

OK: dict[str, Any] = {"state": "ok", "message": "fine", "metrics": [{"name": "n", "value": 1}]}
MIB = 1_048_576
_numbers = itertools.count(1)


def unique(word: str) -> str:
    """A name that no other test of this run uses."""
    return f"{word}-{next(_numbers)}"


def run(*words: str) -> str:
    """One command of ours to its end; what it printed."""
    command = scale0_command(*words)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment(), check=False)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


class Network:
    """A client, and the Helen whose services it calls."""

    def __init__(self, broker: BrokerProcess, helen: HelenProcess) -> None:
        self.broker, self.helen = broker, helen
        self.client = scale0.Client(broker.endpoints["frontend"], timeout=20)

    def ask(self, service: str, *, timeout: float | None = None, **body: Any) -> Any:
        """One request with a JSON body, and the JSON of its reply."""
        return read(self.client.request(service, json.dumps(body).encode(), timeout=timeout))

    def refused(self, service: str, **body: Any) -> int:
        """The code with which a request is refused."""
        with pytest.raises(scale0.CallError) as refused:
            self.ask(service, **body)
        return refused.value.code

    def start(self, service: str, *, timeout: float | None = None, **body: Any) -> Any:
        """A request whose reply `answer` reads later."""
        return self.client.start_request(service, json.dumps(body).encode(), timeout=timeout)

    def check(self, agent: FakeAgent, check: str = "c", args: Any = None, **options: Any) -> Any:
        """Start a check on an agent."""
        body = {"agent": agent.name, "check": check, "args": {} if args is None else args}
        return self.start("helen.check", **body, **options)

    def check_answers(self, agent: FakeAgent, service: str = "helen.check") -> None:
        """A check reaches the agent, and its result comes back."""
        asked = self.start(service, agent=agent.name, check="c", args={})
        agent.answer_next(OK)
        assert answer(asked) == OK

    def manage(self, command: str, **arguments: Any) -> Any:
        token = (Path(self.broker.config["data_dir"]) / "token").read_text()
        return self.client.manage(command, auth_token=token, **arguments)

    def watched(self, agent: FakeAgent, check: str) -> dict[str, Any]:
        """Helen's view of a check."""
        [row] = [row for row in self.ask("helen.checks", agent=agent.name)["items"] if row["check"] == check]
        return dict(row)

    def connected(self, service: str = "helen.agents") -> list[dict[str, Any]]:
        """All agents that are connected now, page by page."""
        page = self.ask(service)
        rows = list(page["items"])
        while page["next"]:
            page = self.ask(service, after=page["next"])
            rows += page["items"]
        return [row for row in rows if row["state"] == "connected"]

    def knows(self, *names: str) -> bool:
        """True if all of these are connected."""
        return set(names) <= {row["agent"] for row in self.connected()}

    def join(self, name: str, version: int = 1) -> FakeAgent:
        """An agent that has sent hello and was accepted."""
        agent = self.helen.agent(name, version)
        if version == 1:
            until(lambda: self.knows(name))
        else:
            agent.expect_accepted()
        return agent


def read(frames: list[bytes]) -> Any:
    """The JSON of a reply, which is one frame."""
    assert len(frames) == 1, frames
    return json.loads(frames[0])


def answer(pending: Any) -> Any:
    return read(pending.result())


def error_code(pending: Any) -> int:
    """Of a request that fails."""
    with pytest.raises(scale0.CallError) as refused:
        pending.result()
    return refused.value.code

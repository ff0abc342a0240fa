"""A broker and a Helen as processes, with network clients and raw agents."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import scale0
from tests.fakes.broker_process import BrokerProcess
from tests.fakes.journals import journal_events
from tests.fakes.waiting import until
from tests.wire.monitoring.authority import Authority, Papers, authority_from
from tests.wire.monitoring.processes import Process, run
from tests.wire.monitoring.raw_agent import RawAgent

_numbers = itertools.count(1)


def unique(word: str) -> str:
    """A name that no other test of this run uses."""
    return f"{word}-{next(_numbers)}"


class Helen:
    """One Helen: her process, her folder, her port."""

    def __init__(self, folder: Path, broker: BrokerProcess, identity: str, **config: Any) -> None:
        run("helen", "init", str(folder), "--identity", identity, "--name", "127.0.0.1", "--port", "0")
        self.folder, self.identity = folder, identity
        self.authority = authority_from(folder / "raw", folder / "ca.pem", folder / "ca-key.pem")
        settings = {
            "identity": identity,
            "broker": broker.endpoints["backend"],
            "bind": "127.0.0.1",
            "helen_port": 0,
            "certificate": str(folder / "helen.pem"),
            "private_key": str(folder / "helen-key.pem"),
            "client_ca": str(folder / "ca.pem"),
            "data_dir": str(folder),
            "segments": "off",
            **config,
        }
        self.process = Process("helen", folder, settings)
        self.port = 0
        self._open: list[RawAgent] = []
        self.restart()

    def restart(self) -> None:
        """Start her; her port is another each time."""
        ready = self.process.start().split()
        self.port = int(next(word[5:] for word in ready if word.startswith("port=")))

    def connect(self, papers: Papers | None) -> RawAgent:
        """A TLS connection with this certificate, or with none."""
        agent = RawAgent(self.port, self.folder / "ca.pem", papers)
        self._open.append(agent)
        return agent

    def agent(self, name: str, version: int | None = 1) -> RawAgent:
        """A connection of the agent `name` that has said hello in `version`, or nothing."""
        agent = self.connect(self.authority.agent(name))
        if version is not None:
            agent.hello(version)
        return agent

    def let_go(self) -> None:
        """Close what a test left open."""
        while self._open:
            self._open.pop().close()

    def events(self, kind: str, identity: str) -> list[Any]:
        """What her journal has of this kind about this agent."""
        return [one for one in journal_events(self.folder) if one["kind"] == kind and one["identity"] == identity]


class Network:
    """Who asks, and whom."""

    def __init__(self, broker: BrokerProcess, helen: Helen) -> None:
        self.broker, self.helen = broker, helen
        self.client = scale0.Client(broker.endpoints["frontend"], timeout=20)

    @property
    def authority(self) -> Authority:
        return self.helen.authority

    def ask(self, service: str, *, timeout: float | None = None, **body: Any) -> Any:
        """One request with a JSON body, and the JSON of its reply."""
        return read(self.client.request(service, json.dumps(body).encode(), timeout=timeout))

    def start(self, service: str, *, timeout: float | None = None, **body: Any) -> Any:
        """The same, and do not wait: `answer` gives the JSON."""
        return self.client.start_request(service, json.dumps(body).encode(), timeout=timeout)

    def check(self, agent: str, check: str = "c", args: Any = None, **options: Any) -> Any:
        """Start a check on an agent."""
        return self.start("helen.check", agent=agent, check=check, args={} if args is None else args, **options)

    def manage(self, command: str, **arguments: Any) -> Any:
        token = (Path(self.broker.config["data_dir"]) / "token").read_text()
        return self.client.manage(command, auth_token=token, **arguments)

    def watched(self, agent: str) -> list[dict[str, Any]]:
        """What Helen says of the checks of an agent."""
        return list(self.ask("helen.checks", agent=agent)["items"])

    def connected(self, service: str = "helen.agents") -> list[dict[str, Any]]:
        """Everybody who is connected now, page by page."""
        page = self.ask(service)
        rows = list(page["items"])
        while page["next"]:
            page = self.ask(service, after=page["next"])
            rows += page["items"]
        return [row for row in rows if row["state"] == "connected"]

    def knows(self, *names: str) -> bool:
        """True if all of these are connected."""
        return set(names) <= {row["agent"] for row in self.connected()}

    def join(self, name: str, version: int = 1) -> RawAgent:
        """An agent that has said hello, and whom Helen has taken in."""
        agent = self.helen.agent(name, version)
        if version == 1:
            until(lambda: self.knows(name))
        else:
            agent.hear("accepted")
            agent.hear("schedule")
        return agent


def read(frames: list[bytes]) -> Any:
    """The JSON of a reply, which is one frame."""
    assert len(frames) == 1, frames
    return json.loads(frames[0])


def answer(pending: Any) -> Any:
    return read(pending.result())

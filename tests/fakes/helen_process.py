"""A real Helen for tests, with an authority of her own, and fake agents that connect to her.

with helen_process(folder, broker) as helen:
    with helen.agent("web-1", 2) as agent:
        agent.expect("accepted")
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scale0.monitoring.pki.authority import CertificateAuthority, create_authority
from tests.fakes.broker_process import BrokerProcess
from tests.fakes.certificates import Authority, CertificateFiles
from tests.fakes.fake_agent import FakeAgent
from tests.fakes.journals import journal_events
from tests.fakes.ports import free_port
from tests.fakes.processes import ServerProcess, scale0_command


class HelenProcess(ServerProcess):
    """One `scale0 helen`, her files in `folder`."""

    def __init__(
        self, folder: Path, broker: BrokerProcess, identity: str = "h1", ca: HelenProcess | None = None, **config: Any
    ) -> None:
        # Helens that share agents share an authority: only the store is her own.
        self.authority: CertificateAuthority = (
            ca.authority if ca else create_authority(folder, ["localhost", "127.0.0.1"], time.time())
        )
        self.file = folder / "helen.json"
        super().__init__(folder / "helen.log", scale0_command("helen", "--config", str(self.file)))
        self.folder = folder
        self.identity = identity
        self.files: Path = folder if ca is None else ca.files
        self.signer = Authority.load(self.files / "agents", self.files / "ca.pem", self.files / "ca-key.pem")
        """Signs certificates of agents in the authority's name."""
        self.config: dict[str, Any] = {
            "identity": identity,
            "broker": broker.endpoints["backend"].removeprefix("tcp://"),
            "helen_port": free_port(),
            "certificate": str(self.files / "helen.pem"),
            "private_key": str(self.files / "helen-key.pem"),
            "client_ca": str(self.files / "agents-ca.pem"),
            "data_dir": str(folder),
            "segments": "off",
            **config,
        }
        self.port = 0
        self._agents: list[FakeAgent] = []

    def start(self) -> str:
        """Start her; her port is kept for the next start."""
        self.file.write_text(json.dumps(self.config))
        line = super().start()
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        self.port = self.config["helen_port"] = int(words["port"])
        return line

    def certificate(self, name: str) -> CertificateFiles:
        """An agent's certificate."""
        return self.signer.agent(name)

    def connect(self, files: CertificateFiles | None, name: str = "") -> FakeAgent:
        """A TLS connection with this certificate, or with none."""
        agent = FakeAgent(self.port, self.files / "ca.pem", files, name)
        self._agents.append(agent)
        return agent

    def agent(self, name: str, version: int | None = None) -> FakeAgent:
        """A connection of the agent `name` that has sent hello in `version`, or nothing."""
        agent = self.connect(self.certificate(name), name)
        if version is not None:
            agent.hello(version)
        return agent

    def accepted(self, name: str) -> FakeAgent:
        """An agent of version 2 that was accepted, and has its schedule."""
        agent = self.agent(name, 2)
        agent.expect_accepted()
        return agent

    def close_agents(self) -> None:
        """Those that a test left open."""
        while self._agents:
            self._agents.pop().close()

    def events(self, kind: str, identity: str) -> list[Any]:
        """The events of this kind about this agent in her journal."""
        return [one for one in journal_events(self.folder) if one["kind"] == kind and one["identity"] == identity]


@contextlib.contextmanager
def helen_process(
    folder: Path, broker: BrokerProcess, identity: str = "h1", ca: HelenProcess | None = None, **config: Any
) -> Iterator[HelenProcess]:
    """A running Helen; ended when the block ends."""
    helen = HelenProcess(folder, broker, identity, ca, **config)
    try:
        helen.start()
        yield helen
        helen.assert_no_traceback()
    finally:
        helen.close_agents()
        helen.close()

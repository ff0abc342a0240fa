"""The real `scale0 agent` as a process: stage0, and the agent below it."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.certificates import Authority
from tests.fakes.processes import ServerProcess, scale0_command
from tests.fakes.waiting import until


class AgentProcess(ServerProcess):
    """`scale0 agent --config FILE`, which knows the Helens at these ports of loopback."""

    def __init__(self, folder: Path, authority: Authority, *ports: int, **config: Any) -> None:
        self.file = folder / "agent.json"
        super().__init__(folder / "agent.log", scale0_command("agent", "--config", str(self.file)))
        self.data_dir, self.checks_dir = folder / "data", folder / "checks"
        self.checks_dir.mkdir(exist_ok=True)
        self.certificate = authority.agent("web-1", days=config.pop("days", 300))
        self.config: dict[str, Any] = {
            "helen": [f"127.0.0.1:{port}" for port in ports],
            "certificate": str(self.certificate.certificate),
            "private_key": str(self.certificate.key),
            "server_ca": str(authority.ca),
            "checks_dir": str(self.checks_dir),
            "data_dir": str(self.data_dir),
            **config,
        }
        self._read_to = 0

    def start(self) -> str:
        self.file.write_text(json.dumps(self.config))
        return super().start()

    def fail_to_start(self) -> str:
        """Its log, after it refused its file."""
        with pytest.raises(AssertionError, match="not ready"):
            self.start()
        assert self.wait() == 2
        return self.log_text()

    def wait_log(self, text: str) -> None:
        """Until its log has this, behind what the last call found."""

        def find() -> bool:
            at = self.log_text().find(text, self._read_to)
            self._read_to = self._read_to if at < 0 else at + len(text)
            return at >= 0

        until(find, f"{text!r} in the log")

    @property
    def child(self) -> int:
        """The agent below stage0; 0: there is none just now."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return int(children[0]) if children else 0

    def __enter__(self) -> AgentProcess:
        if not self.running:
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.running:
            self.end(signal.SIGTERM)
        self.close()

"""A real broker for tests.

with broker_process(tmp_path, mdp_heartbeat_interval=0.2) as broker:
    socket.connect(broker.endpoints["frontend"])
    broker.kill9()
    broker.restart()
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.fakes.ports import free_port
from tests.fakes.processes import ServerProcess, scale0_command

PORTS: Final = ("frontend", "backend", "peer", "config_pub", "task_pub")
ANY_PORTS: Final = [f"--{name.replace('_', '-')}-port=0" for name in PORTS]
"""Options of `scale0 broker`: the system chooses every port."""


class BrokerProcess(ServerProcess):
    """One `scale0 broker`, its files in `folder`."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.file = folder / "broker.json"
        super().__init__(folder / "broker.log", scale0_command("broker", "--config", str(self.file)))
        self.config: dict[str, Any] = {
            "identity": "broker-1",
            "state": "active",
            "curve": False,  # tests of keys turn them on
            "data_dir": str(folder / "data"),
            "segments": "off",  # tests read the journal; those of segments turn them on
            **{f"{name}_port": free_port() for name in PORTS},
            **config,
        }
        self.endpoints: dict[str, str] = {}
        """By name: frontend, backend, peer, config_pub, task_pub."""

    @property
    def data_dir(self) -> Path:
        return Path(self.config["data_dir"])

    @property
    def token(self) -> str:
        """What authorises management on the broker's own machine."""
        return (self.data_dir / "token").read_text()

    def address(self, name: str = "frontend") -> str:
        """HOST:PORT of an endpoint, as `--join` takes it."""
        return self.endpoints[name].removeprefix("tcp://")

    def start(self) -> str:
        """Start it; its ports are kept for the next start."""
        self.file.write_text(json.dumps(self.config))
        line = super().start()
        self.endpoints = dict(word.split("=", 1) for word in line.split() if "=" in word)
        for name, endpoint in self.endpoints.items():
            self.config[f"{name}_port"] = int(endpoint.rpartition(":")[2])
        return line

    def terminate(self) -> int:
        """Ask it to stop in order; the exit status."""
        return self.end()


@contextlib.contextmanager
def broker_process(folder: Path, **config: Any) -> Iterator[BrokerProcess]:
    """A running broker whose file holds `config` besides free ports; ended when the block ends."""
    broker = BrokerProcess(folder, config)
    try:
        broker.start()
        yield broker
    finally:
        broker.close()

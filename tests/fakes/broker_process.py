"""A real broker process for tests: started from a file, killed, restarted, and always ended.

Lives here: one process of ours and where it listens. Never here: what is said to it. Invariant: whatever a test does,
the process that it started is gone at the end, and no other.

    with broker_process(tmp_path, mdp_heartbeat_interval=0.2) as broker:
        socket.connect(broker.endpoints["frontend"])
        broker.kill9()
        broker.restart()
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.fakes.ports import free_port

READY_SECONDS: Final = 30.0
"""How long a start may take on a busy machine."""
STOP_SECONDS: Final = 15.0
"""How long an orderly stop may take before it is a failure."""
PORTS: Final = ("frontend", "backend", "peer", "config_pub", "task_pub")


class BrokerProcess:
    """One `scale0 broker`, its files in `folder`."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.config: dict[str, Any] = {
            "identity": "broker-1",
            "state": "active",
            "data_dir": str(folder / "data"),
            "segments": "off",  # tests look into the journal; those of segments say otherwise
            **{f"{name}_port": free_port() for name in PORTS},
            **config,
        }
        self.file = folder / "broker.json"
        self.log = folder / "broker.log"
        self.endpoints: dict[str, str] = {}
        """By name: frontend, backend, peer, config_pub, task_pub."""
        self.prefix: list[str] = []
        """What comes before the command, such as `ip netns exec NAME`."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the process that runs now, or ran last."""
        if self._process is None:
            raise AssertionError("the broker was never started")
        return self._process.pid

    @property
    def running(self) -> bool:
        """True while the process lives."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it, and wait until it serves; where it listens is then kept in its file."""
        if self.running:
            raise AssertionError("the broker is running already")
        self.file.write_text(json.dumps(self.config))
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self.prefix, sys.executable, "-m", "scale0", "broker", "--config", str(self.file)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        words = self._first_line("ready").split()
        self.endpoints = dict(word.split("=", 1) for word in words if "=" in word)
        for name, place in self.endpoints.items():
            self.config[f"{name}_port"] = int(place.rpartition(":")[2])

    def kill9(self) -> None:
        """End it as a power cut would."""
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        """Ask it to stop in order; the exit status."""
        return self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Stop it if it runs, and start it with the same data and the same ports."""
        if self.running:
            self.terminate()
        self.start()

    def close(self) -> None:
        """End it, whatever happened; nothing is left behind."""
        if self.running:
            self.kill9()
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()

    def _end(self, number: signal.Signals) -> int:
        process = self._process
        if process is None:
            raise AssertionError("the broker was never started")
        process.send_signal(number)
        try:
            status = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_SECONDS)
            raise AssertionError(f"the broker did not stop within {STOP_SECONDS:g} s\n{self._tail()}") from None
        if process.stdout is not None:
            process.stdout.close()
        return status

    def _first_line(self, start: str) -> str:
        """The first line of its output that begins with `start`."""
        if self._process is None or self._process.stdout is None:
            raise AssertionError("the broker was never started")
        descriptor = self._process.stdout.fileno()
        until = time.monotonic() + READY_SECONDS
        said = b""
        while (left := until - time.monotonic()) > 0:
            if not select.select([descriptor], [], [], left)[0]:
                break
            more = os.read(descriptor, 65_536)
            if not more:
                break
            said += more
            for line in said.decode(errors="replace").splitlines(keepends=True):
                if line.startswith(start) and line.endswith("\n"):
                    return line
        self.close()
        raise AssertionError(f"the broker did not say {start!r}; it said {said!r}\n{self._tail()}")

    def _tail(self) -> str:
        return self.log.read_text(errors="replace")[-4_000:]


@contextlib.contextmanager
def broker_process(tmp_path: Path, **config: Any) -> Iterator[BrokerProcess]:
    """A running broker whose file holds `config` besides free ports; ended when the block ends."""
    broker = BrokerProcess(tmp_path, config)
    try:
        broker.start()
        yield broker
    finally:
        broker.close()

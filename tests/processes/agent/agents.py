"""The real `scale0 agent`, as a process."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.fakes.waiting import PATIENCE_SECONDS
from tests.processes.agent.credentials import Credentials


class AgentProcess:
    """`scale0 agent --config FILE`: stage0, and the agent below it."""

    def __init__(self, folder: Path, credentials: Credentials, ports: list[int], **more: Any) -> None:
        name = more.pop("name", "web-1")
        certificate, key = credentials.issue(name)
        environment = {**os.environ, **more.pop("environment", {})}
        config = {
            "helen": [f"127.0.0.1:{port}" for port in ports],
            "certificate": str(certificate),
            "private_key": str(key),
            "server_ca": str(credentials.ca),
            "data_dir": str(folder / "agent"),
            "checks_dir": str(folder / "checks"),
            **more,
        }
        (folder / "checks").mkdir(exist_ok=True)
        file = folder / f"{name}.json"
        file.write_text(json.dumps(config))
        self.folder = Path(config["data_dir"])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "scale0", "agent", "--config", str(file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.log: list[str] = []
        self._heard: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            self._heard.put(line)

    def wait_ready(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("ready"), "".join(self.log)
        return line

    def wait_log(self, text: str) -> str:
        """The next line that has this in it."""
        until = time.monotonic() + PATIENCE_SECONDS
        while (left := until - time.monotonic()) > 0:
            try:
                line = self._heard.get(timeout=left)
            except queue.Empty:
                break
            if text in line:
                return line
        raise AssertionError(f"nobody said {text!r}:\n" + "".join(self.log))

    @property
    def child(self) -> int:
        """The agent below stage0; 0: there is none just now."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[0]) if children else 0

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self._reader.join(5)
            assert self.process.stdout is not None
            assert self.process.stderr is not None
            self.process.stdout.close()
            self.process.stderr.close()
        return status

    def __enter__(self) -> AgentProcess:
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

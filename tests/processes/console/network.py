"""A network for the tests of the console: `scale0 up`, and workers that can be killed."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import psutil

import scale0
from tests.fakes.processes import Background
from tests.fakes.shell import Shell

API: Final = "/api/v1"
BROKER: Final = "broker-1"
LINK: Final = re.compile(r"http://127\.0\.0\.1:[0-9]+/#/login\?once=\S+(?=\s)")
PLACE: Final = re.compile(r"^ +(?:clients|workers) \((?:frontends|backends)\) +tcp://(\S+)$", re.MULTILINE)
WORKERS: Final = str(Path(__file__).with_name("workers.py"))
STOP_SECONDS: Final = 20.0


class Network:
    """One `scale0 up`, its files in `folder`."""

    def __init__(self, folder: Path, up: Background) -> None:
        self.folder = folder
        self.up = up
        output = up.wait_until(lambda: LINK.search(up.output) is not None)
        found = LINK.search(output)
        assert found is not None
        self.link = found[0]
        """The one-time link that it printed."""
        self.url = self.link.partition("/#/")[0]
        self.frontend, self.backend = PLACE.findall(output)
        self.shell = Shell(
            folder, SCALE0_JOIN=self.frontend, SCALE0_JOIN_BACKEND=self.backend, SCALE0_DATA_DIR=str(self.data_dir)
        )
        self._client = scale0.Client(f"tcp://{self.frontend}", timeout=20)
        self._http = httpx.Client(base_url=self.url + API, timeout=30, trust_env=False)

    @property
    def data_dir(self) -> Path:
        return self.folder / ".scale0"

    def wait_for_helen(self) -> None:
        self.up.wait_for("Helen monitors this machine")

    def ask(self, method: str, path: str, body: Any = None, token: str = "") -> Any:
        """The API, as the broker's own machine or with a token."""
        output = token or (self.data_dir / "token").read_text().strip()
        answer = self._http.request(method, path, json=body, headers={"Authorization": f"Bearer {output}"})
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def token(self, role: str, name: str = "") -> str:
        made: str = self.ask("POST", "/tokens", {"name": name or f"the-{role}", "role": role, "ttl": 3600})["token"]
        return made

    def submit(self, method: str, *arguments: str) -> str:
        return self._client.submit(method, *arguments).id

    def task(self, task_id: str) -> Any:
        return self.ask("GET", f"/tasks/{task_id}")

    @contextlib.contextmanager
    def worker(self, name: str) -> Iterator[Background]:
        """A worker of this name; at the end it says goodbye, so that nobody's next task goes to a dead one."""
        self.shell.environment["TEST_WORKER"] = name
        with self.shell.background("worker", WORKERS) as running:
            running.wait_for("ready ")
            yield running
            if running.process.poll() is None:
                running.signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    running.wait(STOP_SECONDS)

    def server_process(self) -> psutil.Process:
        found = self.server_process_or_none()
        assert found is not None, "there is no management server"
        return found

    def server_process_or_none(self) -> psutil.Process | None:
        """None: it is between two lives."""
        for child in psutil.Process(self.up.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "scale0.http" in child.cmdline():
                    return child
        return None

    def cli(self, *words: str) -> Any:
        return self.shell.json(*words)

    def close(self) -> None:
        self._http.close()
        self._client.close()
        if self.up.process.poll() is None:
            self.up.signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.up.wait(STOP_SECONDS)


@contextlib.contextmanager
def network(folder: Path, *flags: str) -> Iterator[Network]:
    """A running network; its processes must not log an exception, and are gone at the end."""
    with Shell(folder).background("up", "--identity", BROKER, *flags) as up:
        children: list[psutil.Process] = []
        try:
            running = Network(folder, up)
            try:
                yield running
            finally:
                children = psutil.Process(up.process.pid).children(recursive=True)
                running.close()
            assert "Traceback" not in up.output, up.output[-4_000:]
        finally:
            for child in children:
                with contextlib.suppress(psutil.Error):
                    child.kill()

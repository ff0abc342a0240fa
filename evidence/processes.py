"""Processes of the product, started by its command line from a source folder; ended when the campaign ends."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import psutil

REPOSITORY: Final = Path(__file__).resolve().parents[1]
READY_SECONDS: Final = 40.0
STOP_SECONDS: Final = 15.0
PORTS: Final = ("frontend", "backend", "peer", "config_pub", "task_pub")
FIRST_PORT, LAST_PORT = 20_000, 32_000
"""Below the ephemeral ports: a broker that is down must find its ports free again."""
BAD_LOG_LINES: Final = ("Traceback (most recent call last)", "internal error")


class DidNotStart(Exception):
    """A process ended or was silent before it was ready."""


_given: Final[set[int]] = set()


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses now, and that this process has given to nothing else."""
    dice = random.SystemRandom()
    found: list[int] = []
    while len(found) < count:
        port = dice.randrange(FIRST_PORT, LAST_PORT)
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(("127.0.0.1", port))
            if port not in _given:
                _given.add(port)
                found.append(port)
    return found


class Program:
    """One command of the product that prints a line beginning with `ready`; its log has its name."""

    def __init__(self, source: Path, folder: Path, name: str, words: Sequence[str], **variables: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.log = folder / f"{name}.log"
        self.words = list(words)
        self.prefix: list[str] = []
        """What comes before the command, such as strace."""
        home = {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "config"), "PYTHONDONTWRITEBYTECODE": "1"}
        own = {name: value for name, value in os.environ.items() if not name.startswith("SCALE0_")}
        path = os.pathsep.join((str(source), str(REPOSITORY)))
        self.environment = {**own, **home, "PYTHONPATH": path, **variables}
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def status(self) -> int | None:
        return None if self.process is None else self.process.poll()

    def launch(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, sys.executable, "-m", "scale0", *self.words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self.environment,
                cwd=self.log.parent,
                start_new_session=True,
            )

    def ready(self) -> str:
        """Wait for the line; returns it."""
        assert self.process is not None
        assert self.process.stdout is not None
        descriptor, printed = self.process.stdout.fileno(), b""
        end = time.monotonic() + READY_SECONDS
        while (left := end - time.monotonic()) > 0 and select.select([descriptor], [], [], left)[0]:
            more = os.read(descriptor, 65_536)
            if not more:
                break
            printed += more
            for line in printed.decode(errors="replace").splitlines(keepends=True):
                if line.startswith("ready") and line.endswith("\n"):
                    return line
        raise DidNotStart(f"{self.name} did not start: {self.tail()}")

    def start(self) -> str:
        self.launch()
        return self.ready()

    def send_signal(self, number: signal.Signals) -> None:
        if self.running:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL to it and to what it started, and wait."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(STOP_SECONDS)
        self._close_pipe()

    def stop(self) -> int | None:
        """SIGTERM; the exit status, or None if it had to be killed."""
        if self.process is None:
            return None
        self.send_signal(signal.SIGCONT)
        self.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return None
        self.kill()  # what it started
        return status

    def wait(self, seconds: float) -> int | None:
        """Its exit status, if it ends by itself in time."""
        assert self.process is not None
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def memory_bytes(self) -> int:
        try:
            return int(psutil.Process(self.pid).memory_info().rss)
        except psutil.Error:
            return 0

    def bad_lines(self) -> list[str]:
        """Lines of the log that a server must never write."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return [line[:200] for line in text.splitlines() if any(bad in line for bad in BAD_LOG_LINES)]

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-600:] if self.log.exists() else ""

    def _close_pipe(self) -> None:
        if self.process is not None and self.process.stdout is not None:
            with contextlib.suppress(OSError):
                self.process.stdout.close()


class Broker(Program):
    """`scale0 broker` with fixed ports and a data folder; it requires keys only if `curve` is true."""

    def __init__(self, source: Path, folder: Path, name: str = "broker", **config: Any) -> None:
        self.file = folder / f"{name}.json"
        super().__init__(source, folder, name, ["broker", "--config", str(self.file)])
        self.data_dir = folder / name
        ports = dict(zip((f"{port}_port" for port in PORTS), free_ports(len(PORTS)), strict=True))
        common = {"identity": name, "data_dir": str(self.data_dir), "segments": "off"}
        self.config = {**common, "insecure": not config.get("curve"), **ports, **config}
        self.endpoints = {port: f"tcp://127.0.0.1:{self.config[f'{port}_port']}" for port in PORTS}
        self.file.write_text(json.dumps(self.config))
        self.file.chmod(0o600)

    @property
    def token(self) -> str:
        """Of the administrator on this machine; new with every start."""
        return (self.data_dir / "token").read_text()

    def store_key(self, role: str, name: str, public: bytes, allow: str = "") -> None:
        """Accept a key, as an administrator with an editor would."""
        folder = self.data_dir / "keys" / f"{role}s"
        rules = f'    allow = "{allow}"\n' if allow else ""
        partial = folder / f"{name}.partial"
        partial.write_text(f'metadata\n    name = "{name}"\n{rules}curve\n    public-key = "{public.decode()}"\n')
        partial.chmod(0o600)
        partial.rename(folder / f"{name}.key")

    def server_key(self) -> bytes:
        text = (self.data_dir / "keys" / "server" / "server.key").read_text()
        return text.partition('public-key = "')[2].partition('"')[0].encode()


def command(source: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """One command of the product that ends by itself."""
    program = Program(source, folder, "command", words)
    arguments = [sys.executable, "-m", "scale0", *words]
    return subprocess.run(
        arguments, env=program.environment, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )

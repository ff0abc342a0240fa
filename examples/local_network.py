"""A temporary network on this host: processes on free ports, files in a directory that is removed at the end.

The scripts of the folders beside this file use it, from here: `python -m self_healing.run`. It only does what you would
type: it starts `scale0 …` in the background, waits for its line `ready`, and runs other `scale0 …` to their end.

    with LocalNetwork() as net:
        net.broker("b1")
        net.start("worker", "worker", "hello.py")
        net.show("call", "hello")
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self, TypeVar

PATIENCE_SECONDS = 60.0
"""How long anything may take on a busy machine."""
PORTS = ("frontend", "backend", "peer", "config-pub", "task-pub")
T = TypeVar("T")


class LocalNetwork:
    """Processes by name. At the end of the block all of them are ended."""

    def __init__(self) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="scale0-example-")
        self.folder = Path(self._temporary.name)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        # The settings and state of your own shell are not used.
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SCALE0_")}
        self.environment = {**kept, "XDG_STATE_HOME": str(self.folder / "state")}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed(list(self._running)):  # who came last leaves first
            self.stop(name)
        self._temporary.cleanup()

    def broker(self, identity: str, *words: str) -> dict[str, str]:
        """A broker on free ports, which commands and workers use from now on; its endpoints by name."""
        if "--config" not in words:
            words = ("--config", str(self._file(f"{identity}.zpl", "state = active\nconfig_service = true\n")), *words)
        for name in PORTS:
            if f"--{name}-port" not in words:
                words = (*words, f"--{name}-port", "0")
        data_dir = self.folder / identity
        ends = self.start(identity, "broker", "--identity", identity, "--data-dir", str(data_dir), *words)
        if "SCALE0_JOIN" not in self.environment:
            self.environment["SCALE0_JOIN"] = ends["frontend"].removeprefix("tcp://")
            self.environment["SCALE0_JOIN_BACKEND"] = ends["backend"].removeprefix("tcp://")
            self.environment["SCALE0_DATA_DIR"] = str(data_dir)  # its token file: we may change the configuration
        return ends

    def monitoring(self, agent: str, settings: str = "") -> None:
        """A Helen, and an agent with these settings in addition to those of its enrolment."""
        helen = str(self.folder / "helen")
        place = ("--broker", self.environment["SCALE0_JOIN_BACKEND"], "--port", str(free_port()))
        self.run("helen", "init", helen, "--name", "127.0.0.1", "--identity", "helen-1", *place)
        self.start("helen", "helen", "--config", f"{helen}/helen.zpl")
        token = self.run("helen", "token", "--name", agent, "--data-dir", helen).strip()
        self.run("agent", "enrol", "--token", token, "--dir", str(self.folder / "agent"))
        file = self.folder / "agent" / "agent.zpl"
        file.write_text(f"{file.read_text()}\n{settings}")
        self.start("agent", "agent", "--config", str(file))

    def start(self, name: str, *words: str, cwd: Path | None = None) -> dict[str, str]:
        """`scale0 WORDS &`, until it is ready; what its line `ready` says, by name."""
        log = self.folder / f"{name}.log"
        with log.open("wb") as out:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", "scale0", *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=cwd,
                env=self.environment,
                start_new_session=True,  # Ctrl-C is for the script, which then ends its children in order
            )

        def ready() -> str:
            lines = [line for line in log.read_text(errors="replace").splitlines(True) if line.endswith("\n")]
            found = next((line for line in lines if line.startswith("ready")), "")
            if not found and self._running[name].poll() is not None:
                raise SystemExit(f"scale0 {shlex.join(words)} ended:\n{''.join(lines)}")
            return found

        return dict(word.split("=", 1) for word in wait_for(ready, f"{name} is ready").split() if "=" in word)

    def run(self, *words: str) -> str:
        """`scale0 WORDS` to its end; what it prints. Exit codes of 2 and more end the script: 1 only says "no"."""
        done = subprocess.run(
            [sys.executable, "-m", "scale0", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        if done.returncode > 1:
            raise SystemExit(f"scale0 {shlex.join(words)}:\n{done.stderr}")
        return done.stdout

    def show(self, *words: str) -> None:
        """The same, shown as it would look in a terminal."""
        print(f"\n> scale0 {shlex.join(words)}\n{self.run(*words).rstrip()}", flush=True)

    def kill(self, name: str) -> None:
        """kill -9."""
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def stop(self, name: str) -> None:
        """End the processes in order; kill them if that takes too long."""
        process = self._running.pop(name)
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
            return
        process.kill()
        process.wait()

    def _file(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path


class Story:
    """Prints lines, each with the seconds since the first one."""

    def __init__(self) -> None:
        self._began: float | None = None

    def tell(self, what: str) -> None:
        """The next line."""
        now = time.monotonic()
        self._began = self._began or now
        print(f"{now - self._began:5.1f} s  {what}", flush=True)


def wait_for(look: Callable[[], T | None], what: str) -> T:
    """Return the first true value; the script ends if there is none in time."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not (found := look()):
        if time.monotonic() > until:
            raise SystemExit(f"not within {PATIENCE_SECONDS:g} s: {what}")
        time.sleep(0.05)
    return found


def free_port() -> int:
    """A port on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

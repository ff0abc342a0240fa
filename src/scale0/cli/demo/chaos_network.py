"""The processes of `scale0 chaos`: a broker on ports of its own and workers, killed and started again.

Lives here: children. Never here: when one is killed, or what came of it. Invariants: only processes that were started
here are ended here; when `close` returns, none is left and none is started any more, whichever thread asks.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from pathlib import Path
from typing import Final, NamedTuple

from scale0.cli.broker.command import PORTS
from scale0.cli.common.child_process import ChildFailed, CommandProcess
from scale0.cli.demo.chaos_plan import BROKER, FOLDER, NAME

WORKER: Final = "scale0.cli.demo.chaos_worker:worker"
FIRST_PORT: Final = 20_000
LAST_PORT: Final = 32_000
"""Below those that systems give to connections: a broker that is down must find its ports free again."""
HOST: Final = "127.0.0.1"


class Killed(NamedTuple):
    """What was killed, and when."""

    victim: str
    identity: str
    """The name it had on the network; each start has another one."""
    wall: float


class ChaosNetwork:
    """A broker and workers by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._children: dict[str, CommandProcess] = {}
        self._lock = threading.RLock()
        self._closed = False
        self._starts = 0
        self._ports = free_ports(len(PORTS))
        self.data_dir = folder / "data"
        self.crashed: list[str] = []
        """Who ended without having been told to."""

    @property
    def frontend(self) -> str:
        """Where callers connect to."""
        return f"tcp://{HOST}:{self._ports[list(PORTS).index('frontend')]}"

    @property
    def backend(self) -> str:
        """Where workers connect to."""
        return f"tcp://{HOST}:{self._ports[list(PORTS).index('backend')]}"

    def start(self, name: str) -> CommandProcess:
        """The broker or a worker; whoever must know when it is ready asks the child."""
        with self._lock:
            if self._closed:
                raise ChildFailed("stopped")
            child = self._children[name] = self._started(name)
            return child

    def _started(self, name: str) -> CommandProcess:
        if name == BROKER:
            words = ["broker", "--identity", "chaos", "--data-dir", str(self.data_dir)]
            for port_name, port in zip(PORTS, self._ports, strict=True):
                words += [f"--{port_name.replace('_', '-')}-port", str(port)]
            return CommandProcess(name, words, self.folder, {})
        self._starts += 1
        identity = f"{name}.{self._starts}"
        words = ["worker", WORKER, "--endpoint", self.backend]
        return CommandProcess(identity, words, self.folder, {NAME: identity, FOLDER: str(self.folder)})

    def kill(self, name: str) -> Killed | None:
        """kill -9; None if it is down already."""
        with self._lock:
            child = self._children.pop(name, None)
            if child is None:
                return None
            child.kill()
            return Killed(name, child.name, time.time())

    def look(self) -> None:
        """Start again who ended by itself, and remember that it did."""
        with self._lock:
            for name, child in tuple(self._children.items()):
                code = child.process.poll()
                if code is not None:
                    self.crashed.append(f"{child.name} ended by itself with {code}")
                    self.start(name)

    def close(self, in_order: bool) -> None:
        """End everybody: the broker in order if wanted, so that all it decided is on disk; workers at once."""
        with self._lock:
            self._closed = True
            for name in sorted(self._children, key=lambda name: name == BROKER):
                child = self._children.pop(name)
                if in_order and name == BROKER:
                    child.stop()
                else:
                    child.kill()


def free_ports(count: int) -> list[int]:
    """So many ports that nobody listens at."""
    dice = random.SystemRandom()
    found: list[int] = []
    while len(found) < count:
        port = dice.randrange(FIRST_PORT, LAST_PORT)
        with socket.socket() as trial:
            if port not in found and trial.connect_ex((HOST, port)) != 0:
                found.append(port)
    return found

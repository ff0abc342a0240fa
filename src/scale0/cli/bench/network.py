"""What `scale0 bench` measures against: a broker and a worker of its own, or a worker at a broker that is there.

Lives here: processes, and the clients that go with them. Never here: a figure. Invariants: only what was started here
is ended here; when `close` returns nothing of it runs, and nothing is started any more.
"""

from __future__ import annotations

import secrets
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from scale0.cli.bench.measurements import RUN
from scale0.cli.broker.command import PORTS
from scale0.cli.common.child_process import ChildFailed, CommandProcess
from scale0.cli.common.connection import PATIENCE_SECONDS, own_identity
from scale0.cli.common.endpoints import host_of

if TYPE_CHECKING:
    from scale0.client.async_client import AsyncClient
    from scale0.client.client import Client

WORKER: Final = "scale0.cli.bench.worker:worker"
BROKER: Final = "broker"
ANSWER_SECONDS: Final = 30.0


class Used(NamedTuple):
    """Processor time until now, in seconds: of the broker, and of all of us."""

    at: float
    broker: float
    all: float


class BenchNetwork:
    """A place to measure at."""

    def __init__(self, folder: Path, join: str | None) -> None:
        self.run = secrets.token_hex(4)
        self.own = join is None
        self.name = ""
        """Of the broker."""
        self.frontend = join or ""
        self._folder = folder
        self._children: dict[str, CommandProcess] = {}
        self._lock = threading.RLock()
        self._closed = False

    def start(self) -> None:
        """A broker, if it is ours, and a worker; both are ready."""
        backend = self._start_broker() if self.own else self._find_backend()
        words = ["worker", WORKER, "--endpoint", backend]
        self._start("worker", words, {RUN: self.run}).ready()

    def _start_broker(self) -> str:
        words = [BROKER, "--identity", "bench", "--data-dir", str(self._folder / "data")]
        for name in PORTS:
            words += [f"--{name.replace('_', '-')}-port", "0"]
        said = self._start(BROKER, words, {}).ready()
        places = dict(word.split("=", 1) for word in said.split() if "=" in word)
        self.name, self.frontend = "bench", places["frontend"]
        return places["backend"]

    def _find_backend(self) -> str:
        """Where workers of the broker connect to: its port, at the host that reached it."""
        with self.client() as net:
            row = net.brokers()[0]
        self.name = row["broker"]
        port = row["endpoints"]["backend"].rpartition(":")[2]
        host = host_of(self.frontend)
        return f"tcp://{f'[{host}]' if ':' in host else host}:{port}"

    def _start(self, name: str, words: list[str], environment: dict[str, str]) -> CommandProcess:
        with self._lock:
            if self._closed:
                raise ChildFailed("stopped")
            child = self._children[name] = CommandProcess(name, words, self._folder, environment)
            return child

    def client(self) -> Client:
        """For requests and tasks; at a broker that is not ours tasks are the user's, as a broker forgets no client."""
        from scale0.cli.tasks.connection import own_id
        from scale0.client.client import Client

        identity = own_identity(self.frontend, f"bench-{self.run}")
        owner = identity if self.own else own_id(self.frontend)
        return Client(
            self.frontend, identity=identity, timeout=ANSWER_SECONDS, patience=PATIENCE_SECONDS, task_client=owner
        )

    def async_client(self) -> AsyncClient:
        """The same for coroutines; it may be there beside the other."""
        from scale0.client.async_client import AsyncClient

        identity = own_identity(self.frontend, f"bench-{self.run}-async")
        return AsyncClient(self.frontend, identity=identity, timeout=ANSWER_SECONDS, patience=PATIENCE_SECONDS)

    def used(self) -> Used:
        """What our processes have used, this one among them."""
        import psutil

        def seconds(pid: int | None) -> float:
            times = psutil.Process(pid).cpu_times()
            return float(times.user + times.system)

        spent = {name: seconds(child.process.pid) for name, child in self._children.items()}
        return Used(time.monotonic(), spent.get(BROKER, 0.0), sum(spent.values()) + seconds(None))

    def close(self) -> None:
        """End everybody: the worker in order, as a broker that is not ours must see it go; ours at once."""
        with self._lock:
            self._closed = True
            for name in sorted(self._children, key=lambda name: name == BROKER):
                child = self._children.pop(name)
                if self.own:
                    child.kill()
                else:
                    child.stop()

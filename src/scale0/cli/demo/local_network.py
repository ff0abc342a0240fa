"""A network of local processes on free ports: brokers, workers, monitoring and one-shot commands.

`scale0 demo`, `scale0 chaos` and `scale0 bench` start theirs with it. It ends only processes that it started; after
`close` none of them runs and no thread can start another one.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from scale0.cli.broker.command import PORTS
from scale0.cli.common.child_process import ChildFailed, CommandProcess
from scale0.cli.common.endpoints import DEFAULT_HOST, is_free
from scale0.cli.demo.up_monitoring import UpMonitoring
from scale0.kernel.edge.secret_files import TOKEN_FILE, read_secret

FIRST_PORT: Final = 20_000
LAST_PORT: Final = 32_000
"""Below the ephemeral ports: a broker that is down must find its ports free again."""
WORKERS: Final = "scale0.cli.demo.workers"
"""The module with the workers."""
NAME: Final = "SCALE0_DEMO_NAME"
"""The variable with the identity of a worker."""
RUNS: Final = "SCALE0_DEMO_RUNS"
"""The variable with the file in which workers record each run of a task."""
MONITORING_SECONDS: Final = 60.0
"""How long a Helen and an agent may take to start, to enrol and to run the first checks."""


class LocalNetwork:
    """Brokers with fixed ports, and other processes by name."""

    def __init__(self, folder: Path, brokers: Sequence[str]) -> None:
        self.folder = folder
        self.data_dir = folder / "data"
        self.runs = folder / "runs"
        self.crashed: list[str] = []
        """Processes that ended by themselves."""
        self._brokers = tuple(brokers)
        ports = iter(free_ports(len(PORTS) * len(brokers)))
        # Chosen before the start: brokers name each other, and one that was killed returns to the same endpoints.
        self._ports = {name: {port: next(ports) for port in PORTS} for name in brokers}
        self._children: dict[str, CommandProcess] = {}
        self._command: CommandProcess | None = None
        self._monitoring: UpMonitoring | None = None
        self._monitoring_messages: list[str] = []
        self._monitoring_ready = threading.Event()
        self._lock = threading.RLock()
        self._closed = False

    def port(self, broker: str, socket_name: str) -> int:
        return self._ports[broker][socket_name]

    def endpoint(self, broker: str, socket_name: str) -> str:
        return f"tcp://{DEFAULT_HOST}:{self.port(broker, socket_name)}"

    @property
    def frontends(self) -> list[str]:
        return [self.endpoint(name, "frontend") for name in self._brokers]

    def pids(self) -> dict[str, int]:
        return {name: child.process.pid for name, child in self._children.items()}

    def token(self, broker: str) -> str:
        """The management token of a broker; each start makes a new one."""
        found = read_secret(self.data_dir / broker / TOKEN_FILE)
        if found is None:
            raise ChildFailed(f"{broker} has not written its token")
        return found

    def start_broker(self, name: str, data_dir: Path, *options: str) -> CommandProcess:
        words = ["broker", "--insecure", "--identity", name, "--data-dir", str(data_dir)]
        for port_name, port in self._ports[name].items():
            words += [f"--{port_name.replace('_', '-')}-port", str(port)]
        return self.start(name, [*words, *options])

    def start_worker(
        self, name: str, worker: str, endpoints: Sequence[str], identity: str = "", **environment: str
    ) -> CommandProcess:
        """A worker of the module WORKERS; the first endpoint is preferred."""
        words = ["worker", f"{WORKERS}:{worker}", *(word for each in endpoints for word in ("--endpoint", each))]
        return self.start(name, words, {NAME: identity or name, RUNS: str(self.runs), **environment}, identity)

    def start(
        self, name: str, words: Sequence[str], environment: Mapping[str, str] | None = None, log_name: str = ""
    ) -> CommandProcess:
        with self._lock:
            self._check_open()
            child = CommandProcess(words, environment, name=log_name or name, log_dir=self.folder)
            self._children[name] = child
            return child

    def start_monitoring(self, broker: str, identity: str) -> None:
        """A Helen and an agent of this identity, as `scale0 up` starts them."""
        folder = self.data_dir / "monitoring"
        folder.mkdir(mode=0o700, parents=True)
        endpoints = {name: self.endpoint(broker, name) for name in ("frontend", "backend")}

        def notify(message: str) -> None:
            self._monitoring_messages.append(message)
            self._monitoring_ready.set()

        with self._lock:
            self._check_open()
            self._monitoring = UpMonitoring(folder, identity, endpoints, self.data_dir / broker / TOKEN_FILE)
            self._monitoring.start(notify, notify)

    def monitoring_is_ready(self) -> bool:
        """True if `helen_address` returns or raises at once."""
        return self._monitoring_ready.is_set()

    def helen_address(self) -> str:
        """Where Helen listens, once the agent has enrolled and run its first checks."""
        if not self._monitoring_ready.wait(MONITORING_SECONDS) or " " in self._monitoring_messages[0]:
            raise ChildFailed("".join(self._monitoring_messages[:1]) or "Helen and the agent did not become ready")
        return self._monitoring_messages[0]

    def run(
        self,
        words: Sequence[str],
        seconds: float,
        output: int | None,
        environment: Mapping[str, str] | None = None,
        progress: Callable[[], None] | None = None,
    ) -> tuple[int, str, str]:
        """Run a one-shot command: its exit code, and what it printed to a pipe."""
        temporary = self.folder / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        # Files that Spark leaves behind when it is killed are removed with the folder.
        folders = {"TMPDIR": str(temporary), "SPARK_LOCAL_DIRS": str(temporary)}
        with self._lock:
            self._check_open()
            command = self._command = CommandProcess(words, {**folders, **(environment or {})}, output=output)
        return command.result(seconds, progress)

    def kill(self, name: str) -> CommandProcess | None:
        """SIGKILL; None if it does not run."""
        with self._lock:
            child = self._children.pop(name, None)
            if child is not None:
                child.kill()
            return child

    def restart_crashed(self, start: Callable[[str], object]) -> None:
        """Record processes that ended by themselves, and start them again."""
        with self._lock:
            for name, child in tuple(self._children.items()):
                code = child.process.poll()
                if code is not None:
                    self.crashed.append(f"{child.name} ended by itself with {code}")
                    start(name)

    def stop(self) -> None:
        """End monitoring, workers and then brokers, each in order, so that all of their history is on disk."""
        with self._lock:
            self._stop_services()
            for are_brokers in (False, True):
                names = [name for name in self._children if (name in self._brokers) == are_brokers]
                children = [self._children.pop(name) for name in names]
                for child in children:  # all at once: each may need a moment
                    child.process.terminate()
                for child in children:
                    child.stop()

    def close(self) -> None:
        """Kill what still runs; nothing can be started afterwards."""
        with self._lock:
            self._closed = True
            for name in tuple(self._children):
                self.kill(name)
            self._stop_services()

    def _check_open(self) -> None:
        if self._closed:
            raise ChildFailed("stopped")

    def _stop_services(self) -> None:
        if self._command is not None:
            self._command.kill_group()
            self._command = None
        if self._monitoring is not None:
            self._monitoring.stop()
            self._monitoring = None


def free_ports(count: int) -> list[int]:
    rng = random.SystemRandom()
    found: list[int] = []
    while len(found) < count:
        port = rng.randrange(FIRST_PORT, LAST_PORT)
        if port not in found and is_free(port):
            found.append(port)
    return found

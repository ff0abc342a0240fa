"""The processes of `scale0 demo`: two brokers of a group, workers, a Helen and an agent: started, killed and ended.

Lives here: which children there are, and where. Never here: the story that is told with them. Invariants: every process
that was started here is gone when `stop` returns, stopped in order, so that the rest of the history was written out;
after `close`, none is started any more, whichever thread asks.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from scale0.cli.broker.command import PORTS
from scale0.cli.common.child_process import START_SECONDS, ChildFailed, CommandProcess, CommandRun
from scale0.cli.demo.chaos_network import HOST, free_ports
from scale0.cli.demo.plan import BROKERS, ENDPOINTS, GROUP, HOMES, NAME, ONE, RUNS, TWO, WATCHER
from scale0.cli.demo.up_monitoring import UpMonitoring
from scale0.kernel.edge.secret_files import TOKEN_FILE, read_secret

WORKER: Final = "scale0.cli.demo.worker:worker"
MONITORING_SECONDS: Final = 60.0
"""How long a Helen and an agent may take to start, enrol and check."""
SEGMENT_SECONDS: Final = 10.0
"""History is written out so often: little is left to write when the network stops."""


class DemoNetwork:
    """Two brokers that know each other, and who belongs to them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._children: dict[str, CommandProcess] = {}
        self._monitoring: UpMonitoring | None = None
        self._told: list[str] = []
        self._watched = threading.Event()
        self._errand: CommandRun | None = None
        self._lock = threading.RLock()
        self._closed = False
        ports = iter(free_ports(len(PORTS) * len(BROKERS)))
        # Chosen before the start: they name each other, and a broker that was killed comes back where it was.
        self._ports = {name: {port: next(ports) for port in PORTS} for name in BROKERS}
        self.data_dir = folder / "data"
        self.warehouse = self.data_dir / "warehouse"
        self.runs = folder / "runs"

    def endpoint(self, broker: str, port: str) -> str:
        """Where a broker listens."""
        return f"tcp://{HOST}:{self.port(broker, port)}"

    def port(self, broker: str, port: str) -> int:
        """The number alone."""
        return self._ports[broker][port]

    @property
    def frontends(self) -> list[str]:
        """Where callers connect to: the first one is where they belong."""
        return [self.endpoint(name, "frontend") for name in BROKERS]

    def token(self, broker: str) -> str:
        """With which a broker is managed; it is another one after each start."""
        found = read_secret(self.data_dir / broker / TOKEN_FILE)
        if found is None:
            raise ChildFailed(f"{broker} has written no token")
        return found

    def segments(self) -> list[Path]:
        """Where the history of everybody is."""
        homes = [self.data_dir / name for name in BROKERS]
        return [home / "segments" for home in (*homes, self.data_dir / "monitoring" / "helen")]

    def start_broker(self, name: str) -> CommandProcess:
        """One of the two; the second one asks the first for the configuration."""
        config = self._folder / f"{name}.json"
        settings: dict[str, Any] = {"segment_seconds": SEGMENT_SECONDS, "config_service": name == ONE}
        if name == ONE:
            settings["state"] = "active"
        config.write_text(json.dumps(settings))
        words = ["broker", "--config", str(config), "--identity", name, "--group", GROUP]
        words += ["--data-dir", str(self.data_dir / name)]
        for port, number in self._ports[name].items():
            words += [f"--{port.replace('_', '-')}-port", str(number)]
        if name == TWO:
            words += ["--join", f"{HOST}:{self.port(ONE, 'peer')}"]
        return self._start(name, words)

    def start_worker(self, name: str) -> CommandProcess:
        """A worker process; whoever must know when a broker has taken it in asks the child."""
        home = HOMES[name]
        places = [self.endpoint(broker, "backend") for broker in sorted(BROKERS, key=lambda each: each != home)]
        environment = {NAME: name, ENDPOINTS: " ".join(places), RUNS: str(self.runs)}
        return self._start(name, ["worker", WORKER], environment)

    def start_monitoring(self) -> None:
        """A Helen and an agent, as `scale0 up` has them."""
        folder = self.data_dir / "monitoring"
        folder.mkdir(mode=0o700, parents=True)
        endpoints = {port: self.endpoint(ONE, port) for port in ("frontend", "backend")}

        def tell(what: str) -> None:
            self._told.append(what)
            self._watched.set()

        with self._lock:
            self._check()
            self._monitoring = UpMonitoring(folder, WATCHER, endpoints, self.data_dir / ONE / TOKEN_FILE)
            self._monitoring.start(tell, tell)

    def is_watched(self) -> bool:
        """True if `watched` has something to say."""
        return self._watched.is_set()

    def watched(self) -> str:
        """Where Helen is, once the agent has enrolled and run its first checks."""
        if not self._watched.wait(MONITORING_SECONDS) or " " in self._told[0]:
            raise ChildFailed("".join(self._told[:1]) or "Helen and the agent did not get ready")
        return self._told[0]

    def kill(self, name: str) -> int:
        """kill -9; the number of the process that was."""
        with self._lock:
            child = self._children.pop(name)
            child.kill()
            return child.process.pid

    def stop(self) -> None:
        """End everybody: the agent and Helen, then workers, then the brokers. Once is enough."""
        with self._lock:
            if self._errand is not None:
                self._errand.kill()
                self._errand = None
            if self._monitoring is not None:
                self._monitoring.stop()
                self._monitoring = None
            for brokers in (False, True):
                self._stop_all(name for name in tuple(self._children) if (name in BROKERS) == brokers)

    def _stop_all(self, names: Iterable[str]) -> None:
        """All at once: each takes a moment to write out what it has."""
        children = [self._children.pop(name) for name in names]
        for child in children:
            child.process.terminate()
        for child in children:
            child.stop()

    def close(self) -> None:
        """End everybody for good, and at once: a worker in order would wait for a broker that is dead."""
        with self._lock:
            self._closed = True
            for name in tuple(self._children):
                self._children.pop(name).kill()
            self.stop()

    def ask(self, *words: str) -> tuple[int, str]:
        """A command of ours that asks the network, as typed; its exit code and what it printed."""
        join = self.endpoint(ONE, "frontend").removeprefix("tcp://")
        state = {"XDG_STATE_HOME": str(self._folder / "state")}  # its user is nobody's memory
        code, said, troubled = self.run((*words, "--join", join), START_SECONDS, subprocess.PIPE, state)
        return code, said + troubled

    def run(
        self,
        words: Sequence[str],
        seconds: float,
        to: int | None,
        environment: dict[str, str] | None = None,
        looked: Callable[[], None] | None = None,
    ) -> tuple[int, str, str]:
        """A command of ours, to its end; its exit code, and what it printed `to` a pipe."""
        own = self._folder / "tmp"
        own.mkdir(parents=True, exist_ok=True)
        # What Spark leaves when it is killed goes with the folder.
        places = {"TMPDIR": str(own), "SPARK_LOCAL_DIRS": str(own)}
        with self._lock:
            self._check()
            errand = self._errand = CommandRun(words, to, {**places, **(environment or {})})
        return errand.done(seconds, looked)

    def _start(self, name: str, words: list[str], environment: dict[str, str] | None = None) -> CommandProcess:
        with self._lock:
            self._check()
            child = self._children[name] = CommandProcess(name, words, self._folder, environment or {})
            return child

    def _check(self) -> None:
        if self._closed:
            raise ChildFailed("stopped")

"""The processes of `scale0 demo`: a broker, its workers, a Helen and an agent, started, killed and ended.

Lives here: which children there are. Never here: the story that is told with them. Invariants: every process that was
started here is gone when `stop` returns, stopped in order, so that the rest of the history was written out; after
`close`, none is started any more, whichever thread asks.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from scale0.cli.broker import PORTS
from scale0.cli.child import START_SECONDS, Broken, Child, Errand
from scale0.cli.up_watch import Monitoring
from scale0.io.files import TOKEN_FILE

WORKER: Final = "scale0.cli.demo_worker:worker"
MONITORING_SECONDS: Final = 60.0
"""How long a Helen and an agent may take to start, enrol and check."""
SEGMENT_SECONDS: Final = 2.0
"""History is written out so often: little is left to write when the network stops."""


class DemoNetwork:
    """A broker on free ports, and workers by name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._children: dict[str, Child] = {}
        self._monitoring: Monitoring | None = None
        self._errand: Errand | None = None
        self._lock = threading.RLock()
        self._closed = False
        self.endpoints: dict[str, str] = {}
        self.data_dir = folder / "data"

    def start_broker(self) -> None:
        """On any free ports at first, on the same ones later."""
        config = self._folder / "broker.json"
        config.write_text(json.dumps({"segment_seconds": SEGMENT_SECONDS}))
        words = ["broker", "--config", str(config), "--identity", "demo", "--data-dir", str(self.data_dir)]
        for name in PORTS:
            port = self.endpoints[name].rpartition(":")[2] if self.endpoints else "0"
            words += [f"--{name.replace('_', '-')}-port", port]
        broker = self._start("broker", words)
        self.endpoints = dict(word.split("=", 1) for word in broker.ready().split() if "=" in word)

    def start_worker(self, name: str) -> None:
        """A worker process, once the broker has taken it in."""
        words = ["worker", WORKER, "--endpoint", self.endpoints["backend"]]
        self._start(name, words, {"SCALE0_DEMO_NAME": name}).ready()

    def start_monitoring(self) -> str:
        """A Helen and an agent, as `scale0 up` has them; where Helen is, once the first checks have run."""
        folder = self.data_dir / "monitoring"
        folder.mkdir(mode=0o700)
        said: list[str] = []
        done = threading.Event()

        def tell(what: str) -> None:
            said.append(what)
            done.set()

        with self._lock:
            self._check()
            self._monitoring = Monitoring(folder, "demo", self.endpoints, self.data_dir / TOKEN_FILE)
            self._monitoring.start(tell, tell)
        if not done.wait(MONITORING_SECONDS) or " " in said[0]:
            raise Broken("".join(said[:1]) or "Helen and the agent did not get ready")
        return said[0]

    def recorded_calls(self) -> int:
        """How many calls of the demo's services the broker has recorded as answered."""
        from scale0.io.segments.filters import Choice
        from scale0.io.segments.history import recorded_in

        events = recorded_in(self.data_dir, Choice(kind="request.summed"), lambda _: None)
        return sum(event["code"] for event in events if event["service"].startswith("demo."))

    def kill(self, name: str) -> int:
        """kill -9; the number of the process that was."""
        with self._lock:
            child = self._children.pop(name)
            child.kill()
            return child.process.pid

    def stop(self) -> None:
        """End everybody: the agent and Helen, then workers, then the broker. Once is enough."""
        with self._lock:
            if self._errand is not None:
                self._errand.kill()
                self._errand = None
            if self._monitoring is not None:
                self._monitoring.stop()
                self._monitoring = None
            for name in sorted(self._children, key=lambda name: name == "broker"):
                self._children.pop(name).stop()

    def close(self) -> None:
        """End everybody, for good."""
        with self._lock:
            self._closed = True
            self.stop()

    def ask(self, *words: str) -> tuple[int, str]:
        """A command of ours that asks the network, as typed; its exit code and what it printed."""
        join = self.endpoints["frontend"].removeprefix("tcp://")
        state = {"XDG_STATE_HOME": str(self._folder / "state")}  # its user is nobody's memory
        code, said, troubled = self.run((*words, "--join", join), START_SECONDS, subprocess.PIPE, state)
        return code, said + troubled

    def run(
        self, words: Sequence[str], seconds: float, to: int | None, environment: dict[str, str] | None = None
    ) -> tuple[int, str, str]:
        """A command of ours, to its end; its exit code, and what it printed `to` a pipe."""
        with self._lock:
            self._check()
            errand = self._errand = Errand(words, to, environment or {})
        return errand.done(seconds)

    def _start(self, name: str, words: list[str], environment: dict[str, str] | None = None) -> Child:
        with self._lock:
            self._check()
            child = self._children[name] = Child(name, words, self._folder, environment or {})
            return child

    def _check(self) -> None:
        if self._closed:
            raise Broken("stopped")

"""`make bench-agents`: agents and Helen, on this machine, beside NRPE.

python -m benchmarks.agents [fleet] [nrpe] [rest]     without words: all of them

fleet: simulated TLS agents on one Helen: memory each, results a second for a minute, all back after her restart.
nrpe: checks a second and latency beside nagios-nrpe-server with check_nrpe, both over TLS on loopback.
rest: what an agent costs that runs twenty checks a minute.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.certificates import Ca
from benchmarks.networks import ROOT, free_port, scale0_broker
from scale0.history.segments.reader import EventFilter, open_history

AGENTS = int(os.environ.get("SCALE0_BENCH_AGENTS", "10000"))
RATE = int(os.environ.get("SCALE0_BENCH_RATE", "10000"))
SECONDS = int(os.environ.get("SCALE0_BENCH_SECONDS", "60"))


@contextlib.contextmanager
def folder_with_certificates(agents: int) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="scale0-bench-") as name:
        folder = Path(name)
        (folder / "agents").mkdir()
        Ca(folder, "ca.pem").issue("helen", folder / "helen.pem", folder / "helen-key.pem", server=True)
        ca = Ca(folder, "agents-ca.pem")
        for number in range(agents):
            path = folder / "agents" / f"{number}.pem"
            ca.issue(f"agent-{number}", path, path)
        yield folder


class Helen:
    """A Helen process that can be killed and started again on the same port."""

    def __init__(self, folder: Path, back: str) -> None:
        self.port = free_port()
        self.data = folder / "helen-data"
        self.config = folder / "helen.json"
        self.config.write_text(
            json.dumps(
                {
                    "identity": "helen-1",
                    "broker": back,
                    "helen_port": self.port,
                    "certificate": str(folder / "helen.pem"),
                    "private_key": str(folder / "helen-key.pem"),
                    "client_ca": str(folder / "agents-ca.pem"),
                    "data_dir": str(self.data),
                }
            )
        )
        self.log = (folder / "helen.log").open("ab")
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "scale0", "helen", "--config", str(self.config)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True, cwd=ROOT)
        line = self.process.stdout.readline() if self.process.stdout else ""
        if not line.startswith("ready"):
            raise RuntimeError(f"Helen did not start: {line!r} {Path(self.log.name).read_text()[-2000:]}")

    def memory(self) -> int:
        assert self.process is not None
        return psutil.Process(self.process.pid).memory_info().rss

    def cpu(self) -> float:
        assert self.process is not None
        times = psutil.Process(self.process.pid).cpu_times()
        return times.user + times.system

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()
        self.process = None

    def answered(self) -> int:
        """How many `check.answered` she recorded, in segments and in her journal; she must have stopped."""
        history = open_history(self.data, None, print)
        choice = EventFilter(kind="check.answered")
        with contextlib.closing(history):
            tables = [
                one for pieces in history.list_segments(None).values() for one in history.read_segments(pieces, choice)
            ]
            return sum(table.num_rows for table in (*tables, *history.read_journal(choice)))


@contextlib.contextmanager
def fleet_process(folder: Path, port: int, count: int) -> Iterator[Any]:
    command = [sys.executable, "-m", "benchmarks.fleet", str(folder), str(port), str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        if child.stdout.readline() != "ready\n":
            raise RuntimeError("the fleet did not start")

        def say(words: str) -> dict[str, Any]:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(f"{words}\n")
            child.stdin.flush()
            found: dict[str, Any] = json.loads(child.stdout.readline())
            print(f"  fleet: {words}: {found}", file=sys.stderr)
            return found

        try:
            yield say
        finally:
            child.kill()


def define(front: str, data: Path, definitions: list[dict[str, Any]]) -> None:
    """Have the network watch these."""
    import scale0
    from scale0.kernel.edge.secret_files import TOKEN_FILE

    with scale0.Client(front) as net:
        token = (data / TOKEN_FILE).read_text().strip()
        net.manage("patch_config", set={"checks": definitions}, auth_token=token)


def broker_data(broker: subprocess.Popen[str]) -> Path:
    """The folder of a broker that `scale0_broker` started."""
    config = Path(psutil.Process(broker.pid).cmdline()[-1])
    return Path(json.loads(config.read_text())["data_dir"])


def fleet() -> dict[str, Any]:
    with folder_with_certificates(AGENTS) as folder, scale0_broker(config_service=True) as (front, back, broker):
        define(front, broker_data(broker), [{"name": "load", "interval": 60, "max_attempts": 3}])
        helen = Helen(folder, back)
        helen.start()
        try:
            empty = helen.memory()
            with fleet_process(folder, helen.port, AGENTS) as say:
                joined = say("connect")
                say("idle 5")
                each = (helen.memory() - empty) / AGENTS
                before = helen.cpu()
                told = say(f"report {RATE} {SECONDS}")
                used = helen.cpu() - before
                loaded = (helen.memory() - empty) / AGENTS
                helen.kill()
                helen.start()
                back_again = say("back")
                say("idle 2")
            helen.kill(signal.SIGTERM)
            recorded = helen.answered()
        finally:
            if helen.process is not None:
                helen.kill()
    return {
        "agents": joined["up"],
        "joined_seconds": joined["seconds"],
        "kb_each_idle": each / 1024,
        "kb_each_after_reports": loaded / 1024,
        "results_per_second": told["rate"],
        "sent": told["sent"],
        "acknowledged": told["acked"],
        "recorded": recorded,
        "helen_us_per_result": used / told["sent"] * 1e6,
        "most_behind_seconds": told["behind"],
        "back_after_restart": back_again["up"],
        "back_seconds": back_again["seconds"],
    }


REST_SECONDS = 120
REST_CHECKS = ("load", "cpu", "memory", "swap", "disk", "network", "uptime")


def rest() -> dict[str, Any]:
    """One agent with twenty checks a minute."""
    import scale0
    from benchmarks.nrpe import agent_process, wait_for_agent

    definitions = [
        {"name": f"{check}-{number}", "check": check, "interval": 60, "timeout": 10}
        for number, check in zip(range(20), REST_CHECKS * 3, strict=False)
    ]
    with folder_with_certificates(1) as folder, scale0_broker(config_service=True) as (front, back, broker):
        define(front, broker_data(broker), definitions)
        helen = Helen(folder, back)
        helen.start()
        try:
            with agent_process(folder, helen.port, "agent") as agent, scale0.Client(front) as net:
                wait_for_agent(net)
                time.sleep(10)
                family = [psutil.Process(agent.pid), *psutil.Process(agent.pid).children(recursive=True)]
                before = sum(sum(one.cpu_times()[:2]) for one in family)
                started = time.monotonic()
                time.sleep(REST_SECONDS)
                used = sum(sum(one.cpu_times()[:2]) for one in family) - before
                percent = 100 * used / (time.monotonic() - started)
                full = [one.memory_full_info() for one in family]
                seen = len(net.call("helen.checks")["items"])
        finally:
            helen.kill()
    return {
        "checks_seen": seen,
        "processes": len(family),
        "rss_mb": sum(one.rss for one in full) / 1e6,
        "pss_mb": sum(one.pss for one in full) / 1e6,
        "percent_of_a_core": percent,
    }


def nrpe() -> dict[str, Any]:
    from benchmarks import nrpe as beside

    return beside.nrpe()


PARTS = {"rest": rest, "nrpe": nrpe, "fleet": fleet}


def main() -> None:
    wanted = sys.argv[1:] or list(PARTS)
    for name in wanted:
        started = time.monotonic()
        print(f"{name}:", file=sys.stderr)
        for key, value in PARTS[name]().items():
            print(f"{name:8}{key:28}{value:>14,.2f}" if isinstance(value, float) else f"{name:8}{key:28}{value:>14}")
        print(f"  ({time.monotonic() - started:.0f} s)", file=sys.stderr)


if __name__ == "__main__":
    main()

"""Checks a second and latency: an agent asked through broker and Helen, beside check_nrpe and nagios-nrpe-server.

Both over TLS on loopback, in turns, in one run. NRPE starts a process and shakes hands for each check, as it always
does; ours has one connection. `direct` asks the agent as check_nrpe asks nrpe: by a driver of its own, without a
broker, a store or a journal in between.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import scale0
from benchmarks.agents import Helen, folder_with_certificates
from benchmarks.networks import ROOT, free_port, scale0_broker

PLUGIN = "/usr/lib/nagios/plugins/check_dummy"
CHECK_NRPE = "/usr/lib/nagios/plugins/check_nrpe"
LUA = 'return function(args) return {state = "ok", message = "fine", metrics = {{name = "n", value = 1}}} end\n'
AT_ONCE = 8
ROUNDS = 3
KINDS = {"built-in": ("load", {}), "lua": ("fine", {}), "plugin": ("dummy", {})}


@contextlib.contextmanager
def nrpe_server(folder: Path) -> Iterator[int]:
    port = free_port()
    config = folder / "nrpe.cfg"
    config.write_text(
        f"pid_file={folder}/nrpe.pid\nserver_port={port}\nserver_address=127.0.0.1\nnrpe_user=nobody\n"
        f"nrpe_group=nogroup\nallowed_hosts=127.0.0.1\ncommand[dummy]={PLUGIN} 0 fine\n"
    )
    child = subprocess.Popen(
        ["/usr/sbin/nrpe", "-c", str(config), "-f"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until = time.monotonic() + 10
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
        yield port
    finally:
        child.terminate()
        child.wait()


def ask_nrpe(port: int) -> None:
    command = [CHECK_NRPE, "-H", "127.0.0.1", "-p", str(port), "-c", "dummy"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def measure(ask: Callable[[], Any], count: int) -> list[float]:
    """Seconds of each, one at a time."""
    found = []
    for _ in range(count):
        started = time.perf_counter()
        ask()
        found.append(time.perf_counter() - started)
    return found


def nrpe_round(port: int, count: int = 200) -> tuple[float, float]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        started = time.perf_counter()
        list(pool.map(lambda _: ask_nrpe(port), range(count)))
        rate = count / (time.perf_counter() - started)
    return rate, statistics.median(measure(lambda: ask_nrpe(port), 50))


@contextlib.contextmanager
def agent_process(folder: Path, port: int, name: str) -> Iterator[subprocess.Popen[str]]:
    checks = folder / f"{name}-checks"
    checks.mkdir()
    (checks / "fine.lua").write_text(LUA)
    certificate = str(folder / "agents" / "0.pem")
    config = folder / f"{name}.json"
    config.write_text(
        json.dumps(
            {
                "helen": [f"127.0.0.1:{port}"],
                "certificate": certificate,
                "private_key": certificate,
                "server_ca": str(folder / "ca.pem"),
                "checks_dir": str(checks),
                "plugins": [{"name": "dummy", "command": [PLUGIN, "0", "fine"]}],
                "data_dir": str(folder / f"{name}-data"),
            }
        )
    )
    command = [sys.executable, "-m", "scale0", "agent", "--config", str(config)]
    with (folder / f"{name}.log").open("wb") as log:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT)
    try:
        line = child.stdout.readline() if child.stdout else ""
        if not line.startswith("ready"):
            raise RuntimeError(f"the agent did not start: {line!r} {(folder / f'{name}.log').read_text()[-2000:]}")
        yield child
    finally:
        child.terminate()
        child.wait()
        if child.stdout:
            child.stdout.close()


def network_round(net: scale0.Client, check: str, count: int, in_flight: int) -> tuple[float, float]:
    body = json.dumps({"agent": "agent-0", "check": check, "args": {}}).encode()
    started = time.perf_counter()
    for answer in net.map("helen.check", (body for _ in range(count)), in_flight=in_flight, raw=True):
        if b'"ok"' not in answer[0]:
            raise RuntimeError(f"{check}: {answer!r}")
    rate = count / (time.perf_counter() - started)
    return rate, statistics.median(measure(lambda: net.request("helen.check", body), 200))


class Driver:
    """A Helen of fifty lines: one agent, checks and results, and nothing else."""

    def __init__(self, folder: Path) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "helen.pem", folder / "helen-key.pem")
        context.load_verify_locations(folder / "agents-ca.pem")
        context.verify_mode = ssl.CERT_REQUIRED
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        self.context = context
        self.number = 0
        self.buffer = b""
        self.link: ssl.SSLSocket | None = None

    def accept(self) -> None:
        self.link = self.context.wrap_socket(self.listener.accept()[0], server_side=True)
        self.line()

    def line(self) -> bytes:
        while (end := self.buffer.find(b"\n")) < 0:
            self.buffer += self.link.recv(262_144)
        line, self.buffer = self.buffer[:end], self.buffer[end + 1 :]
        return line

    def results(self, count: int) -> None:
        for _ in range(count):
            words = self.line().split(b" ")
            length = int(words[3])
            while len(self.buffer) <= length:
                self.buffer += self.link.recv(262_144)
            if b'"ok"' not in self.buffer[:length]:
                raise RuntimeError(repr(self.buffer[:length]))
            self.buffer = self.buffer[length + 1 :]

    def ask(self, check: str, count: int) -> None:
        said = []
        for _ in range(count):
            self.number += 1
            said.append(b"check %b %d 2\n{}\n" % (check.encode(), self.number))
        self.link.sendall(b"".join(said))
        self.results(count)

    def round(self, check: str, count: int, at_once: int) -> tuple[float, float]:
        started = time.perf_counter()
        for _ in range(count // at_once):
            self.ask(check, at_once)
        rate = count / (time.perf_counter() - started)
        return rate, statistics.median(measure(lambda: self.ask(check, 1), 200))

    def close(self) -> None:
        if self.link is not None:
            self.link.close()
        self.listener.close()


def nrpe() -> dict[str, Any]:
    counts = {"built-in": 20_000, "lua": 10_000, "plugin": 1_000}
    found: dict[str, list[tuple[float, float]]] = {}
    with (
        folder_with_certificates(1) as folder,
        nrpe_server(folder) as nrpe_port,
        scale0_broker(config_service=True) as (front, back, _broker),
    ):
        helen = Helen(folder, back)
        helen.start()
        driver = Driver(folder)
        try:
            with (
                agent_process(folder, helen.port, "agent"),
                agent_process(folder, driver.port, "direct"),
                scale0.Client(front) as net,
            ):
                driver.accept()
                wait_for_agent(net)
                for number in range(ROUNDS):
                    found.setdefault("nrpe", []).append(nrpe_round(nrpe_port))
                    for kind, (check, _args) in KINDS.items():
                        count, flight = counts[kind], AT_ONCE if kind == "plugin" else 64
                        found.setdefault(f"direct {kind}", []).append(driver.round(check, count, flight))
                        found.setdefault(f"network {kind}", []).append(network_round(net, check, count, flight))
                    print(f"  round {number + 1} of {ROUNDS}", file=sys.stderr)
        finally:
            driver.close()
            helen.kill()
    rate = {name: statistics.median(one for one, _ in rounds) for name, rounds in found.items()}
    p50 = {name: statistics.median(one for _, one in rounds) for name, rounds in found.items()}
    out: dict[str, Any] = {}
    for name in found:
        out[f"{name}: checks/s"] = rate[name]
        out[f"{name}: p50 ms"] = p50[name] * 1e3
        if name != "nrpe":
            out[f"{name}: x nrpe's rate"] = rate[name] / rate["nrpe"]
            out[f"{name}: of its latency"] = p50[name] / p50["nrpe"]
    return out


def wait_for_agent(net: scale0.Client) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        with contextlib.suppress(scale0.CallError):
            if any(row["state"] == "connected" for row in net.call("helen.agents")["items"]):
                return
        time.sleep(0.1)
    raise RuntimeError("the agent did not come")

"""`make bench-broker`: what a broker costs, as ratios measured in one run on this machine.

python -m benchmarks.run [idle] [flat] [forwarded] [floods]     without words: all of them
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import psutil

from benchmarks.floods import floods
from benchmarks.networks import ROOT, end, process, run_client, scale0_broker, scale0_pair

ROUNDS = 5
THROUGHPUT_REQUESTS = 200_000
LATENCY_REQUESTS = 5_000
IDLE_BACKENDS = 10_000
HEARTBEATS = 500


class IdleHerd:
    """The idle backends' process, spoken to by words."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child

    def say(self, words: str) -> dict[str, Any]:
        if self._child.stdin is None or self._child.stdout is None:
            raise RuntimeError("no pipes")
        self._child.stdin.write(words + "\n")
        self._child.stdin.flush()
        answer: dict[str, Any] = json.loads(self._child.stdout.readline())
        return answer


@contextlib.contextmanager
def idle_backends(place: str, count: int) -> Iterator[IdleHerd]:
    command = [sys.executable, "-m", "benchmarks.idle", place, str(count)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        if child.stdout is None or not child.stdout.readline().startswith("ready"):
            raise RuntimeError("the idle backends did not join")
        yield IdleHerd(child)
    finally:
        child.kill()
        child.wait()


def cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def request_cost(front: str, broker: int, count: int = 100_000) -> float:
    """The broker's own CPU time for one request, in microseconds: the least of three."""
    costs = []
    for _ in range(3):
        before = cpu_seconds(broker)
        run_client("scale0-client", front, count, 100)
        costs.append((cpu_seconds(broker) - before) / count * 1e6)
    return min(costs)


def idle() -> dict[str, Any]:
    """10,000 idle backends: processor, memory, and what a request costs among them."""
    with scale0_broker() as (front, back, broker), process(*end("scale0-worker", back)):
        alone = request_cost(front, broker.pid)
        bare = psutil.Process(broker.pid).memory_info().rss
        with idle_backends(back, IDLE_BACKENDS) as herd:
            print(f"  {IDLE_BACKENDS} backends joined", file=sys.stderr)
            herd.say(f"beat {HEARTBEATS}")
            memory = psutil.Process(broker.pid).memory_info().rss
            herd.say("idle 10")
            before, start = cpu_seconds(broker.pid), time.monotonic()
            told = herd.say("idle 30")
            share = (cpu_seconds(broker.pid) - before) / (time.monotonic() - start)
            among = request_cost(front, broker.pid)
    return {
        "idle_backends": IDLE_BACKENDS,
        "heartbeats_each": HEARTBEATS,
        "interval_seconds": told["interval"],
        "heartbeats_per_second": told["sent"] / 30,
        "share_of_one_core": share,
        "kilobytes_each": (memory - bare) / IDLE_BACKENDS / 1e3,
        "request_cpu_us_alone": alone,
        "request_cpu_us_among_idle": among,
        "request_cost_ratio": among / alone,
    }


def flat() -> dict[str, Any]:
    """The broker's CPU time per request in the first thousands and in a million."""
    with scale0_broker() as (front, back, broker), process(*end("scale0-worker", back)):
        run_client("scale0-client", front, 1_000, 100)
        before = cpu_seconds(broker.pid)
        for _ in range(20):
            run_client("scale0-client", front, 1_000, 100)
        short = (cpu_seconds(broker.pid) - before) / 20_000 * 1e6
        memory = psutil.Process(broker.pid).memory_info().rss
        before = cpu_seconds(broker.pid)
        run_client("scale0-client", front, 1_000_000, 100)
        long = (cpu_seconds(broker.pid) - before) / 1_000_000 * 1e6
        grown = psutil.Process(broker.pid).memory_info().rss - memory
    return {"cpu_us_in_thousands": short, "cpu_us_in_a_million": long, "memory_grown_mb": grown / 1e6}


def forwarded() -> dict[str, Any]:
    """A request whose worker is at another broker, beside one whose worker is at its own."""
    p50: dict[str, list[float]] = {"local": [], "forwarded": []}
    rates: dict[str, list[float]] = {"local": [], "forwarded": []}
    cost: dict[str, list[float]] = {"local": [], "forwarded": []}
    with scale0_pair() as (far, near, brokers):
        places = {"local": near, "forwarded": far}
        for place in places.values():
            run_client("scale0-client", place, 2_000, 100)
        for number in range(ROUNDS):
            for name, place in places.items():
                p50[name].append(run_client("scale0-client", place, LATENCY_REQUESTS, 1)["p50"])
                before = sum(map(cpu_seconds, brokers))
                rates[name].append(run_client("scale0-client", place, THROUGHPUT_REQUESTS // 2, 100)["rate"])
                cost[name].append((sum(map(cpu_seconds, brokers)) - before) / (THROUGHPUT_REQUESTS // 2) * 1e6)
            print(f"  round {number + 1} of {ROUNDS}", file=sys.stderr)
    latency, rate, spent = (
        {name: statistics.median(found) for name, found in one.items()} for one in (p50, rates, cost)
    )
    return {
        "one_at_a_time_p50_us": latency,
        "requests_per_second": rate,
        "brokers_cpu_us": spent,
        "p50_ratio": latency["forwarded"] / latency["local"],
        "cpu_ratio": spent["forwarded"] / spent["local"],
    }


PARTS = {"idle": idle, "flat": flat, "forwarded": forwarded, "floods": floods}


def shown_figure(figure: float | bool) -> str:
    if isinstance(figure, bool):
        return "yes" if figure else "NO"
    return f"{figure:,.1f}" if figure < 100 else f"{figure:,.0f}"


def main() -> None:
    wanted = sys.argv[1:] or list(PARTS)
    machine = (
        f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}, Python {platform.python_version()}"
    )
    load = os.getloadavg()[0]
    print(f"{time.strftime('%Y-%m-%d')}, {machine}, load before {load:.2f}")
    for name in wanted:
        print(f"{name}: {(PARTS[name].__doc__ or '').strip()}", flush=True)
        for key, value in PARTS[name]().items():
            shown = value if not isinstance(value, float) else f"{value:,.2f}"
            if isinstance(value, dict):
                shown = ", ".join(f"{who} {shown_figure(figure)}" for who, figure in value.items())
            print(f"  {key:28} {shown}", flush=True)


if __name__ == "__main__":
    main()

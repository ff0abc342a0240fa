"""`/metrics`: what a scrape takes, and whether the server's loop goes on meanwhile.

    python -m benchmarks.management_metrics            # by itself, with 10 to 10,000 services
    python -m benchmarks.management_metrics server     # a real broker with 10,000 clients, and a real server

By itself it makes a sample, has it written in both formats, and watches how late a loop's timer comes at most. With a
server it scrapes as Prometheus does, while somebody else asks `/healthz`: that one's wait is the loop's.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from scale0.http.metrics.current import CurrentSample
from tests.fakes.broker_process import broker_process
from tests.processes.http.metric_samples import big
from tests.processes.http.site import served

CLIENTS = 10_000
SCRAPES = 50
ACCEPT = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
"""What Prometheus 2.42 asks for first."""


async def alone(services: int, as_openmetrics: bool) -> tuple[float, float, int]:
    """Seconds of one scrape, the longest that a timer was late meanwhile, and the bytes."""
    loop = asyncio.get_running_loop()
    current = CurrentSample(loop)
    current.put(big(services))
    began, late = loop.time(), 0.0
    writing = loop.create_task(current.text(as_openmetrics))
    while not writing.done():
        before = loop.time()
        await asyncio.sleep(0.001)
        late = max(late, loop.time() - before - 0.001)
    return loop.time() - began, late, len(await writing)


def by_itself() -> None:
    print(f"{'services':>9} {'format':>12} {'ms':>8} {'late ms':>8} {'KB':>8}")
    for services in (10, 100, 1_000, 10_000):
        for as_openmetrics in (False, True):
            runs = [asyncio.run(alone(services, as_openmetrics)) for _ in range(5)]
            seconds, late, size = statistics.median(run[0] for run in runs), max(run[1] for run in runs), runs[0][2]
            name = "openmetrics" if as_openmetrics else "text"
            print(f"{services:9,} {name:>12} {seconds * 1e3:8.1f} {late * 1e3:8.1f} {size / 1e3:8.0f}")


@contextlib.contextmanager
def clients(place: str, count: int) -> Iterator[None]:
    """Idle backends that keep to their interval."""
    command = [sys.executable, "-m", "benchmarks.idle", place, str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as herd:
        assert herd.stdin is not None
        assert herd.stdout is not None
        if not herd.stdout.readline().startswith("ready"):
            raise RuntimeError("the idle backends did not join")
        herd.stdin.write("idle 3600\n")
        herd.stdin.flush()
        try:
            yield
        finally:
            herd.kill()


def waits(url: str, stop: threading.Event, found: list[float]) -> None:
    with httpx.Client(trust_env=False) as client:
        while not stop.is_set():
            before = time.perf_counter()
            client.get(f"{url}/healthz")
            found.append(time.perf_counter() - before)
            time.sleep(0.002)


def with_a_server() -> None:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(broker_process(folder))
        stack.enter_context(clients(broker.endpoints["backend"], CLIENTS))
        site = stack.enter_context(served(folder, broker, metrics_open=True))
        client = stack.enter_context(httpx.Client(trust_env=False, headers={"Accept": ACCEPT}))
        text = client.get(f"{site.server.url}/metrics").text
        told = [line for line in text.splitlines() if line.startswith('scale0_clients{role="backend"}')]
        print(told[0], f"{len(text)} bytes")
        stop, quiet, busy, scrapes = threading.Event(), list[float](), list[float](), list[float]()
        for found in (quiet, busy):
            stop.clear()
            watcher = threading.Thread(target=waits, args=(site.server.url, stop, found))
            watcher.start()
            for _ in range(SCRAPES):
                if found is busy:
                    before = time.perf_counter()
                    client.get(f"{site.server.url}/metrics").raise_for_status()
                    scrapes.append(time.perf_counter() - before)
                time.sleep(0.2)  # so that some of them meet a new sample
            stop.set()
            watcher.join()
    for name, found in (("scrape", scrapes), ("healthz, quiet", quiet), ("healthz, scraped", busy)):
        ordered = sorted(found)
        print(
            f"{name:>18}: median {ordered[len(ordered) // 2] * 1e3:.1f} ms, "
            f"p99 {ordered[int(len(ordered) * 0.99)] * 1e3:.1f} ms, longest {ordered[-1] * 1e3:.1f} ms"
        )


if __name__ == "__main__":
    if sys.argv[1:] == ["server"]:
        with_a_server()
    else:
        by_itself()

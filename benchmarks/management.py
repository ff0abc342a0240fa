"""What looking at a network costs it: request latency with and without readers, the console's first second, `/metrics`.

python -m benchmarks.management [--rounds N] [--seconds S] [--clients N]

A reader is what an open page of the console is: it asks for the overview, the services and the tasks, once a second.
Ten of them and an event stream are on in one phase and gone in the next, in rounds, on one broker; requests go one at
a time all the while, so that a wait shows. Durations of the two phases are compared as p99 of all rounds together.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx

import scale0
from benchmarks.ends import SERVICE
from benchmarks.networks import ROOT, end, free_port, process, wait_for

READERS = 10
PAGES = ("overview", "services", "tasks?limit=100")
PAGE_SECONDS = 1.0
AIM_RATIO = 1.3
AIM_METRICS_MS = 100.0
AIM_BYTES = 300_000
AIM_INTERACTIVE_MS = 1_000.0
WARM_SECONDS = 3.0


class Network:
    """A broker with its HTTP server and one worker."""

    def __init__(self, front: str, back: str, url: str, token: str) -> None:
        self.front = front
        self.back = back
        self.url = url
        self.headers = {"Authorization": f"Bearer {token}"}


@contextlib.contextmanager
def network() -> Iterator[Network]:
    with tempfile.TemporaryDirectory(prefix="scale0-bench-") as folder:
        ports = {f"{name}_port": free_port() for name in ("frontend", "backend", "peer", "config_pub", "task_pub")}
        http = free_port()
        config = Path(folder) / "broker.json"
        management = {"enabled": True, "port": http}
        config.write_text(
            json.dumps(
                {"identity": "bench", "curve": False, "data_dir": f"{folder}/data", "management": management, **ports}
            )
        )
        with process(sys.executable, "-m", "scale0", "broker", "--config", str(config)):
            front, back = (f"tcp://127.0.0.1:{ports[name]}" for name in ("frontend_port", "backend_port"))
            wait_for(http, 30)
            token = (Path(folder) / "data" / "token").read_text().strip()
            with process(*end("scale0-worker", back)):
                yield Network(front, back, f"http://127.0.0.1:{http}", token)


@contextlib.contextmanager
def readers(net: Network) -> Iterator[list[int]]:
    """Ten pages and a stream; how many answers each got."""
    counts = [0] * (READERS + 1)
    over = threading.Event()

    def step_back() -> None:
        """Whoever looks does so on a machine of their own: this thread's work takes nothing from the network's."""
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)

    def page(number: int) -> None:
        step_back()
        with httpx.Client(headers=net.headers, timeout=10) as client:
            while not over.is_set():
                for name in PAGES:
                    client.get(f"{net.url}/api/v1/{name}").raise_for_status()
                    counts[number] += 1
                over.wait(PAGE_SECONDS)

    def stream() -> None:
        step_back()
        with (
            contextlib.suppress(httpx.ReadTimeout),
            httpx.Client(headers=net.headers, timeout=httpx.Timeout(10, read=2)) as client,
            client.stream("GET", f"{net.url}/api/v1/events/stream") as answer,
        ):
            answer.raise_for_status()
            for line in answer.iter_lines():
                counts[READERS] += line.startswith("id:")
                if over.is_set():
                    return

    threads = [threading.Thread(target=page, args=(n,)) for n in range(READERS)]
    threads.append(threading.Thread(target=stream))
    for thread in threads:
        thread.start()
    try:
        yield counts
    finally:
        over.set()
        for thread in threads:
            thread.join()


def latencies(client: scale0.Client, seconds: float) -> list[float]:
    """Requests one at a time."""
    body, out = b"x" * 100, []
    until = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < until:
        client.request(SERVICE, body)
        out.append(time.perf_counter() - begin)
    return out


def client_process(front: str, seconds: float) -> list[float]:
    """In a process of its own, so that our readers' threads do not count."""
    words = [sys.executable, "-m", "benchmarks.management", "--measure", front, "--seconds", str(seconds)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=True, timeout=seconds + 60)
    found: list[float] = json.loads(done.stdout)
    return found


def p(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def compare(net: Network, rounds: int, seconds: float) -> dict[str, Any]:
    alone: list[float] = []
    watched: list[float] = []
    ratios: list[float] = []
    answers = events = 0
    client_process(net.front, WARM_SECONDS)
    for number in range(rounds):
        quiet = client_process(net.front, seconds)
        with readers(net) as counts:
            busy = client_process(net.front, seconds)
        alone += quiet
        watched += busy
        ratios.append(p(busy, 0.99) / p(quiet, 0.99))
        answers, events = answers + sum(counts[:-1]), events + counts[-1]
        print(f"  round {number + 1} of {rounds}: p99 ratio {ratios[-1]:.2f}", file=sys.stderr)
    return {
        "readers": READERS,
        "answers_per_second": answers / (rounds * seconds),
        "events_streamed": events,
        "alone_us": {"p50": p(alone, 0.5) * 1e6, "p99": p(alone, 0.99) * 1e6, "requests": len(alone)},
        "watched_us": {"p50": p(watched, 0.5) * 1e6, "p99": p(watched, 0.99) * 1e6, "requests": len(watched)},
        "p99_ratio": p(watched, 0.99) / p(alone, 0.99),
        "p99_ratio_median_of_rounds": statistics.median(ratios),
        "aim": AIM_RATIO,
    }


def console(net: Network) -> dict[str, Any]:
    """Bytes until the overview is there, compressed, and when its rows can be used, in Debian's Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        times = []
        size = 0
        for _ in range(5):
            context = browser.new_context(base_url=net.url)
            token = net.headers["Authorization"].removeprefix("Bearer ")
            made = context.request.post("/api/v1/session", data={"token": token})
            if not made.ok:
                raise RuntimeError(made.text())
            page = context.new_page()
            answers: list[Any] = []
            page.on("response", partial(list.append, answers))  # a method of a list cannot be marked by Playwright
            begin = time.perf_counter()
            page.goto("/#/overview")
            page.locator("main h1").first.wait_for()
            page.get_by_text("Health of every part").wait_for()
            times.append((time.perf_counter() - begin) * 1e3)
            size = max(size, sum(len(gzip.compress(answer.body())) for answer in list(answers)))
            context.close()
        browser.close()
    return {
        "interactive_ms": statistics.median(times),
        "aim_ms": AIM_INTERACTIVE_MS,
        "gzip_bytes": size,
        "aim_bytes": AIM_BYTES,
    }


@contextlib.contextmanager
def herd(place: str, count: int, seconds: float) -> Iterator[None]:
    """So many backends that do nothing but beat."""
    words = [sys.executable, "-m", "benchmarks.idle", place, str(count)]
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        if child.stdin is None or child.stdout is None or child.stdout.readline() != "ready\n":
            raise RuntimeError("the backends did not join")
        child.stdin.write(f"idle {seconds:g}\n")
        child.stdin.flush()
        yield
    finally:
        child.kill()
        child.communicate()


def metrics(net: Network, clients: int) -> dict[str, Any]:
    """`/metrics` with many clients, and what a request waits meanwhile."""
    with herd(net.back, clients, 60.0):
        time.sleep(WARM_SECONDS)
        took = []
        with httpx.Client(headers=net.headers, timeout=10) as client:
            for _ in range(20):
                begin = time.perf_counter()
                answer = client.get(f"{net.url}/metrics")
                answer.raise_for_status()
                took.append((time.perf_counter() - begin) * 1e3)
        slow = client_process(net.front, 3.0)
        rows = httpx.get(f"{net.url}/api/v1/overview", headers=net.headers, timeout=10).json()["broker"]["clients"]
    return {
        "clients": rows,
        "p50_ms": p(took, 0.5),
        "max_ms": max(took),
        "aim_ms": AIM_METRICS_MS,
        "bytes": len(answer.content),
        "request_p99_us_meanwhile": p(slow, 0.99) * 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--measure", default="")
    asked = parser.parse_args()
    if asked.measure:
        with scale0.Client(asked.measure) as client:
            print(json.dumps(latencies(client, asked.seconds)))
        return
    with network() as net:
        found = {"requests": compare(net, asked.rounds, asked.seconds), "console": console(net)}
        found["metrics"] = metrics(net, asked.clients)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

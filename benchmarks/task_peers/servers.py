"""The servers and workers of each queue: started on free ports with a temporary folder, and ended by their ids."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.networks import ROOT, free_port, scale0_broker, wait_for

PEERS_PYTHON = ROOT / ".venv-bench" / "bin" / "python"
INSTALL = "python3 -m venv .venv-bench && .venv-bench/bin/pip install -r benchmarks/requirements-peers.txt"
CLIENT_SECONDS = 120
DRAMATIQ_THREADS = 16
CELERY_POOL = ("--pool", "threads", "--concurrency", "1")


def peers_python() -> str:
    """The interpreter that has the peers' packages; ours has one of them, too."""
    return str(PEERS_PYTHON) if PEERS_PYTHON.exists() else sys.executable


def missing(server: str | None, package: str) -> str | None:
    """What is not installed, if anything."""
    if server is not None and shutil.which(server) is None:
        return f"{server} is not installed"
    known = subprocess.run([peers_python(), "-c", f"import {package}"], capture_output=True, check=False, cwd=ROOT)
    return f"Python's {package} is not installed: {INSTALL}" if known.returncode else None


def versions() -> list[str]:
    """Which servers and packages are here."""
    found = []
    for command in (["nats-server", "--version"], ["redis-server", "--version"], ["beanstalkd", "-v"]):
        with contextlib.suppress(OSError):
            told = subprocess.run(command, capture_output=True, text=True, check=False).stdout
            found.append(
                told.partition(" sha=")[0].replace("Redis server v=", "redis-server ").replace(":", "").strip()
            )
    return [one for one in found if one] + packages("nats-py", "dramatiq", "celery", "rq", "redis")


def packages(*names: str) -> list[str]:
    """The versions of those that the peers' interpreter has."""
    ask = "import importlib.metadata as m, sys\nprint(sys.argv[1], m.version(sys.argv[1]))"
    commands = ([peers_python(), "-c", ask, name] for name in names)
    found = (subprocess.run(command, capture_output=True, text=True, check=False).stdout for command in commands)
    return [one.strip() for one in found if one.strip()]


def module(name: str) -> list[str]:
    python = sys.executable if name == "scale0_tasks" else peers_python()
    return [python, "-m", f"benchmarks.task_peers.{name}"]


@contextlib.contextmanager
def started(*command: str, ready: bool = False, redis: str = "") -> Iterator[subprocess.Popen[str]]:
    """A process of ours, and what it starts itself; all are killed at the end, by their ids."""
    with tempfile.TemporaryFile("w+") as complaints:
        child = subprocess.Popen(
            command,
            stdout=subprocess.PIPE if ready else subprocess.DEVNULL,
            stderr=complaints,
            text=True,
            cwd=ROOT,
            env={**os.environ, "BENCH_REDIS": redis, "RQ_REDIS_URL": redis},
        )
        try:
            if ready and not said(child).startswith("ready"):
                child.wait(CLIENT_SECONDS)
                complaints.seek(0)
                raise RuntimeError(f"{Path(command[0]).name} did not start: {last_line(complaints.read())}")
            yield child
        finally:
            kill(child)


def kill(child: subprocess.Popen[str]) -> None:
    """End a process that we started, and its own children, each by its id."""
    family: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(child.pid).children(recursive=True)
    child.kill()
    child.wait()
    for one in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    if child.stdout:
        child.stdout.close()


def said(child: subprocess.Popen[str]) -> str:
    """The next line that it prints; empty: it has ended."""
    return child.stdout.readline() if child.stdout else ""


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1]


def run_client(name: str, place: str, measure: str, count: int) -> dict[str, float]:
    """One measure of one queue, by a client process of its own."""
    command = [*module(name), "client", place, measure, str(count)]
    environment = {**os.environ, "BENCH_REDIS": place}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, env=environment, check=True, timeout=CLIENT_SECONDS
        )
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"{name} {measure}: {last_line(error.stderr)}") from error
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{name} {measure}: not done within {CLIENT_SECONDS} s") from error
    found: dict[str, float] = json.loads(last_line(done.stdout))
    return found


@contextlib.contextmanager
def server(command: Sequence[str], port: int) -> Iterator[None]:
    with started(*command):
        wait_for(port)
        yield


@contextlib.contextmanager
def scale0() -> Iterator[str]:
    with scale0_broker() as (front, back, _), started(*module("scale0_tasks"), "worker", back, ready=True):
        yield front


@contextlib.contextmanager
def jetstream() -> Iterator[str]:
    port = free_port()
    place = f"nats://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="nats-bench-") as folder:
        command = [nats_server(), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", folder]
        with server(command, port), started(*module("jetstream"), "worker", place, ready=True):
            yield place


def nats_server() -> str:
    return shutil.which("nats-server") or "nats-server"


@contextlib.contextmanager
def beanstalkd() -> Iterator[str]:
    port = free_port()
    place = f"127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="beanstalkd-bench-") as folder:
        command = ["beanstalkd", "-l", "127.0.0.1", "-p", str(port), "-b", folder, "-f0"]
        with server(command, port), started(*module("beanstalk"), "worker", place, ready=True):
            yield place


@contextlib.contextmanager
def redis(*worker: str, appendfsync: str = "") -> Iterator[str]:
    """Redis, and a worker that runs `worker`; by its own defaults: snapshots now and then, no append-only file."""
    port = free_port()
    place = f"redis://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="redis-bench-") as folder:
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--dir", folder]
        if appendfsync:
            command += ["--appendonly", "yes", "--appendfsync", appendfsync]
        with server(command, port), started(peers_python(), "-m", *worker, redis=place):
            yield place


def dramatiq(appendfsync: str = "") -> Any:
    return redis(
        *("dramatiq", "benchmarks.task_peers.dramatiq_redis", "--queues", "bench-noop"),
        *("--processes", "1", "--threads", str(DRAMATIQ_THREADS)),
        appendfsync=appendfsync,
    )


def celery(appendfsync: str = "") -> Any:
    return redis(
        *("celery", "--app", "benchmarks.task_peers.celery_redis", "worker", "--queues", "bench-noop"),
        *CELERY_POOL,
        *("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "ERROR"),
        appendfsync=appendfsync,
    )


def rq(appendfsync: str = "") -> Any:
    worker = ("worker", "bench-noop", "--quiet", "--worker-class", "rq.worker.SimpleWorker")
    return redis("rq.cli", *worker, appendfsync=appendfsync)

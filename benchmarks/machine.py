"""The machine of a run: enough to know which runs are comparable."""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
import threading
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import zmq

from benchmarks import postgres
from benchmarks.task_peers import servers
from benchmarks.tasks import probe
from scale0.cli.bench.command import filesystem_of
from scale0.cli.bench.measurements import Bounds, core
from tests.fakes.postgres import Server

PROBES = 500
CORE_SECONDS = 0.5


def processor() -> str:
    """As the kernel calls it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def machine(folder: str) -> dict[str, Any]:
    """Of this machine, and of the disk that `folder` is on."""
    fsync_p50_us, fsync_p99_us = probe(PROBES)
    return {
        "cores": os.cpu_count(),
        "processor": processor(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "libzmq": zmq.zmq_version(),
        "pyzmq": zmq.__version__,
        "uvloop": metadata.version("uvloop"),
        "sqlite": sqlite3.sqlite_version,
        "filesystem": filesystem_of(Path(folder)),
        "fsync_p50_us": round(fsync_p50_us),
        "fsync_p99_us": round(fsync_p99_us),
        "core_steps": round(core(Bounds(CORE_SECONDS, sys.maxsize, threading.Event()))),
        "load": round(os.getloadavg()[0], 2),
    }


def versions(with_postgres: bool) -> list[str]:
    """Of everything that is measured beside Scale0."""
    found = servers.versions()
    if with_postgres:
        server = Server()
        try:
            told = dict(one.split(" ", 1) for one in postgres.settings(server))
        finally:
            server.close()
        modes = f"fsync {told['fsync']}, synchronous_commit {told['synchronous_commit']}"
        found += [*servers.packages("procrastinate", "psycopg"), f"PostgreSQL {told['server_version']} ({modes})"]
    return found

"""How long a broker with many open tasks takes to start: from its process to its answer to a status request.

python -m benchmarks.restart [--tasks N] [--bytes N] [--clients N] [--mix queued|held|delayed] [--cold]
    [--rounds N] [--keep DIR]

It fills a SQLite store through the storage layer, starts a broker on it and prints one line of JSON: the seconds until
the first answer, the seconds of `Store.open` alone, and the memory of the process. `held`: the predecessor was killed
while all tasks were in its memory; `delayed`: all are due in an hour.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zmq

from scale0.storage.sqlite.store import SqliteStore
from scale0.storage.task_rows import QUEUED, SCHEDULED, AddTaskUsage, PutTask

COMMIT_TASKS = 20_000
MAGIC = b"SCALE0/1"
PING = [MAGIC, b"REQUEST", json.dumps({"service": "scale0.ping", "id": 1}).encode()]
WAIT_MILLISECONDS = 120_000


def tasks(count: int, size: int, clients: int, mix: str, now_us: int) -> Iterator[PutTask]:
    status = SCHEDULED if mix == "delayed" else QUEUED
    runnable_us = now_us + (3_600_000_000 if mix == "delayed" else 0)
    params = b'["' + b"x" * max(0, size - 4) + b'"]'
    for seq in range(1, count + 1):
        client = f"client-{seq % clients}"
        # fmt: off
        yield PutTask(
            seq, f"restart.{seq:012x}", client, f"method-{seq % 10}", params, 4, status, 0, 0, "", now_us,
            runnable_us + seq, 0, 0, mix == "queued", False, None, b"", b"", b"",
        )
        # fmt: on


def usage(chosen: Any) -> Iterator[AddTaskUsage]:
    """What a broker would have stored with these tasks."""
    for number in range(chosen.clients):
        count = len(range(number or chosen.clients, chosen.tasks + 1, chosen.clients))
        delayed = count if chosen.mix == "delayed" else 0
        yield AddTaskUsage(f"client-{number}", count, count * chosen.bytes, delayed)


def fill(folder: Path, chosen: Any) -> float:
    begun = time.perf_counter()
    store = SqliteStore(folder)
    store.open()
    batch: list[Any] = list(usage(chosen))
    for task in tasks(chosen.tasks, chosen.bytes, chosen.clients, chosen.mix, int(time.time() * 1e6)):
        batch.append(task)
        if len(batch) == COMMIT_TASKS:
            store.commit(batch)
            batch = []
    if batch:
        store.commit(batch)
    store.close()
    return time.perf_counter() - begun


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def time_to_answer(folder: Path) -> dict[str, float]:
    """Start a broker, and ask it until it answers."""
    command = [sys.executable, "-m", "scale0", "broker", "--identity", "restart", "--data-dir", str(folder)]
    port = free_port()
    command += ["--frontend-port", str(port), "--backend-port", "0", "--peer-port", "0"]
    command += ["--config-pub-port", "0", "--task-pub-port", "0", "--insecure"]
    begun = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.set(zmq.LINGER, 0)
    dealer.set(zmq.RECONNECT_IVL, 20)
    try:
        dealer.connect(f"tcp://127.0.0.1:{port}")
        dealer.send_multipart(PING)  # it is sent as soon as the broker listens
        if not dealer.poll(WAIT_MILLISECONDS):
            raise RuntimeError(f"the broker did not answer within {WAIT_MILLISECONDS} ms")
        answer = dealer.recv_multipart()
        seconds = time.perf_counter() - begun
        if answer[1] != b"REPLY":
            raise RuntimeError(repr(answer))
        time.sleep(2.0)  # what it loads after the start
        memory = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return {"seconds": seconds, "memory_mb": memory / 1e6}
    finally:
        context.destroy(linger=0)
        process.terminate()
        process.wait(30)


def evict(folder: Path) -> None:
    """Drop the files from the page cache, as after a restart of the host."""
    for file in folder.glob("scale0.db*"):
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def time_to_open(folder: Path) -> float:
    store = SqliteStore(folder)
    begun = time.perf_counter()
    store.open()
    seconds = time.perf_counter() - begun
    store.close()
    return seconds


def main() -> None:
    words = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    words.add_argument("--tasks", type=int, default=1_000_000)
    words.add_argument("--bytes", type=int, default=100)
    words.add_argument("--clients", type=int, default=100)
    words.add_argument("--mix", choices=["queued", "held", "delayed"], default="queued")
    words.add_argument("--rounds", type=int, default=3)
    words.add_argument("--keep", type=Path, help="use the store in this directory, and keep it")
    words.add_argument("--cold", action="store_true", help="without the database in the page cache")
    chosen = words.parse_args()
    folder = chosen.keep or Path(tempfile.mkdtemp(prefix="scale0-restart-"))
    try:
        filled = 0.0 if (folder / "scale0.db").exists() else fill(folder, chosen)
        found = []
        for _ in range(chosen.rounds):
            if chosen.cold:
                evict(folder)
            found.append(time_to_answer(folder))
        result = {
            "tasks": chosen.tasks,
            "bytes": chosen.bytes,
            "mix": chosen.mix,
            "cold": chosen.cold,
            "fill_seconds": round(filled, 2),
            "database_mb": round((folder / "scale0.db").stat().st_size / 1e6, 1),
            "seconds": [round(each["seconds"], 3) for each in found],
            "median_seconds": round(statistics.median(each["seconds"] for each in found), 3),
            "open_seconds": round(time_to_open(folder), 3),
            "memory_mb": round(max(each["memory_mb"] for each in found), 1),
        }
        print(json.dumps(result))
    finally:
        if chosen.keep is None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

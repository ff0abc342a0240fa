"""What is asked of Scale0 alone: what a task costs behind many others, and how soon a dead worker's tasks go on."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import psutil

from benchmarks.networks import scale0_broker
from benchmarks.task_peers import servers
from benchmarks.task_peers.shared import PAYLOAD, RESULT_SECONDS

SHALLOW = 1_000
DEEP = 1_000_000
QUICK_DEEP = 20_000
DRAIN_TASKS = 20_000
DRAINS = 3
IN_HAND = (1, 1_000)
KILLS = 3
HEARTBEAT_SECONDS = 1.0
HOLD = "bench-hold"
"""The service of the workers `hold` and `quick`."""

Note = Callable[[str], None]


def cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def preload(front: str, count: int) -> dict[str, float]:
    return servers.run_client("scale0_tasks", front, "preload", count)


def drained(back: str, broker: int, count: int) -> tuple[float, float]:
    """A new worker does `count` of the queued tasks and leaves: seconds, and the broker's processor seconds."""
    with servers.started(*servers.module("scale0_tasks"), "drain", back, str(count), ready=True) as worker:
        if not servers.said(worker).startswith("begun"):
            raise RuntimeError("the worker got no task")
        start, cpu = time.perf_counter(), cpu_seconds(broker)
        if not servers.said(worker).startswith("done"):
            raise RuntimeError("the worker did not get all tasks")
        found = time.perf_counter() - start, cpu_seconds(broker) - cpu
        worker.wait(RESULT_SECONDS)
    return found


def depth(quick: bool, note: Note) -> dict[str, Any]:
    """The broker's cost of a task with a thousand and with a million others queued behind it."""
    drain, drains = (DRAIN_TASKS // 10, 1) if quick else (DRAIN_TASKS, DRAINS)
    deep = QUICK_DEEP if quick else DEEP
    seconds: dict[int, list[float]] = {SHALLOW: [], deep: []}
    cpu: dict[int, list[float]] = {SHALLOW: [], deep: []}
    memory: dict[int, int] = {}
    rates: dict[str, float] = {}
    with scale0_broker() as (front, back, broker):
        # One after the other in one broker: what the million adds to its memory is then seen by itself.
        for queued in (SHALLOW, deep):
            rates = preload(front, queued if queued == SHALLOW else queued - SHALLOW)
            time.sleep(1.0)
            memory[queued] = psutil.Process(broker.pid).memory_info().rss
            for _ in range(drains):
                preload(front, drain)
                wall, spent = drained(back, broker.pid, drain)
                seconds[queued].append(wall / drain * 1e6)
                cpu[queued].append(spent / drain * 1e6)
            note(f"drained behind {queued:,}")
    shallow_cpu, deep_cpu = statistics.median(cpu[SHALLOW]), statistics.median(cpu[deep])
    return {
        f"µs for a task, {SHALLOW:,} queued": seconds[SHALLOW],
        f"µs for a task, {deep:,} queued": seconds[deep],
        f"µs of the broker's processor, {SHALLOW:,} queued": cpu[SHALLOW],
        f"µs of the broker's processor, {deep:,} queued": cpu[deep],
        "ratio of the processor's medians": deep_cpu / shallow_cpu,
        "ratio of the times' medians": statistics.median(seconds[deep]) / statistics.median(seconds[SHALLOW]),
        "broker's memory in MB, shallow": memory[SHALLOW] / 1e6,
        "broker's memory in MB, deep": memory[deep] / 1e6,
        "bytes of memory for each queued task": (memory[deep] - memory[SHALLOW]) / (deep - SHALLOW),
        "submissions a second, the first 100,000": rates["first_rate"],
        "submissions a second, the last 100,000": rates["last_rate"],
    }


def killed_once(count: int) -> float:
    """Seconds from the kill of a worker with `count` tasks in hand until all their results are in hand."""
    import scale0

    with (
        scale0_broker(default_heartbeat_interval=HEARTBEAT_SECONDS) as (front, back, _),
        servers.started(*servers.module("scale0_tasks"), "hold", back, str(count), ready=True) as backend,
        scale0.Client(front) as net,
    ):
        tasks = net.submit_many(HOLD, [PAYLOAD] * count)
        if not servers.said(backend).startswith("holding"):
            raise RuntimeError("the worker did not take all tasks")
        with servers.started(*servers.module("scale0_tasks"), "quick", back, ready=True):
            # Heartbeats have a phase: a kill must not always meet the same one.
            time.sleep(random.uniform(0.0, HEARTBEAT_SECONDS))
            start = time.perf_counter()
            backend.kill()
            for task in tasks:
                task.result(RESULT_SECONDS)
            return time.perf_counter() - start


def killed(quick: bool, note: Note) -> dict[str, Any]:
    """Seconds until the tasks of a worker that was killed have run elsewhere; it had a heartbeat of one second."""
    found: dict[str, Any] = {}
    for count in IN_HAND:
        found[f"seconds, {count:,} in hand"] = [killed_once(count) for _ in range(1 if quick else KILLS)]
        note(f"killed with {count:,} in hand")
    return found

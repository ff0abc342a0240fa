"""Durable tasks: Scale0 beside JetStream, Dramatiq, Celery and beanstalkd, measured in one run on this machine.

python -m benchmarks.tasks [--quick] [--rounds N] [--json FILE] [--data FOLDER] [side] [depth] [killed]

`side`: side by side, in rounds, each with all contenders in another order. `depth`: what a task costs with a thousand
and with a million others queued. `killed`: how soon the tasks of a killed worker run elsewhere. Without words: all of
them, within six minutes. A peer that is not installed is left out, and a line says so.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.ends import quantiles
from benchmarks.task_peers import servers
from benchmarks.task_peers.ours import depth, killed

ROUNDS = 5
ROUNDS_SECONDS = 200
"""No further round is begun that would end later: the whole run must end by itself."""
QUICK_SHARE = 20
"""A quick run measures so many times fewer tasks."""
SINGLE_TASKS = 500
PROBES = 500
PROBE_BYTES = 4_096

RESULTS = "tasks a second, result fetched, one worker"
SUBMIT = "acknowledged submissions a second"
SINGLE = "one at a time, from submission to result, µs"
PROBE = "the disk: 4 KiB written and synchronised"
OURS = "Scale0"


@dataclass(frozen=True)
class Row:
    """One figure: in which table, of whom, and how it is taken."""

    table: str
    name: str
    measure: str
    count: int


@dataclass(frozen=True)
class Contender:
    name: str
    module: str
    network: Callable[[], Any]
    rows: tuple[Row, ...]
    needs: tuple[str, str] | None
    """A program and a package."""
    durability: str


CONTENDERS = (
    Contender(
        OURS,
        "scale0_tasks",
        servers.scale0,
        (
            Row(RESULTS, OURS, "results", 100_000),
            Row(SINGLE, OURS, "single", SINGLE_TASKS),
            Row(SUBMIT, OURS, "submit", 100_000),
        ),
        None,
        "every task, hand-out and result is synchronised to disk before it is acknowledged or sent",
    ),
    Contender(
        "JetStream",
        "jetstream",
        servers.jetstream,
        (
            Row(RESULTS, "JetStream, publish_async and fetch", "results", 70_000),
            Row(RESULTS, "JetStream, by hand", "results_by_hand", 120_000),
            Row(RESULTS, "JetStream, by hand, results stored", "results_stored", 100_000),
            Row(SUBMIT, "JetStream, publish_async", "submit", 80_000),
            Row(SUBMIT, "JetStream, by hand", "submit_by_hand", 150_000),
        ),
        ("nats-server", "nats, uvloop"),
        "written to files, synchronised a minute or two later (its default); results are plain messages unless stored",
    ),
    Contender(
        "Dramatiq",
        "dramatiq_redis",
        servers.dramatiq,
        (Row(RESULTS, "Dramatiq, Redis", "results", 5_000), Row(SUBMIT, "Dramatiq, Redis", "submit", 8_000)),
        ("redis-server", "dramatiq, redis"),
        "in memory; a snapshot after a minute with 10,000 changes, no append-only file",
    ),
    Contender(
        "Celery",
        "celery_redis",
        servers.celery,
        (Row(RESULTS, "Celery, Redis", "results", 1_500), Row(SUBMIT, "Celery, Redis", "submit", 3_000)),
        ("redis-server", "celery, redis"),
        "in memory; a snapshot after a minute with 10,000 changes, no append-only file",
    ),
    Contender(
        "beanstalkd",
        "beanstalk",
        servers.beanstalkd,
        (
            Row(RESULTS, "beanstalkd -f0", "results", 5_000),
            Row(SINGLE, "beanstalkd -f0", "single", SINGLE_TASKS),
            Row(SUBMIT, "beanstalkd -f0", "submit", 12_000),
        ),
        ("beanstalkd", "socket"),
        "every put and delete is synchronised to disk before it is acknowledged",
    ),
)


@dataclass
class Figures:
    """What was measured: by table and name, one value for each round; of SINGLE a pair (p50, p99)."""

    tables: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, table: str, name: str, value: Any) -> None:
        self.tables.setdefault(table, {}).setdefault(name, []).append(value)


def note(line: str) -> None:
    print(f"  {line}", file=sys.stderr, flush=True)


def probe(count: int) -> tuple[float, float]:
    """The disk's own p50 and p99 for one synchronised write, in microseconds; the file has its size already."""
    with tempfile.NamedTemporaryFile(prefix="probe-bench-", buffering=0) as file:
        number = file.fileno()
        os.pwrite(number, b"x" * PROBE_BYTES * count, 0)
        os.fsync(number)
        times = []
        for place in range(count):
            start = time.perf_counter()
            os.pwrite(number, b"y" * PROBE_BYTES, place * PROBE_BYTES)
            os.fdatasync(number)
            times.append(time.perf_counter() - start)
    found = quantiles(times)
    return found["p50"], found["p99"]


def measure(contender: Contender, figures: Figures, share: int) -> None:
    """All rows of one contender, on servers of its own."""
    with contender.network() as place:
        for row in contender.rows:
            count = max(SINGLE_TASKS // 5, row.count // share)
            if row.table == SINGLE:
                figures.add(SINGLE, PROBE, probe(PROBES))
            found = servers.run_client(contender.module, place, row.measure, count)
            figures.add(row.table, row.name, found.get("rate") or (found["p50"], found["p99"]))


def side(quick: bool, rounds: int) -> Figures:
    """All contenders side by side, in rounds."""
    figures = Figures()
    present = []
    for contender in CONTENDERS:
        gap = servers.missing(*contender.needs) if contender.needs else None
        if gap is None:
            present.append(contender)
        else:
            print(f"left out: {contender.name}: {gap}", flush=True)
    start = time.monotonic()
    for number in range(1 if quick else rounds):
        spent = time.monotonic() - start
        if number and spent / number * (number + 1) > ROUNDS_SECONDS:
            break
        turn = number % len(present)
        for contender in present[turn:] + present[:turn]:
            try:
                measure(contender, figures, QUICK_SHARE if quick else 1)
            except (RuntimeError, OSError) as error:
                figures.failures.append(f"round {number + 1}: {error}")
                note(f"failed: {error}")
        note(f"round {number + 1} after {time.monotonic() - start:.0f} s")
    return figures


def table_lines(name: str, rows: dict[str, list[Any]]) -> list[str]:
    """A table: medians over the rounds, their spread, and what Scale0 is in relation to each."""
    ours = rows.get(OURS)
    if name == SINGLE:
        lines = [f"| {name} | p50 | p99 | Scale0's p50 to it |", "| --- | --- | --- | --- |"]
        for who, pairs in rows.items():
            p50, p99 = (statistics.median(pair[place] for pair in pairs) for place in (0, 1))
            ratio = f"{statistics.median(pair[0] for pair in ours) / p50:.2f}" if ours and who != OURS else ""
            lines.append(f"| {who} | {p50:,.0f} | {p99:,.0f} | {ratio} |")
        return lines
    lines = [f"| {name} | median | least to most | rounds | Scale0's ratio to it |", "| --- | --- | --- | --- | --- |"]
    for who, values in rows.items():
        middle = statistics.median(values)
        ratio = f"{statistics.median(ours) / middle:.2f}" if ours and who != OURS else ""
        lines.append(f"| {who} | {middle:,.0f} | {min(values):,.0f} to {max(values):,.0f} | {len(values)} | {ratio} |")
    return lines


def in_order(table: str, rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
    names = [row.name for contender in CONTENDERS for row in contender.rows if row.table == table] + [PROBE]
    return {name: rows[name] for name in names if name in rows}


def show_side(figures: Figures) -> None:
    for table in (RESULTS, SUBMIT, SINGLE):
        if table in figures.tables:
            print("\n" + "\n".join(table_lines(table, in_order(table, figures.tables[table]))))
    print("\nWhat each promises:")
    for contender in CONTENDERS:
        print(f"  {contender.name}: {contender.durability}")
    for failure in figures.failures:
        print(f"failed: {failure}")


def show(name: str, found: dict[str, Any]) -> None:
    print(f"\n{name}:")
    for key, value in found.items():
        shown = ", ".join(f"{one:,.2f}" for one in value) if isinstance(value, list) else f"{value:,.2f}"
        print(f"  {key:48} {shown}")


def read_arguments() -> argparse.Namespace:
    reader = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    reader.add_argument("parts", nargs="*", metavar="side|depth|killed", help="only these parts")
    reader.add_argument("--quick", action="store_true", help="one round with few tasks: does everything work?")
    reader.add_argument("--rounds", type=int, default=ROUNDS)
    reader.add_argument("--json", type=Path, metavar="FILE", help="write all figures here")
    reader.add_argument("--data", metavar="FOLDER", help="where servers keep their data (the system's place for that)")
    return reader.parse_args()


def main() -> int:
    arguments = read_arguments()
    parts = arguments.parts or ["side", "depth", "killed"]
    if unknown := set(parts) - {"side", "depth", "killed"}:
        raise SystemExit(f"no such part: {', '.join(sorted(unknown))}")
    tempfile.tempdir = arguments.data or tempfile.tempdir
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    print(f"{time.strftime('%Y-%m-%d')}, {machine}, load before {os.getloadavg()[0]:.2f}", flush=True)
    print(f"with {', '.join(servers.versions())}", flush=True)
    start = time.monotonic()
    written: dict[str, Any] = {"versions": servers.versions()}
    failed = False
    if "side" in parts:
        figures = side(arguments.quick, arguments.rounds)
        show_side(figures)
        written["side"] = {"tables": figures.tables, "failures": figures.failures}
        failed = bool(figures.failures)
    for name, part in (("depth", depth), ("killed", killed)):
        if name in parts:
            try:
                written[name] = part(arguments.quick, note)
                show(name, written[name])
            except (RuntimeError, OSError) as error:
                failed = True
                print(f"failed: {name}: {error}")
    print(f"\ntook {time.monotonic() - start:.0f} s, load after {os.getloadavg()[0]:.2f}")
    if arguments.json:
        with contextlib.suppress(FileNotFoundError):
            arguments.json.unlink()
        arguments.json.write_text(json.dumps(written, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Tasks of a group on PostgreSQL: Scale0 beside Procrastinate on the same server, and two brokers beside one.

python -m benchmarks.postgres [--quick] [--rounds N] [--json FILE] [--data FOLDER]

One PostgreSQL by its own defaults, so that a commit is on disk before it is acknowledged; every measure has a database
of its own. In rounds, each in the other order than the last one.
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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import conninfo

from benchmarks.networks import free_port, scale0_broker
from benchmarks.task_peers import servers
from benchmarks.tasks import OURS, QUICK_SHARE, RESULTS, SUBMIT, Figures, note, table_lines
from tests.fakes.postgres import Server

ROUNDS = 3
GROUP = "bench"
FEWEST = 200
CONCURRENCIES = (100, 10)
AIM = 5.0
BROKERS = "tasks a second, result fetched, a worker and a client for each broker"
TWO = "two brokers of a group"
ENDS = "scale0_tasks"
PEER = "procrastinate_pg"
SETTINGS = ("server_version", "fsync", "synchronous_commit", "wal_sync_method", "shared_buffers")
PROMISES = (
    "Scale0: every task, hand-out and result is committed before it is acknowledged or sent; results are kept",
    "Procrastinate: every job, fetch and end is committed; it keeps no results, so none are fetched",
)


@dataclass(frozen=True)
class Row:
    """One figure: in which table, of whom, and how it is taken on an empty database."""

    table: str
    name: str
    count: int
    take: Callable[[str, int], float]


def url_of(database: str) -> str:
    """As a broker's file has it."""
    parts = conninfo.conninfo_to_dict(database)
    return f"postgresql://{parts['user']}@{str(parts['host']).replace('/', '%2F')}/{parts['dbname']}"


@contextlib.contextmanager
def broker(database: str, **more: object) -> Iterator[str]:
    """A broker on that database and one worker: its front."""
    with (
        scale0_broker(store=url_of(database), group=GROUP, **more) as (front, back, _),
        servers.started(*servers.module(ENDS), "worker", back, ready=True),
    ):
        yield front


def ours(measure: str) -> Callable[[str, int], float]:
    def take(database: str, count: int) -> float:
        with broker(database) as front:
            return servers.run_client(ENDS, front, measure, count)["rate"]

    return take


def two_brokers(database: str, count: int) -> float:
    """What both clients got done together, in the time of the slower one."""
    peer = free_port()
    with (
        broker(database, identity="first", peer_port=peer, config_service=True) as first,
        broker(database, identity="second", state="joining", peers=[f"tcp://127.0.0.1:{peer}"]) as second,
        ThreadPoolExecutor(2) as pool,
    ):
        found = pool.map(lambda front: servers.run_client(ENDS, front, "results", count // 2), (first, second))
        return 2 * min(one["rate"] for one in found)


def peer(measure: str, concurrency: int) -> Callable[[str, int], float]:
    """Of Procrastinate; a concurrency of 0 is no worker."""

    def take(database: str, count: int) -> float:
        with servers.started(*servers.module(PEER), "schema", database) as made:
            if made.wait(servers.CLIENT_SECONDS):
                raise RuntimeError("Procrastinate's schema could not be made")
        with contextlib.ExitStack() as stack:
            if concurrency:
                command = [*servers.module(PEER), "worker", database, str(concurrency)]
                stack.enter_context(servers.started(*command, ready=True))
            return servers.run_client(PEER, database, measure, count)["rate"]

    return take


OUR_ROWS = (
    Row(RESULTS, OURS, 40_000, ours("results")),
    Row(SUBMIT, OURS, 60_000, ours("submit")),
    Row(BROKERS, TWO, 40_000, two_brokers),
)
PEER_ROWS = (
    *(
        Row(RESULTS, f"Procrastinate, {deferred}, concurrency {at_once}", 4_000, peer(measure, at_once))
        for measure, deferred in (("results", "`defer_async`"), ("results_batch", "`batch_defer_async`"))
        for at_once in CONCURRENCIES
    ),
    Row(SUBMIT, "Procrastinate, `defer_async`", 8_000, peer("submit", 0)),
    Row(SUBMIT, "Procrastinate, `batch_defer_async`", 60_000, peer("submit_batch", 0)),
)


def measure(server: Server, row: Row, share: int) -> float:
    database = server.database()
    try:
        return row.take(database, max(FEWEST, row.count // share))
    finally:
        server.drop(database)


def settings(server: Server) -> list[str]:
    with psycopg.connect(server.url) as connection:
        found = [connection.execute(f"SHOW {name}".encode()).fetchone() for name in SETTINGS]
    return [f"{name} {value[0]}" for name, value in zip(SETTINGS, found, strict=True) if value]


def rounds(server: Server, rows: tuple[Row, ...], number: int, share: int) -> Figures:
    figures = Figures()
    for turn in range(number):
        for row in reversed(rows) if turn % 2 else rows:
            try:
                rate = measure(server, row, share)
            except (RuntimeError, OSError) as error:
                figures.failures.append(f"round {turn + 1}: {row.name}: {error}")
                note(f"failed: {row.name}: {error}")
                continue
            figures.add(row.table, row.name, rate)
            note(f"round {turn + 1}, load {os.getloadavg()[0]:.1f}: {row.name}, {row.table}: {rate:,.0f}")
    return figures


def in_order(figures: Figures, table: str) -> dict[str, list[Any]]:
    found = figures.tables.get(table, {})
    return {row.name: found[row.name] for row in (*OUR_ROWS, *PEER_ROWS) if row.table == table and row.name in found}


def show(figures: Figures) -> None:
    for table in (RESULTS, SUBMIT):
        rows = in_order(figures, table)
        if rows:
            print("\n" + "\n".join(table_lines(table, rows)))
            best(table, {name: statistics.median(values) for name, values in rows.items()})
    one, two = (figures.tables.get(table, {}).get(name) for table, name in ((RESULTS, OURS), (BROKERS, TWO)))
    if one and two:
        print("\n" + "\n".join(table_lines(BROKERS, {OURS: one, TWO: two})))
        print(f"two brokers do {statistics.median(two) / statistics.median(one):.2f} times what one does")
    print("\nWhat each promises:")
    for line in PROMISES:
        print(f"  {line}")
    for failure in figures.failures:
        print(f"failed: {failure}")


def best(table: str, medians: dict[str, float]) -> None:
    """Scale0 beside the best of the others."""
    own = medians.pop(OURS, None)
    if own is None or not medians:
        return
    name = max(medians, key=lambda each: medians[each])
    ratio = own / medians[name]
    aim = f"; wanted: at least {AIM:.0f}: {'reached' if ratio >= AIM else 'missed'}" if table == RESULTS else ""
    print(f"{ratio:.2f} times the best other: {name}{aim}")


def read_arguments() -> argparse.Namespace:
    reader = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    reader.add_argument("--quick", action="store_true", help="one round with few tasks: does everything work?")
    reader.add_argument("--rounds", type=int, default=ROUNDS)
    reader.add_argument("--json", type=Path, metavar="FILE", help="write all figures here")
    reader.add_argument("--data", metavar="FOLDER", help="where servers keep their data (the system's place for that)")
    return reader.parse_args()


def main() -> int:
    arguments = read_arguments()
    tempfile.tempdir = arguments.data or tempfile.tempdir
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    print(f"{time.strftime('%Y-%m-%d')}, {machine}, load before {os.getloadavg()[0]:.2f}", flush=True)
    gap = servers.missing(None, "procrastinate, psycopg, uvloop")
    if gap:
        print(f"left out: Procrastinate: {gap}", flush=True)
    start = time.monotonic()
    server = Server()
    try:
        versions = [f"PostgreSQL: {', '.join(settings(server))}", *servers.packages("procrastinate", "psycopg")]
        print(f"with {', '.join(versions)}", flush=True)
        rows = OUR_ROWS if gap else (*OUR_ROWS, *PEER_ROWS)
        number, share = (1, QUICK_SHARE) if arguments.quick else (arguments.rounds, 1)
        figures = rounds(server, rows, number, share)
    finally:
        server.close()
    show(figures)
    print(f"\ntook {time.monotonic() - start:.0f} s, load after {os.getloadavg()[0]:.2f}")
    if arguments.json:
        written = {"versions": versions, "tables": figures.tables, "failures": figures.failures}
        arguments.json.write_text(json.dumps(written, indent=1) + "\n")
    return 1 if figures.failures else 0


if __name__ == "__main__":
    sys.exit(main())

"""A real cluster of two workers on this machine: it makes the same tables as one process does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from scale0.pipeline import reading
from simulator.history import generate

SCRIPT = Path(__file__).parents[2] / "scripts" / "spark-cluster"
LOOPBACK = "127.0.0.1"
SMALL = ("--memory", "1g", "--conf", "spark.sql.shuffle.partitions=2")
HERE = ("--conf", f"spark.driver.host={LOOPBACK}", "--conf", f"spark.driver.bindAddress={LOOPBACK}")
EVENTS = 20_000
MAX_SECONDS = 900
"""Four JVMs on a machine that may do much else."""

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(MAX_SECONDS), pytest.mark.extended]


@pytest.fixture
def cluster() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, SCRIPT], stdout=subprocess.PIPE, text=True) as child:
        yield child
        child.terminate()


def master_of(cluster: subprocess.Popen[str]) -> str:
    assert cluster.stdout is not None
    return cluster.stdout.readline().strip()


def run(segments: Path, warehouse: Path, *more: str) -> None:
    command = [sys.executable, "-m", "scale0", "pipeline", "run", "--segments", str(segments)]
    subprocess.run([*command, "--warehouse", str(warehouse), *SMALL, *more], check=True, timeout=MAX_SECONDS)


def rows(warehouse: Path, table: str) -> list[str]:
    return sorted(map(repr, reading.open_arrow(warehouse, table).to_pylist()))


def test_a_cluster_of_two_workers_makes_the_tables_that_one_process_makes(
    tmp_path: Path, cluster: subprocess.Popen[str]
):
    segments, alone, together = (tmp_path / name for name in ("segments", "alone", "together"))
    generate(events=EVENTS, days=2, seed=7, out=segments)
    run(segments, alone, "--master", "local[1]")
    run(segments, together, "--master", master_of(cluster), *HERE)
    tables = reading.tables(alone)
    assert {"task_stats", "timeline", "availability", "tasks"} <= set(tables)
    assert rows(alone, "timeline")
    assert [table for table in tables if rows(alone, table) != rows(together, table)] == []


def test_a_cluster_listens_on_loopback_alone_and_leaves_nothing_running(cluster: subprocess.Popen[str]):
    assert master_of(cluster).startswith(f"spark://{LOOPBACK}:")
    children = psutil.Process(cluster.pid).children()
    sockets = [one for child in children for one in child.net_connections()]
    addresses = [one.laddr.ip for one in sockets if one.status == psutil.CONN_LISTEN]
    assert len(children) == 3
    assert addresses
    assert {address.removeprefix("::ffff:") for address in addresses} == {LOOPBACK}
    cluster.terminate()
    assert cluster.wait() == 0
    assert not any(child.is_running() for child in children)

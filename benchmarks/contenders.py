"""The contenders of `make bench`: what is measured of each, and what each guarantees when it answers.

Invariant: the contenders of one table are measured in the same way, as far as their features allow.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import curve, postgres
from benchmarks.networks import nats_network, proxy_network, run_client, scale0_network
from benchmarks.task_peers import servers
from tests.fakes.postgres import Server

REQUESTS, REQUESTS_SINGLE = "requests", "requests_single"
TASKS, SUBMISSIONS, TASKS_SINGLE = "tasks", "submissions", "tasks_single"
PG_TASKS, PG_SUBMISSIONS = "postgres_tasks", "postgres_submissions"
FEWEST = 200

Take = Callable[[Any, int], dict[str, float]]


@dataclass(frozen=True)
class Row:
    """One figure: in which table, of whom, how many are done for it, and how."""

    table: str
    name: str
    count: int
    take: Take


@dataclass(frozen=True)
class Contender:
    """One network or queue: how it is started, and what is measured of it each time."""

    part: str
    name: str
    promise: str
    network: Callable[[], Any]
    """A context manager; what it yields is given to each `take`."""
    rows: tuple[Row, ...]
    needs: tuple[str | None, str] | None = None
    """A program and Python packages of the peers' interpreter."""
    ours: bool = False


def requests(client: str, in_flight: int = 100) -> Take:
    return lambda place, count: run_client(client, place, count, in_flight)


def tasks(module: str, measure: str) -> Take:
    return lambda place, count: servers.run_client(module, place, measure, count)


@contextlib.contextmanager
def curve_network() -> Iterator[tuple[str, str]]:
    with tempfile.TemporaryDirectory(prefix="scale0-bench-") as folder:
        data_dir = str(Path(folder) / "data")
        with curve.network(curve.COMPARISONS["curve"].safe, data_dir) as front:
            yield front, data_dir


def with_keys(take: Take) -> Take:
    def taken(place: tuple[str, str], count: int) -> dict[str, float]:
        with curve.keys_in(place[1]):
            return take(place[0], count)

    return taken


@contextlib.contextmanager
def postgres_server() -> Iterator[Server]:
    server = Server()
    try:
        yield server
    finally:
        server.close()


def on_postgres(take: Callable[[str, int], float]) -> Take:
    """On an empty database."""

    def taken(server: Server, count: int) -> dict[str, float]:
        return {"rate": postgres.measure(server, postgres.Row("", "", count, take), 1)}

    return taken


def redis_queue(
    name: str, module: str, results: int, submit: int, network: Callable[[str], Any], needs: str
) -> Iterator[Contender]:
    """One queue on Redis, with each of the two ways in which Redis keeps anything at once."""
    for mode, promise in (
        ("always", "Redis, `appendfsync always`: every command is synchronised to disk before it is answered"),
        ("everysec", "Redis, `appendfsync everysec`: a second of what was acknowledged may be lost"),
    ):
        label = f"{name}, Redis, {mode}"
        rows = (
            Row(TASKS, label, results, tasks(module, "results")),
            Row(SUBMISSIONS, label, submit, tasks(module, "submit")),
        )
        yield Contender("tasks", label, promise, partial(network, mode), rows, ("redis-server", needs))


DURABLE = "every task, hand-out and result is synchronised to disk before it is acknowledged or sent"
NOT_STORED = "services, deadlines, heartbeats; a request is not stored"
FILES_LATER = "written to files, synchronised a minute or two later (its default); results as the row says"
ON_POSTGRES = "committed to PostgreSQL, `synchronous_commit` on"

CONTENDERS = (
    Contender(
        "requests",
        "Scale0",
        NOT_STORED,
        scale0_network,
        (
            Row(REQUESTS, "Scale0, in batches (`Client.map`)", 100_000, requests("scale0-client")),
            Row(REQUESTS, "Scale0, one by one (`AsyncClient`)", 60_000, requests("scale0-async-client")),
            Row(REQUESTS_SINGLE, "Scale0", 2_000, requests("scale0-client", 1)),
        ),
        ours=True,
    ),
    Contender(
        "requests",
        "Scale0, CURVE",
        f"{NOT_STORED}; everything encrypted, both ends known by their keys",
        curve_network,
        (
            Row(REQUESTS, "Scale0, in batches, CURVE", 80_000, with_keys(requests("scale0-client"))),
            Row(REQUESTS_SINGLE, "Scale0, CURVE", 2_000, with_keys(requests("scale0-client", 1))),
        ),
        ours=True,
    ),
    Contender(
        "requests",
        "zmq.proxy",
        "libzmq's own proxy in C: no services, no deadlines, no heartbeats",
        proxy_network,
        (
            Row(REQUESTS, "`zmq.proxy`, pyzmq", 80_000, requests("proxy-client")),
            Row(REQUESTS_SINGLE, "`zmq.proxy`, pyzmq", 3_000, requests("proxy-client", 1)),
        ),
    ),
    Contender(
        "requests",
        "NATS",
        "request and reply by subject; nothing is stored",
        nats_network,
        (
            Row(REQUESTS, "NATS, nats-py", 50_000, requests("nats-client")),
            Row(REQUESTS_SINGLE, "NATS, nats-py", 3_000, requests("nats-client", 1)),
        ),
        # Its ends run in our own interpreter, which has nats-py for tests.
        ("nats-server", "sys"),
    ),
    Contender(
        "tasks",
        "Scale0",
        DURABLE,
        servers.scale0,
        (
            Row(TASKS, "Scale0, SQLite", 60_000, tasks("scale0_tasks", "results")),
            Row(SUBMISSIONS, "Scale0, SQLite", 80_000, tasks("scale0_tasks", "submit")),
            Row(TASKS_SINGLE, "Scale0, SQLite", 500, tasks("scale0_tasks", "single")),
        ),
        ours=True,
    ),
    Contender(
        "tasks",
        "JetStream",
        FILES_LATER,
        servers.jetstream,
        (
            Row(TASKS, "JetStream, nats-py, results not stored", 50_000, tasks("jetstream", "results")),
            Row(TASKS, "JetStream, by hand, results stored", 60_000, tasks("jetstream", "results_stored")),
            Row(SUBMISSIONS, "JetStream, nats-py", 60_000, tasks("jetstream", "submit")),
            Row(SUBMISSIONS, "JetStream, by hand", 100_000, tasks("jetstream", "submit_by_hand")),
        ),
        ("nats-server", "nats, uvloop"),
    ),
    *redis_queue("Dramatiq", "dramatiq_redis", 3_000, 5_000, servers.dramatiq, "dramatiq, redis"),
    *redis_queue("Celery", "celery_redis", 1_000, 1_500, servers.celery, "celery, redis"),
    *redis_queue("RQ", "rq_redis", 600, 5_000, servers.rq, "rq, redis"),
    Contender(
        "tasks",
        "beanstalkd",
        "`-f0`: every put and delete is synchronised to disk before it is acknowledged",
        servers.beanstalkd,
        (
            Row(TASKS, "beanstalkd", 4_000, tasks("beanstalk", "results")),
            Row(SUBMISSIONS, "beanstalkd", 8_000, tasks("beanstalk", "submit")),
            Row(TASKS_SINGLE, "beanstalkd", 500, tasks("beanstalk", "single")),
        ),
        ("beanstalkd", "socket"),
    ),
    Contender(
        "postgres",
        "Scale0",
        f"every task, hand-out and result is {ON_POSTGRES}; results are kept, and fetched",
        postgres_server,
        (
            Row(PG_TASKS, "Scale0, PostgreSQL", 15_000, on_postgres(postgres.ours("results"))),
            Row(PG_SUBMISSIONS, "Scale0, PostgreSQL", 20_000, on_postgres(postgres.ours("submit"))),
        ),
        ours=True,
    ),
    Contender(
        "postgres",
        "Procrastinate",
        f"every job, fetch and end is {ON_POSTGRES}; it keeps no results, so none are fetched",
        postgres_server,
        (
            Row(PG_TASKS, "Procrastinate, `defer_async`", 1_000, on_postgres(postgres.peer("results", 10))),
            Row(PG_TASKS, "Procrastinate, `batch_defer_async`", 1_000, on_postgres(postgres.peer("results_batch", 10))),
            Row(PG_SUBMISSIONS, "Procrastinate, `defer_async`", 2_000, on_postgres(postgres.peer("submit", 0))),
            Row(
                PG_SUBMISSIONS,
                "Procrastinate, `batch_defer_async`",
                20_000,
                on_postgres(postgres.peer("submit_batch", 0)),
            ),
        ),
        (None, "procrastinate, psycopg, uvloop"),
    ),
)
PARTS = tuple(dict.fromkeys(one.part for one in CONTENDERS))

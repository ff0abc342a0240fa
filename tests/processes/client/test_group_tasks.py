"""Brokers of a group on one PostgreSQL, killed under load: their tasks go on elsewhere, and run once.

Promise: TASK-15, TASK-16, NEGO-5
"""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

import scale0
from scale0.errors import NotStored
from tests.fakes.postgres import as_url, postgres_database, postgres_server, postgres_url
from tests.fakes.waiting import until
from tests.processes.client.handlers import double
from tests.processes.client.net import brokers, client_of, is_there, started, working

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.extended]

__all__ = ["postgres_database", "postgres_server", "postgres_url"]

KILLS = 4
MORE = 100
"""Tasks that are submitted before a kill, and after it."""
RESULT_SECONDS = 60


def grow(tasks: list[scale0.Task]) -> None:
    """Wait until so many more are taken."""
    enough = len(tasks) + MORE
    until(lambda: len(tasks) >= enough, "submissions go on")


def taken(net: scale0.Client, number: int) -> scale0.Task | None:
    """A task, unless nothing can be stored now."""
    try:
        return net.submit("double", number)
    except NotStored:
        return None


def test_a_running_task_is_finished_at_another_broker_and_its_client_is_notified(tmp_path, postgres_url):
    release, ran = threading.Event(), []

    def build(what: str) -> str:
        ran.append((what, scale0.attempt()))
        assert release.wait(RESULT_SECONDS)
        return f"{what} is built"

    with (
        brokers(tmp_path, "a", "b", store=as_url(postgres_url)) as group,
        working(group["a"], build, identity="builder"),
        client_of(group["a"], timeout=30) as net,
    ):
        task = net.submit("build", "a ship")
        until(lambda: ran)
        group["a"].kill9()
        until(lambda: is_there(group["b"], "builder"), "the worker goes to the other broker")
        release.set()
        assert task.result(timeout=RESULT_SECONDS) == "a ship is built"
    assert ran == [("a ship", 1)]


def test_whichever_broker_is_killed_every_task_is_done_and_none_twice(tmp_path, postgres_url):
    ran: Counter[int] = Counter()

    def counted(number: int) -> int:
        ran[number] += 1
        time.sleep(0.005)  # the work
        return 2 * number

    with brokers(tmp_path, "a", "b", "c", store=as_url(postgres_url)) as group:
        workers = [scale0.Worker(group[name].endpoints["backend"], identity=f"at-{name}") for name in ("a", "b")]
        for worker in workers:
            worker.add("double", counted, slots=4)
        submitted: list[scale0.Task] = []
        stop = threading.Event()

        def submit_on_and_on(net: scale0.Client) -> None:
            number = 0
            while not stop.is_set():
                submitted.append(net.submit("double", number))
                number += 1

        with started(workers[0]), started(workers[1]), client_of(group["c"], timeout=30) as net:
            thread = threading.Thread(target=submit_on_and_on, args=(net,), daemon=True)
            thread.start()
            for kill in range(KILLS):
                victim = group["ab"[kill % 2]]
                grow(submitted)
                victim.kill9()
                grow(submitted)
                victim.restart()
            stop.set()
            thread.join(30)
            results = [task.result(timeout=RESULT_SECONDS) for task in submitted]
    assert results == [2 * number for number in range(len(submitted))]
    assert set(ran.values()) == {1}, {number: count for number, count in ran.items() if count > 1}


def test_a_database_that_is_killed_costs_nothing_that_was_promised(tmp_path, postgres_server, postgres_url):
    with (
        brokers(tmp_path, "a", "b", store=as_url(postgres_url)) as group,
        working(group["b"], double, identity="doubler", slots=4),
        client_of(group["a"], timeout=60) as net,
    ):
        tasks = [net.submit("double", number) for number in range(50)]
        postgres_server.kill()
        assert net.call("double", 21) == 42  # requests need no store
        with pytest.raises(NotStored):
            net.submit("double", 1)
        postgres_server.start()
        assert [task.result(timeout=RESULT_SECONDS) for task in tasks] == [2 * number for number in range(50)]
        # What was stored before could be reported before broker `a` has found its database again.
        task = until(lambda: taken(net, 4), "submissions are taken again")
        assert task.result(timeout=RESULT_SECONDS) == 8

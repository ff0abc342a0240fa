"""What the tests of the client library share: a network of one broker, workers in this process, and conditions.

Lives here: starting, waiting and ending. Never here: a promise. Invariant: every wait has a deadline, and what a test
started is ended when it ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import scale0
from tests.fakes.broker_process import BrokerProcess
from tests.fakes.waiting import PATIENCE_SECONDS

Condition = Callable[[], Any]


@contextmanager
def working(broker: BrokerProcess, *functions: Callable[..., Any], **options: Any) -> Iterator[scale0.Worker]:
    """A worker in this process that offers functions by their names (`_` is `.`), up and taken in."""
    slots = options.pop("slots", None)
    worker = scale0.Worker(broker.endpoints["backend"], **options)
    for function in functions:
        worker.add(function.__name__, function, slots=slots)
    with started(worker):
        yield worker


@contextmanager
def started(worker: scale0.Worker) -> Iterator[scale0.Worker]:
    """Start it, wait until the broker has taken it in, and stop it at the end, whatever is in hand."""
    worker.start()
    try:
        assert worker.wait_until_up(PATIENCE_SECONDS), "the worker did not come up"
        yield worker
    finally:
        worker.stop(drain=0.0)


def client_of(broker: BrokerProcess, **options: Any) -> scale0.Client:
    """A client of this broker."""
    return scale0.Client(broker.endpoints["frontend"], **options)


def offered(net: scale0.Client) -> dict[str, dict[str, Any]]:
    """What is offered now, by name."""
    return {row["service"]: row for row in net.services() if row["backends"]}


def token_of(broker: BrokerProcess) -> str:
    """What authorises management on the broker's own machine."""
    return (Path(broker.config["data_dir"]) / "token").read_text()


def raises(kind: type[Exception], do: Condition) -> None:
    """It must fail, and like this; for threads."""
    with pytest.raises(kind):
        do()


class Together:
    """Threads that run one function each; what they raise is raised at the end."""

    def __init__(self) -> None:
        self.faults: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def start(self, function: Callable[..., Any], *args: Any) -> None:
        def run() -> None:
            try:
                function(*args)
            except BaseException as error:
                self.faults.append(error)

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def join(self, seconds: float = PATIENCE_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            assert not thread.is_alive(), f"a thread still runs after {seconds:g} s"
        if self.faults:
            raise self.faults[0]


class Concurrency:
    """How many are inside at once, and the most that ever were."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = 0
        self.most = 0

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.now -= 1

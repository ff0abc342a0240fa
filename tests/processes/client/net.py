"""What the tests of the client library share: clients, workers in this process and as programs, groups of brokers.

Every wait has a deadline, and what a test started is ended when it ends.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

import scale0
from scale0.errors import NoAnswer, NotServing, Unreachable
from tests.fakes.broker_process import BrokerProcess, broker_process
from tests.fakes.processes import ServerProcess
from tests.fakes.waiting import PATIENCE_SECONDS, until
from tests.processes.client import handlers

Condition = Callable[[], Any]


@contextmanager
def working(broker: BrokerProcess, *functions: Callable[..., Any], **options: Any) -> Iterator[scale0.Worker]:
    """A worker in this process that offers functions by their names (`_` is `.`), and is accepted by the broker."""
    slots = options.pop("slots", None)
    worker = scale0.Worker(broker.endpoints["backend"], **options)
    for function in functions:
        worker.add(function.__name__, function, slots=slots)
    with started(worker):
        yield worker


@contextmanager
def started(worker: scale0.Worker) -> Iterator[scale0.Worker]:
    """Start it, wait until the broker has accepted it, and stop it at the end, whatever is in flight."""
    worker.start()
    try:
        assert worker.wait_until_up(PATIENCE_SECONDS), "the worker did not come up"
        yield worker
    finally:
        worker.stop(drain=0.0)


def client_of(broker: BrokerProcess, **options: Any) -> scale0.Client:
    return scale0.Client(broker.endpoints["frontend"], **options)


def offered(net: scale0.Client) -> dict[str, dict[str, Any]]:
    return {row["service"]: row for row in net.services() if row["backends"]}


def raises(kind: type[Exception], do: Condition) -> None:
    """It must fail, and like this; for threads."""
    with pytest.raises(kind):
        do()


@contextmanager
def brokers(folder: Path, *names: str, **config: Any) -> Iterator[dict[str, BrokerProcess]]:
    """One group of brokers that know each other; the first one may change the configuration."""
    with ExitStack() as stack:
        made: dict[str, BrokerProcess] = {}
        for name in names:
            first = next(iter(made.values()), None)
            joins = {} if first is None else {"state": "joining", "peers": [first.endpoints["peer"]]}
            own = {"identity": name, "group": "east", "config_service": first is None, **joins, **config}
            made[name] = stack.enter_context(broker_process(folder / name, **own))
        for broker in made.values():
            until(partial(all_know, broker, names), "they know each other")
        yield made
        for broker in made.values():
            broker.assert_no_traceback()


def all_know(broker: BrokerProcess, names: Sequence[str]) -> bool:
    """True if this broker finds all of these active."""
    return states_of(broker) == dict.fromkeys(names, "active")


def states_of(broker: BrokerProcess) -> dict[str, str]:
    """The states of all brokers that this one knows; none while it is joining."""
    try:
        with client_of(broker, timeout=2) as net:
            return {row["broker"]: row["state"] for row in net.brokers()}
    except (NoAnswer, NotServing, Unreachable):
        return {}


def is_there(broker: BrokerProcess, worker: str) -> bool:
    with client_of(broker, timeout=5) as net:
        return any(row["identity"] == worker for row in net.clients())


class WorkerProgram(ServerProcess):
    """A worker in a process of its own, which runs `handlers`."""

    def __init__(self, endpoint: str, identity: str, folder: Path) -> None:
        super().__init__(
            folder / f"{identity}.log", [sys.executable, handlers.__file__, endpoint, identity, str(folder)]
        )
        self._descendants: list[psutil.Process] = []

    def descendants(self) -> list[psutil.Process]:
        self._descendants = psutil.Process(self.pid).children(recursive=True)
        return self._descendants

    def close(self) -> None:
        if self.running:
            self.descendants()
        super().close()
        for left in self._descendants:
            if left.is_running():
                left.kill()


@contextmanager
def programs(endpoint: str, folder: Path, *identities: str) -> Iterator[list[WorkerProgram]]:
    """Workers that are ready; ended when the block ends."""
    made = [WorkerProgram(endpoint, identity, folder) for identity in identities]
    try:
        for program in made:
            program.start()
        yield made
    finally:
        for program in made:
            program.close()


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

"""One broker and one worker for each file of tests, and a shell for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.broker_process import BrokerProcess, broker_process
from tests.processes.cli.shell import Shell

WORKERS = str(Path(__file__).with_name("workers.py"))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def shell(broker: BrokerProcess, tmp_path: Path) -> Shell:
    """Joined to the broker, without any right."""
    return shell_of(broker, tmp_path)


@pytest.fixture(scope="module")
def served(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """The broker, with a worker."""
    with shell_of(broker, tmp_path_factory.mktemp("worker")).background("worker", WORKERS) as worker:
        worker.wait_for("ready ")
        yield broker


def shell_of(broker: BrokerProcess, folder: Path, **variables: str) -> Shell:
    frontend, backend = (broker.endpoints[name].removeprefix("tcp://") for name in ("frontend", "backend"))
    return Shell(folder, SCALE0_JOIN=frontend, SCALE0_JOIN_BACKEND=backend, **variables)

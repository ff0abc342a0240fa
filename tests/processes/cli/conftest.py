"""One broker and one worker for each file of tests, and a shell for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.broker_process import BrokerProcess, broker_process
from tests.fakes.shell import Shell, manager_of, shell_of

WORKERS = str(Path(__file__).with_name("workers.py"))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def shell(broker: BrokerProcess, tmp_path: Path) -> Shell:
    """Joined to the broker, without any right."""
    return shell_of(broker, tmp_path)


@pytest.fixture
def confined(tmp_path: Path) -> Shell:
    """A shell whose commands make their temporary files in `tmp`, a folder of its own."""
    (tmp_path / "tmp").mkdir()
    return Shell(tmp_path, TMPDIR=str(tmp_path / "tmp"))


@pytest.fixture
def manager(broker: BrokerProcess, tmp_path: Path) -> Shell:
    """The same user, with the broker's token."""
    return manager_of(broker, tmp_path)


@pytest.fixture(scope="module")
def served(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with shell_of(broker, tmp_path_factory.mktemp("worker")).background("worker", WORKERS) as worker:
        worker.wait_for("ready ")
        yield broker

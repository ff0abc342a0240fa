"""One broker for each file of tests, which must not log an exception."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import scale0
from tests.fakes.broker_process import BrokerProcess, broker_process
from tests.processes.client.fake_broker import FakeBroker, fake_broker
from tests.processes.client.net import client_of


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("broker")) as running:
        yield running
        running.assert_no_traceback()


@pytest.fixture
def net(broker: BrokerProcess) -> Iterator[scale0.Client]:
    with client_of(broker, timeout=10) as made:
        yield made


@pytest.fixture
def own(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that the test may kill."""
    with broker_process(tmp_path) as running:
        yield running


@pytest.fixture
def fake() -> Iterator[FakeBroker]:
    with fake_broker() as made:
        yield made

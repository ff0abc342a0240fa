"""Fixtures: a broker, a Helen and a client of the network for each test file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scale0.client.client import Client
from tests.fakes.broker_process import BrokerProcess, broker_process
from tests.fakes.helen_process import HelenProcess, helen_process
from tests.fakes.waiting import PATIENCE_SECONDS


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("broker"), default_heartbeat_interval=0.5) as running:
        yield running


@pytest.fixture(scope="module")
def helen(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HelenProcess]:
    with helen_process(tmp_path_factory.mktemp("helen"), broker) as running:
        yield running


@pytest.fixture
def client(broker: BrokerProcess, helen: HelenProcess) -> Iterator[Client]:
    """A client that Helen's services answer."""
    with Client(broker.endpoints["frontend"], timeout=PATIENCE_SECONDS) as made:
        assert made.call(f"helen.{helen.identity}.status")["identity"] == helen.identity
        yield made

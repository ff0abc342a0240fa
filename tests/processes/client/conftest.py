"""One broker for each file of tests, which must not log an exception."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import scale0
from tests.fakes.broker_process import BrokerProcess, broker_process
from tests.processes.client.net import client_of


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("broker")) as running:
        yield running
        log = running.log.read_text(errors="replace")
        assert "Traceback" not in log, log[-4_000:]


@pytest.fixture
def net(broker: BrokerProcess) -> Iterator[scale0.Client]:
    with client_of(broker, timeout=10) as made:
        yield made

"""One broker, one Helen and one client for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.broker_process import BrokerProcess, broker_process
from tests.wire.monitoring.network import Helen, Network


@pytest.fixture(scope="session")
def wire_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("broker"), default_heartbeat_interval=5) as running:
        yield running


@pytest.fixture(scope="session")
def wire_network(wire_broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    helen = Helen(tmp_path_factory.mktemp("h") / "helen-1", wire_broker, "helen-1")
    try:
        network = Network(wire_broker, helen)
        try:
            yield network
        finally:
            network.client.close()
    finally:
        helen.process.close()


@pytest.fixture
def network(wire_network: Network) -> Iterator[Network]:
    """The shared network; agents that a test leaves behind are closed, and Helen must have lived through it."""
    yield wire_network
    wire_network.helen.let_go()
    assert wire_network.helen.process.running, wire_network.helen.process.said()[-4_000:]


@pytest.fixture
def helen(network: Network) -> Helen:
    return network.helen

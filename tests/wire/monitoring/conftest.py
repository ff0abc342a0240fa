"""One broker, one Helen and one client for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.broker_process import BrokerProcess, broker_process
from tests.fakes.fake_agent import FakeAgent
from tests.fakes.helen_process import HelenProcess, helen_process
from tests.wire.monitoring.network import Network, unique


@pytest.fixture(scope="session")
def wire_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("broker"), default_heartbeat_interval=5) as running:
        yield running


@pytest.fixture(scope="session")
def wire_network(wire_broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with helen_process(tmp_path_factory.mktemp("h") / "helen-1", wire_broker, "helen-1") as helen:
        network = Network(wire_broker, helen)
        with network.client:
            yield network


@pytest.fixture
def network(wire_network: Network) -> Iterator[Network]:
    """The shared network; agents that a test leaves open are closed, and Helen must still run."""
    yield wire_network
    wire_network.helen.close_agents()
    assert wire_network.helen.running, wire_network.helen.log_tail()


@pytest.fixture
def helen(network: Network) -> HelenProcess:
    return network.helen


@pytest.fixture
def agent(network: Network) -> FakeAgent:
    """An accepted agent of version 1."""
    return network.join(unique("web"))


@pytest.fixture
def agent_2(network: Network) -> FakeAgent:
    """An accepted agent of version 2."""
    return network.join(unique("web"), 2)

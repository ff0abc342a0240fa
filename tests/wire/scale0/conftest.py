"""One broker for each file of tests, and connections for each test.

A broker that logged an exception fails the tests that it served, even if every answer was right.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scale0.kernel.edge.passwords import hash_password
from tests.fakes.broker_process import BrokerProcess, broker_process
from tests.wire.scale0.raw import Raw, Raws, raws, unique
from tests.wire.scale0.rpc import Client, Node, client, node

ADMINS = [
    {"auth_id": name, "password_hash": hash_password(f"{name}-secret", 1, 8_192), "role": name}
    for name in ("admin", "operator", "viewer")
]


@contextmanager
def quiet_broker(folder: Path, **config: Any) -> Iterator[BrokerProcess]:
    """A broker that must not log an exception."""
    with broker_process(folder, **{"admins": ADMINS, **config}) as running:
        yield running
        log = running.log.read_text(errors="replace")
        assert "Traceback" not in log, log[-4_000:]


@contextmanager
def own_broker(folder: Path, **config: Any) -> Iterator[tuple[BrokerProcess, Raws]]:
    """A broker for one test, and connections to it."""
    with quiet_broker(folder, **config) as running, raws(running.endpoints) as made:
        yield running, made


def token_of(broker: BrokerProcess) -> dict[str, str]:
    """What authorises management on the broker's own machine."""
    return {"auth_token": (Path(broker.config["data_dir"]) / "token").read_text()}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that is patient: nobody dies of silence while a file's tests run."""
    with quiet_broker(tmp_path_factory.mktemp("broker"), default_heartbeat_interval=60) as running:
        yield running


@pytest.fixture
def net(broker: BrokerProcess) -> Iterator[Raws]:
    with raws(broker.endpoints) as made:
        yield made


@pytest.fixture
def local(broker: BrokerProcess) -> dict[str, str]:
    return token_of(broker)


@pytest.fixture
def caller(net: Raws) -> Raw:
    """A connection to the frontend socket."""
    return net.frontend()


@pytest.fixture
def method() -> str:
    return unique("method")


@pytest.fixture
def owner(net: Raws) -> Client:
    """A client of JSON-RPC."""
    return client(net)


@pytest.fixture
def worker(net: Raws, method: str) -> Node:
    """A node that offers the method."""
    return node(net, method)

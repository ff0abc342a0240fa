"""One broker and one management server for each file of tests, neither of which may log an exception."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.broker_process import BrokerProcess, broker_process
from tests.processes.http.site import Site, admins, served


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("broker"), admins=admins()) as running:
        yield running
        running.assert_no_traceback()


@pytest.fixture(scope="module")
def site(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with served(tmp_path_factory.mktemp("management"), broker) as running:
        yield running

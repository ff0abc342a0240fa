"""Certificates for the tests of this folder."""

from __future__ import annotations

import pytest

from tests.processes.agent.credentials import Credentials


@pytest.fixture(scope="session")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    return Credentials(tmp_path_factory.mktemp("credentials"))

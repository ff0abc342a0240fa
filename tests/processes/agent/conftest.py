"""An authority for the tests of this folder."""

from __future__ import annotations

import pytest

from tests.fakes.certificates import Authority


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))

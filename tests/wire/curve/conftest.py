"""One broker that requires keys for each file of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.wire.curve.keys import Lock, locked


@pytest.fixture(scope="module")
def lock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lock]:
    with locked(tmp_path_factory.mktemp("locked")) as made:
        yield made

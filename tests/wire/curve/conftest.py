"""One broker that wants keys for each file of tests.

Lives here: fixtures. Never here: a conversation.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.wire.curve.hands import Lock, locked


@pytest.fixture(scope="module")
def lock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lock]:
    with locked(tmp_path_factory.mktemp("locked")) as made:
        yield made

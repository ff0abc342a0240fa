"""Stories about the queue are told twice: on a store of the broker's own, and on one that it could share.

Lives here: which store a world gets. Never here: a story. A test that is marked `own_store` is about what only a store
of one's own promises: the order to the letter, and how far memory reaches.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.tasks import world

KINDS = ("own", "shared")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if hasattr(metafunc.module, "Scene") or hasattr(metafunc.module, "World"):
        alone = metafunc.definition.get_closest_marker("own_store") is not None
        metafunc.fixturenames.append("store_kind")
        metafunc.parametrize("store_kind", KINDS[:1] if alone else KINDS, indirect=True)


@pytest.fixture
def store_kind(request: pytest.FixtureRequest) -> Iterator[None]:
    """The kind of store that worlds get during this test."""
    before, world.STORES[0] = world.STORES[0], request.param
    yield
    world.STORES[0] = before

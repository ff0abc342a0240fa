"""A maker of stores, for stories that are told about both twins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scale0.store.memory import MemoryStore
from scale0.store.sqlite import SqliteStore
from tests.store.group import MemoryGroup

if TYPE_CHECKING:
    from scale0.store.interface import Store


@pytest.fixture(params=["memory", "sqlite"])
def make(request, tmp_path):
    """Make a store over the same data again and again."""
    made: list[Store] = []
    last: list[MemoryStore] = []

    def one(failpoint=None) -> Store:
        if made:
            made[-1].close()
        if request.param == "memory":
            store: Store = MemoryStore(last[-1].snapshot() if last else None, failpoint)
            last.append(store)  # type: ignore[arg-type]
        else:
            store = SqliteStore(tmp_path / "data", failpoint)
        made.append(store)
        return store

    yield one
    if made:
        made[-1].close()


@pytest.fixture
def group():
    """A database for several brokers."""
    made = MemoryGroup()
    yield made
    made.close()

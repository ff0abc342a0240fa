"""A maker of stores, for stories that are told about both twins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from scale0.store.memory import MemoryStore
from scale0.store.sqlite import SqliteStore
from tests.store.group import MemoryGroup, PostgresGroup

if TYPE_CHECKING:
    from scale0.store.interface import Store


from tests.support.postgres import postgres_database, postgres_server, postgres_url

__all__ = ["postgres_database", "postgres_server", "postgres_url"]


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


@pytest.fixture(params=["memory", "postgres"])
def group(request, tmp_path):
    """A database for several brokers."""
    if request.param == "memory":
        made: Any = MemoryGroup()
    else:
        made = PostgresGroup(request.getfixturevalue("postgres_url"), tmp_path)
    yield made
    made.close()

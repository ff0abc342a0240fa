"""Makers of stores, for stories that are told about all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from scale0.store.memory import MemoryStore
from scale0.store.postgres import PostgresStore
from scale0.store.shared_memory import SharedMemory, SharedMemoryStore
from scale0.store.sqlite import SqliteStore
from tests.store.alone import Alone, Memo
from tests.store.group import MemoryGroup, PostgresGroup
from tests.support.postgres import postgres_database, postgres_server, postgres_url

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["postgres_database", "postgres_server", "postgres_url"]


def _maker(request: Any, folder: Any) -> Callable[[Any], Any]:
    match request.param:
        case "memory":
            last: list[MemoryStore] = []

            def again(failpoint: Any) -> Any:
                last.append(MemoryStore(last[-1].snapshot() if last else None, failpoint))
                return last[-1]

            return again
        case "sqlite":
            return lambda failpoint: SqliteStore(folder, failpoint)
        case "shared":
            database, memo = SharedMemory(lambda: 1_000_000_000), Memo()
            return lambda failpoint: Alone(SharedMemoryStore(database, "east-1", failpoint), memo)
        case _:
            url, memo = request.getfixturevalue("postgres_url"), Memo()
            return lambda failpoint: Alone(PostgresStore(url, "east-1", folder, failpoint), memo)


@pytest.fixture(params=["memory", "sqlite", "shared", "postgres"])
def make(request, tmp_path):
    """Make a store over the same data again and again."""
    made: list[Any] = []
    maker = _maker(request, tmp_path / "data")

    def one(failpoint=None) -> Any:
        if made:
            made[-1].close()
        made.append(maker(failpoint))
        return made[-1]

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

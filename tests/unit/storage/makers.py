"""Stores of every kind, for stories that are told about all of them, or about some.

Lives here: making one. Never here: a story.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from scale0.storage.memory.store import MemoryStore
from scale0.storage.postgres.store import PostgresStore
from scale0.storage.sqlite.store import SqliteStore
from simulator.fake_postgres.store import FakeDatabase, FakePostgresStore
from tests.unit.storage.alone import Alone, Memo


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
            database, memo = FakeDatabase(lambda: 1_000_000_000), Memo()
            return lambda failpoint: Alone(FakePostgresStore(database, "east-1", failpoint), memo)
        case _:
            url, memo = request.getfixturevalue("postgres_url"), Memo()
            return lambda failpoint: Alone(PostgresStore(url, "east-1", folder, failpoint), memo)


def stores(request: Any, folder: Any) -> Iterator[Callable[..., Any]]:
    """Make a store of the kind that a fixture asks for, over the same data again and again."""
    made: list[Any] = []
    maker = _maker(request, folder)

    def one(failpoint: Any = None) -> Any:
        if made:
            made[-1].close()
        made.append(maker(failpoint))
        return made[-1]

    yield one
    if made:
        made[-1].close()

"""Stores of every kind, and databases for several brokers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.postgres import postgres_database, postgres_server, postgres_url
from tests.unit.storage.group import MemoryGroup, PostgresGroup
from tests.unit.storage.stores import stores

__all__ = ["postgres_database", "postgres_server", "postgres_url"]

POSTGRES = pytest.param("postgres", marks=pytest.mark.slow)
"""Its server takes longer to start than the other stores take for everything; the tests are the same."""


@pytest.fixture(params=["memory", "sqlite", "shared", POSTGRES])
def make(request, tmp_path):
    yield from stores(request, tmp_path / "data")


@pytest.fixture
def store(make):
    made = make()
    made.open()
    return made


@pytest.fixture(params=["memory", POSTGRES])
def group(request, tmp_path):
    if request.param == "memory":
        made: Any = MemoryGroup()
    else:
        made = PostgresGroup(request.getfixturevalue("postgres_url"), tmp_path)
    yield made
    made.close()

"""Makers of stores, for stories that are told about all of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.postgres import postgres_database, postgres_server, postgres_url
from tests.unit.storage.group import MemoryGroup, PostgresGroup
from tests.unit.storage.makers import stores

__all__ = ["postgres_database", "postgres_server", "postgres_url"]

POSTGRES = pytest.param("postgres", marks=pytest.mark.slow)
"""Its server takes longer to start than the floor's other stores take for everything; their stories are the same."""


@pytest.fixture(params=["memory", "sqlite", "shared", POSTGRES])
def make(request, tmp_path):
    """Make a store over the same data again and again."""
    yield from stores(request, tmp_path / "data")


@pytest.fixture(params=["memory", POSTGRES])
def group(request, tmp_path):
    """A database for several brokers."""
    if request.param == "memory":
        made: Any = MemoryGroup()
    else:
        made = PostgresGroup(request.getfixturevalue("postgres_url"), tmp_path)
    yield made
    made.close()

"""Tests of the queue run twice: on a store of the broker's own, and on one that it could share.

A test that is marked `own_store` is about what only a store of one's own promises: the exact order, and how far memory
reaches.
"""

from __future__ import annotations

import pytest

from tests.fakes.broker import FakeBroker
from tests.unit.tasks.harness import TaskBroker
from tests.unit.tasks.task_client_harness import TaskClientHarness

KINDS = ("own", "shared")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    names = vars(metafunc.module).keys() | set(metafunc.fixturenames)
    if names & {"TaskBroker", "FakeBroker", "broker"} and "pair" not in metafunc.fixturenames:
        alone = metafunc.definition.get_closest_marker("own_store") is not None
        metafunc.fixturenames.insert(0, "store_kind")
        metafunc.parametrize("store_kind", KINDS[:1] if alone else KINDS, indirect=True)


@pytest.fixture(autouse=True)
def store_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kind of store that brokers get during this test."""
    monkeypatch.setattr(FakeBroker, "shared_store", getattr(request, "param", "own") == "shared")


@pytest.fixture
def broker() -> TaskBroker:
    return TaskBroker()


@pytest.fixture
def harness() -> TaskClientHarness:
    return TaskClientHarness()

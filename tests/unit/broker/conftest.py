"""The broker that most tests of this folder talk to."""

from __future__ import annotations

import pytest

from tests.fakes.broker import FakeBroker


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()

"""The broker that the tests of this folder talk to."""

from __future__ import annotations

import pytest

from tests.fakes.majordomo import MajordomoBroker


@pytest.fixture
def broker() -> MajordomoBroker:
    return MajordomoBroker()

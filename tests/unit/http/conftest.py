"""A data folder for the tests of events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.http.event_folders import folder_at
from tests.processes.segments.folders import Folder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = folder_at(tmp_path / "data")
    yield made
    made.store.close()

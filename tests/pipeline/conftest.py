"""One Spark session for all tests of the pipeline, in one process; and frames of events from few words."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
SPARK_SECONDS = 600
"""The first test of a session waits for it, and on a busy machine plans take long; what hangs still ends."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A session takes seconds to start and half a gigabyte: whoever needs it shares a worker."""
    for item in items:
        if HERE in item.path.parents and "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(SPARK_SECONDS))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A small one: a core, a shuffle partition, a gigabyte."""
    from scale0.pipeline.session import start

    small = {"spark.sql.shuffle.partitions": "1", "spark.driver.memory": "1g", "spark.sql.adaptive.enabled": "false"}
    session = start("local[1]", small)
    yield session
    session.stop()

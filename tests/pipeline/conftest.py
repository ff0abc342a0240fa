"""One Spark session in each process that tests the pipeline, and the time that its tests may take."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from scale0.pipeline.warehouse.warehouse import Warehouse

HERE = Path(__file__).parent
SPARK_SECONDS = 600
"""The first test of a session waits for it, and on a busy machine plans take long; what hangs still ends."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever needs the session may wait for it, and is slow: the first of them starts it."""
    for item in items:
        needs = HERE in item.path.parents and "spark" in getattr(item, "fixturenames", ())
        if needs:
            item.add_marker(pytest.mark.slow)
        if needs and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SPARK_SECONDS))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """As a run starts it for few events, with a core and two gigabytes."""
    from scale0.pipeline.spark_session import start

    session = start("local[1]", {"spark.driver.memory": "2g"}, events=0)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def compiling(spark: SparkSession) -> Iterator[SparkSession]:
    """For many events: plans become Java, as in a run of more than a few."""
    from tests.pipeline.engine_runs import compiled

    with compiled(spark):
        yield spark


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    """Nothing was committed to it."""
    from scale0.pipeline.warehouse.warehouse import Warehouse

    return Warehouse(tmp_path / "warehouse")


@pytest.fixture
def segments(tmp_path: Path) -> Path:
    """Where segments are delivered."""
    return tmp_path / "segments"


@pytest.fixture
def tidy(spark: SparkSession) -> Iterator[SparkSession]:
    """A step keeps frames in memory, which the engine would clear."""
    yield spark
    spark.catalog.clearCache()


@pytest.fixture(scope="session")
def reports_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The warehouse of `reports_made`; nobody writes to it."""
    from tests.pipeline import reports_made

    return reports_made.made(tmp_path_factory.mktemp("reports"))

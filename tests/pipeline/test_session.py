"""The session: which of Java's compilers it takes, by how much there is to do, and who can reach it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil
import pytest

from scale0.pipeline.session import QUICK_EVENTS, java_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK = ("127.0.0.1", "::ffff:127.0.0.1", "::1")
QUICK = "-XX:TieredStopAtLevel=1"


@pytest.mark.parametrize(
    ("events", "quick"), [(0, True), (QUICK_EVENTS, True), (QUICK_EVENTS + 1, False), (None, False)]
)
def test_few_events_take_the_quick_compiler_alone(events: int | None, quick: bool):
    assert (QUICK in java_options(events).split()) is quick


@pytest.mark.slow
def test_java_hears_of_it_and_has_room_for_the_code(spark: SparkSession):
    """With the quick compiler alone it would be 48 MB: full after half a minute, and Java interprets."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    said = jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
    assert {QUICK, "-XX:ReservedCodeCacheSize=240m", "-XX:+UseParallelGC"} <= set(said)


@pytest.mark.slow
def test_nobody_reaches_it_from_elsewhere_also_while_it_works(spark: SparkSession):
    """Driver, block manager, and the servers by which rows come to Python. Promise: SEC-1"""
    spark.range(10).toPandas()
    spark.sparkContext.parallelize([1]).map(str).collect()  # Python's own daemon, too
    mine = psutil.Process()
    found = [
        (" ".join(process.cmdline())[:80], one.laddr.ip, one.laddr.port)
        for process in (mine, *mine.children(recursive=True))
        for one in process.net_connections("inet")
        if one.status == psutil.CONN_LISTEN
    ]
    assert found
    assert [one for one in found if one[1] not in LOOPBACK] == []
    assert spark.sparkContext.uiWebUrl is None

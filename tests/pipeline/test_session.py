"""The session: what is compiled, and by what, by how much there is to do; and who can reach it."""

from __future__ import annotations

import psutil
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from scale0.pipeline.spark_session import (
    ADAPTIVE,
    COMPILED,
    FEW_EVENTS,
    INTERPRETED,
    JAVA_NAMES,
    QUICK_EVENTS,
    JavaLookups,
    java_options,
    settings_for,
)

LOOPBACK = ("127.0.0.1", "::ffff:127.0.0.1", "::1")
QUICK = "-XX:TieredStopAtLevel=1"


@pytest.mark.parametrize(
    ("events", "quick"), [(0, True), (QUICK_EVENTS, True), (QUICK_EVENTS + 1, False), (None, False)]
)
def test_few_events_take_the_quick_compiler_alone(events: int | None, quick: bool):
    assert (QUICK in java_options(events).split()) is quick


@pytest.mark.parametrize(("events", "few"), [(0, True), (FEW_EVENTS, True), (FEW_EVENTS + 1, False), (None, False)])
def test_plans_for_few_events_are_interpreted_and_made_once(events: int | None, few: bool):
    for master in ("local[1]", "spark://127.0.0.1:7077"):
        settings = settings_for(master, events)
        assert settings.items() >= (INTERPRETED if few else COMPILED).items()
        assert settings[ADAPTIVE] == ("false" if few else "true")
        # A cluster's executors are there to share the work, and how many there are its settings say.
        assert (settings.get("spark.sql.shuffle.partitions") == "1") is (few and master == "local[1]")


def test_a_session_that_had_few_events_is_reconfigured_when_it_has_many():
    assert INTERPRETED.keys() == COMPILED.keys()
    assert settings_for("local[1]", 0).keys() == settings_for("local[1]", None).keys()


@pytest.mark.slow
def test_spark_hears_of_it(spark: SparkSession):
    assert {name: spark.conf.get(name) for name in INTERPRETED} == INTERPRETED


@pytest.mark.slow
def test_java_is_asked_for_a_class_and_its_method_once(spark: SparkSession):
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    assert all(isinstance(getattr(jvm, name), JavaLookups) for name in JAVA_NAMES)
    assert jvm.functions.lit is jvm.functions.lit
    assert spark.range(3).select(f.sum("id"), f.lit("x")).collect() == [(3, "x")]


@pytest.mark.slow
def test_java_hears_of_it_and_has_room_for_the_code(spark: SparkSession):
    """With the quick compiler alone it would be 48 MB: full after half a minute, and Java interprets."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    options = jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
    assert {QUICK, "-XX:ReservedCodeCacheSize=240m", "-XX:+UseParallelGC"} <= set(options)


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

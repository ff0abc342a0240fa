"""The Spark session: quiet, on loopback where the master is local, in UTC, and with what was measured to be quick.

Lives here: settings, each with its reason. Never here: a query.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scale0.pipeline.java_lookups import look_once
from scale0.pipeline.java_stderr import murmurs_left_out

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK: Final = "127.0.0.1"
LOCAL: Final = "local"
LOCAL_PARTITIONS: Final = 2
"""Of a shuffle, for each core of this machine."""

_JAVA: Final = " ".join(
    (
        # 15 % less than the usual collector for percentiles of 20 million rows.
        "-XX:+UseParallelGC",
        "-XX:-UsePerfData",
        # Spark makes one method of a whole stage, and Java never compiles one of more than 8,000 bytes: a third of a
        # family's samples were in one that ran interpreted.
        "-XX:-DontCompileHugeMethods",
    )
)

QUICK_EVENTS: Final = 2_000_000
"""Up to so many, Java's quick compiler alone is faster: 200,000 events in 32 s instead of 44 s; 20 million in 341 s
instead of 259 s."""
_QUICK: Final = " ".join(
    (
        "-XX:TieredStopAtLevel=1",
        # What Java gives both compilers together; for one alone it is a fifth, and once that is full it interprets.
        "-XX:ReservedCodeCacheSize=240m",
    )
)

FEW_EVENTS: Final = 20_000
"""Up to so many, what they cost is next to nothing beside what it costs to plan for them."""
INTERPRETED: Final = {
    # A plan is gone through for each row, instead of being made Java that must be compiled first: 2,600 events in a new
    # session take 39 s of processor time instead of 48 s.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
COMPILED: Final = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
"""Spark's own. They are said, because a session goes on, and may have had few events before."""
ADAPTIVE: Final = "spark.sql.adaptive.enabled"
"""A plan that is made anew after each of its stages: with few events there is nothing to adapt to."""

_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # With fewer groups it sorts; measured 11.8 s against 4.2 s for percentiles of 20 million rows.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "200000",
    # Without it a flipped byte was read silently.
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    "spark.hadoop.parquet.page.write-checksum.enabled": "true",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # The driver knows every file: no summaries, no markers beside them.
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Where in Python a column was made, for errors: a walk up the stack for each of thousands, a fifth of a small run.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # The driver names every file: a job that lists them would cost more than the listing.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    # Spark remembers what it compiled: a run makes several times its 100, and the next run makes most of them again.
    "spark.sql.codegen.cache.maxEntries": "2000",
    # No .crc file beside every file: pages have checksums of their own, and the manifest has the sizes.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
}

_LOCAL_SETTINGS: Final = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
}


def is_local(master: str | None) -> bool:
    """True if everything happens in this process's own Java."""
    return master is not None and master.startswith(LOCAL)


def java_options(events: int | None) -> str:
    """Of a session for so many events: of its driver, and of its executors."""
    return _JAVA if events is None or events > QUICK_EVENTS else f"{_JAVA} {_QUICK}"


def settings_for(master: str, events: int | None) -> dict[str, str]:
    """Of a session for so many events; None: nobody knows."""
    local, few = is_local(master), events is not None and events <= FEW_EVENTS
    # The defaults, so that what a user says in `extraJavaOptions` comes after them and counts.
    java = dict.fromkeys(("spark.driver.defaultJavaOptions", "spark.executor.defaultJavaOptions"), java_options(events))
    settings = {**_SETTINGS, **java, **(INTERPRETED if few else COMPILED), ADAPTIVE: str(not few).lower()}
    if not local:
        return settings
    # Spark's own 200 would make hundreds of tasks for a handful of rows.
    partitions = 1 if few else LOCAL_PARTITIONS * (os.cpu_count() or 1)
    return {**settings, **_LOCAL_SETTINGS, "spark.sql.shuffle.partitions": str(partitions)}


def start(master: str = "local[*]", settings: dict[str, str] | None = None, events: int | None = None) -> SparkSession:
    """One session; it takes 6 to 10 s, so a process makes one and keeps it.

    `settings` go before ours. `events`: how many it is for; None: nobody knows, or it goes on and on.
    """
    if is_local(master):
        os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    # Spark's own profile writes warnings of no use to anybody; ours writes errors.
    os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "conf"))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession  # noqa: PLC0415  # the environment must be set before

    builder = SparkSession.builder.master(master).appName("scale0")
    for name, value in {**settings_for(master, events), **(settings or {})}.items():
        builder = builder.config(name, value)
    with murmurs_left_out():
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    look_once(session.sparkContext._jvm)
    return session

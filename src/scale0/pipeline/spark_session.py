"""Creates the Spark session: its settings with their reasons, a filter for Java's stderr, and a cache of Java
lookups.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_NAMES: Final = ("functions", "org.apache.spark.sql.functions", "PythonSQLUtils", "PythonUtils")
"""What PySpark looks up while it builds columns and frames."""


class JavaLookups:
    """Caches the static methods of one Java class.

    PySpark looks up a class and a method for each column of a query, and Java first tries names that do not exist in
    each of Spark's 280 archives: a twentieth of Java's time in a small run, and two of three calls.
    """

    def __init__(self, java: Any) -> None:
        self._java = java

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._java, name)
        setattr(self, name, method)
        return method


def cache_java_lookups(jvm: Any) -> None:
    for name in JAVA_NAMES:
        if name not in vars(jvm):
            setattr(jvm, name, JavaLookups(getattr(jvm, name)))


STDERR: Final = 2
USELESS: Final = (b"WARNING: Using incubator modules:",)
"""Prefixes of lines."""


@contextlib.contextmanager
def filtered_stderr() -> Iterator[None]:
    """Processes started inside the context have a stderr without USELESS lines; all other lines are passed through."""
    real_stderr = os.dup(STDERR)
    reader, writer = os.pipe()
    threading.Thread(target=_forward_lines, args=(reader, real_stderr), daemon=True, name="scale0-java-stderr").start()
    os.dup2(writer, STDERR)
    os.close(writer)
    try:
        yield
    finally:
        os.dup2(real_stderr, STDERR)


def _forward_lines(reader: int, real_stderr: int) -> None:
    """Copy lines until the last process that holds the other end has exited."""
    with open(reader, "rb") as lines, contextlib.suppress(OSError):
        for line in lines:
            if not line.startswith(USELESS):
                os.write(real_stderr, line)
    os.close(real_stderr)


LOOPBACK: Final = "127.0.0.1"
LOCAL: Final = "local"
LOCAL_PARTITIONS: Final = 2
"""Shuffle partitions per core of this machine."""

_JAVA: Final = " ".join(
    (
        # 15 % less than the default collector for percentiles of 20 million rows.
        "-XX:+UseParallelGC",
        "-XX:-UsePerfData",
        # Spark compiles a whole stage to one method, and Java never compiles methods above 8,000 bytes: a third of an
        # aggregation's samples were in a method that ran interpreted.
        "-XX:-DontCompileHugeMethods",
    )
)

QUICK_EVENTS: Final = 2_000_000
"""Up to this number of events, Java's quick compiler alone is faster: 200,000 events take 32 s instead of 44 s; 20
million take 341 s instead of 259 s.
"""
_QUICK: Final = " ".join(
    (
        "-XX:TieredStopAtLevel=1",
        # The default for both compilers together; for one alone it is a fifth, and Java interprets once it is full.
        "-XX:ReservedCodeCacheSize=240m",
    )
)

FEW_EVENTS: Final = 20_000
"""Up to this number of events, planning costs far more than processing."""
INTERPRETED: Final = {
    # Interpret a plan for each row instead of compiling it: 2,600 events in a new session take 39 s of processor time
    # instead of 48 s.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
COMPILED: Final = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
"""Spark's defaults, set explicitly because a session may have been used for few events before."""
ADAPTIVE: Final = "spark.sql.adaptive.enabled"
"""Adaptive execution plans again after each stage: useless for few events."""

_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # With fewer groups it sorts: 11.8 s instead of 4.2 s for percentiles of 20 million rows.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "200000",
    # Otherwise Spark reads a flipped byte without an error.
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    "spark.hadoop.parquet.page.write-checksum.enabled": "true",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # The driver knows every file: no summaries or marker files.
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Recording the Python line of every column costs a fifth of a small run.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # The driver names every file: a listing job would cost more than the listing.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    # Spark's cache of compiled code: a run compiles several times the default of 100, and the next run mostly the same.
    "spark.sql.codegen.cache.maxEntries": "2000",
    # No .crc file for every file: pages have checksums, and the manifest has the sizes.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
}

_LOCAL_SETTINGS: Final = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
}


def is_local(master: str | None) -> bool:
    return master is not None and master.startswith(LOCAL)


def java_options(events: int | None) -> str:
    return _JAVA if events is None or events > QUICK_EVENTS else f"{_JAVA} {_QUICK}"


def settings_for(master: str, events: int | None) -> dict[str, str]:
    """Settings of a session for this number of events; None: unknown."""
    local, few = is_local(master), events is not None and events <= FEW_EVENTS
    # The defaults, so that a user's `extraJavaOptions` take precedence.
    java = dict.fromkeys(("spark.driver.defaultJavaOptions", "spark.executor.defaultJavaOptions"), java_options(events))
    settings = {**_SETTINGS, **java, **(INTERPRETED if few else COMPILED), ADAPTIVE: str(not few).lower()}
    if not local:
        return settings
    # Spark's default of 200 would create hundreds of tasks for a few rows.
    partitions = 1 if few else LOCAL_PARTITIONS * (os.cpu_count() or 1)
    return {**settings, **_LOCAL_SETTINGS, "spark.sql.shuffle.partitions": str(partitions)}


def start(master: str = "local[*]", settings: dict[str, str] | None = None, events: int | None = None) -> SparkSession:
    """Create the session. It takes 6 to 10 s, so a process creates one and keeps it.

    `settings` override ours. `events` is the expected number of events; None: unknown or unlimited.
    """
    if is_local(master):
        os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    # Spark's default profile logs useless warnings; ours logs errors.
    os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "conf"))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession  # noqa: PLC0415  # the environment must be set before

    builder = SparkSession.builder.master(master).appName("scale0")
    for name, value in {**settings_for(master, events), **(settings or {})}.items():
        builder = builder.config(name, value)
    with filtered_stderr():
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    cache_java_lookups(session.sparkContext._jvm)
    return session

"""Caches frames that a step reads more than once, until everything computed from them is written.

Several steps may run in different threads; each releases only its own frames. Losing an executor costs time, never the
run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from scale0.pipeline.spark_session import is_local

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RELEASES: Final[ContextVar[list[Callable[[], object]] | None]] = ContextVar("releases", default=None)
"""One release function per cached frame."""


def cache(frame: DataFrame) -> DataFrame:
    """Persist the frame. Outside `release_cached` the caller must unpersist it."""
    cached = frame.persist()
    _remember(cached.unpersist)
    return cached


def truncate_plan(frame: DataFrame) -> DataFrame:
    """Compute the frame now and truncate its plan: for small frames with long plans that are read often.

    Spark analyses the whole plan of a frame for everything that is derived from it. Truncation saved a fifth of the
    time of the presence tables. On a cluster the frame is only persisted, because a local checkpoint is lost together
    with its executor.
    """
    if not is_local(frame.sparkSession.sparkContext.master):
        return cache(frame)
    cached = frame.localCheckpoint()
    rows = cached._jdf.queryExecution().analyzed().rdd()  # PySpark has no API to release a local checkpoint
    _remember(lambda: rows.unpersist(False))
    return cached


def _remember(release: Callable[[], object]) -> None:
    releases = _RELEASES.get()
    if releases is not None:
        releases.append(release)


@contextlib.contextmanager
def release_cached() -> Iterator[None]:
    """Release all frames cached inside the context when it ends."""
    releases: list[Callable[[], object]] = []
    token = _RELEASES.set(releases)
    try:
        yield
    finally:
        _RELEASES.reset(token)
        for release in reversed(releases):
            release()

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

_HELD: Final[ContextVar[list[Callable[[], object]] | None]] = ContextVar("held", default=None)
"""One release function per cached frame."""


def hold(frame: DataFrame) -> DataFrame:
    """Persist the frame. Outside `release_cached` the caller must unpersist it."""
    kept = frame.persist()
    _remember(kept.unpersist)
    return kept


def cut(frame: DataFrame) -> DataFrame:
    """Compute the frame now and truncate its plan: for small frames with long plans that are read often.

    Spark analyses the whole plan of a frame for everything that is derived from it. Truncation saved a fifth of the
    time of the presence tables. On a cluster the frame is only persisted, because a local checkpoint is lost together
    with its executor.
    """
    if not is_local(frame.sparkSession.sparkContext.master):
        return hold(frame)
    kept = frame.localCheckpoint()
    rows = kept._jdf.queryExecution().analyzed().rdd()  # PySpark has no API to release a local checkpoint
    _remember(lambda: rows.unpersist(False))
    return kept


def _remember(let_go: Callable[[], object]) -> None:
    held = _HELD.get()
    if held is not None:
        held.append(let_go)


@contextlib.contextmanager
def holding() -> Iterator[None]:
    """Release all frames cached inside the context when it ends."""
    held: list[Callable[[], object]] = []
    token = _HELD.set(held)
    try:
        yield
    finally:
        _HELD.reset(token)
        for let_go in reversed(held):
            let_go()

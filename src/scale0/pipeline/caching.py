"""Frames that a step reads more than once: held in memory until all that is made of them is written.

Lives here: who holds what, and when it is let go. Never here: which frames are worth it. Invariants: several steps may
be under way in threads of their own; each lets go of its own frames alone; a lost executor costs time, never a run.
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
"""How to let go of each."""


def hold(frame: DataFrame) -> DataFrame:
    """The frame, computed once however often it is read. Outside `holding` it is for its reader to let go."""
    kept = frame.persist()
    _remember(kept.unpersist)
    return kept


def cut(frame: DataFrame) -> DataFrame:
    """A held frame, computed now, that has forgotten how it came about: for small ones with long plans, read often.

    Spark goes through the whole plan of a frame for everything that is made of it. Measured: the world's tables took a
    fifth less. On a cluster it is held as any other: there such a frame would be gone with its executor, and the run.
    """
    if not is_local(frame.sparkSession.sparkContext.master):
        return hold(frame)
    kept = frame.localCheckpoint()
    rows = kept._jdf.queryExecution().analyzed().rdd()  # nothing in Python lets go of it
    _remember(lambda: rows.unpersist(False))
    return kept


def _remember(let_go: Callable[[], object]) -> None:
    held = _HELD.get()
    if held is not None:
        held.append(let_go)


@contextlib.contextmanager
def holding() -> Iterator[None]:
    """What is held within is let go at the end."""
    held: list[Callable[[], object]] = []
    token = _HELD.set(held)
    try:
        yield
    finally:
        _HELD.reset(token)
        for let_go in reversed(held):
            let_go()

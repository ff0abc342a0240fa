"""Frames that a step reads more than once: held in memory until all that is made of them is written.

Lives here: who holds what, and when it is let go. Never here: which frames are worth it. Invariant: several steps may
be under way in threads of their own; each lets go of its own frames alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_HELD: Final[ContextVar[list[DataFrame] | None]] = ContextVar("held", default=None)


def hold(frame: DataFrame) -> DataFrame:
    """The frame, computed once however often it is read. Outside `holding` it is for its reader to let go."""
    held = _HELD.get()
    kept = frame.persist()
    if held is not None:
        held.append(kept)
    return kept


@contextlib.contextmanager
def holding() -> Iterator[None]:
    """What is held within is let go at the end."""
    frames: list[DataFrame] = []
    token = _HELD.set(frames)
    try:
        yield
    finally:
        _HELD.reset(token)
        for frame in reversed(frames):
            frame.unpersist()

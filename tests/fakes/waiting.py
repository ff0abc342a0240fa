"""Waiting for a condition, with one patience for all tests.

A test that passes does not become slower by patience, and one that fails says what it waited for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

PATIENCE_SECONDS: Final = 60.0
"""For what nobody promised a time: a shared machine can stand still for many seconds."""
LOOK_SECONDS: Final = 0.02
"""Between two looks at what costs little."""

Look = Callable[[], Any]


def until(look: Look, what: str = "", seconds: float = PATIENCE_SECONDS, every: float = LOOK_SECONDS) -> Any:
    """The first true value of `look`."""
    go_on = _patience(look, what, seconds)
    while not (found := look()):
        go_on()
        time.sleep(every)
    return found


async def eventually(look: Look, what: str = "", seconds: float = PATIENCE_SECONDS, every: float = LOOK_SECONDS) -> Any:
    """The same, in a loop that goes on meanwhile."""
    go_on = _patience(look, what, seconds)
    while not (found := look()):
        go_on()
        await asyncio.sleep(every)
    return found


def _patience(look: Look, what: str, seconds: float) -> Callable[[], None]:
    """What fails the test when the time is over."""
    end = time.monotonic() + seconds
    code = getattr(look, "__code__", None)
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""

    def go_on() -> None:
        assert time.monotonic() <= end, f"it did not come true within {seconds:g} s: {what or look}{where}"

    return go_on

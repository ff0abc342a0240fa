"""Waiting for what comes: the one way, and the one patience.

Lives here: looking again and again. Never here: how long something may take; a test that promises a time passes it.
Invariant: a test that passes does not become slower by patience, and one that fails says what it waited for.
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


def until(
    look: Callable[[], Any], what: str = "", seconds: float = PATIENCE_SECONDS, every: float = LOOK_SECONDS
) -> Any:
    """The first true value of `look`."""
    end = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > end:
            raise AssertionError(too_late(look, what, seconds))
        time.sleep(every)
    return found


async def eventually(
    look: Callable[[], Any], what: str = "", seconds: float = PATIENCE_SECONDS, every: float = LOOK_SECONDS
) -> Any:
    """The same, in a loop that goes on meanwhile."""
    end = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > end:
            raise AssertionError(too_late(look, what, seconds))
        await asyncio.sleep(every)
    return found


def too_late(look: Callable[[], object], what: str, seconds: float) -> str:
    code = getattr(look, "__code__", None)
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
    return f"it did not come true within {seconds:g} s: {what or look}{where}"

"""The clocks of this process."""

from __future__ import annotations

import time
from typing import Final

from scale0.kernel.clock import Now

FIRST_WALL: Final = 1.0
"""A wall clock before 1970 shows this: stored times are never negative, and 0 means that none is known."""


def read_now() -> Now:
    return Now(time.monotonic(), max(FIRST_WALL, time.time()))

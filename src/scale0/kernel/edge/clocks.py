"""The clocks of this process."""

from __future__ import annotations

import time

from scale0.kernel.clock import Now


def read_now() -> Now:
    """This instant."""
    return Now(time.monotonic(), time.time())

"""The clocks of this process."""

from __future__ import annotations

import time

from scale0.kernel.clock import Now


def read_now() -> Now:
    return Now(time.monotonic(), time.time())

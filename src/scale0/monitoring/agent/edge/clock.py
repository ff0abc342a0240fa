"""The clocks that results are dated with.

Lives here: reading them. Never here: what an age means. `CLOCK_BOOTTIME` goes on while the machine sleeps and never
jumps, but begins again with each boot; the boot id says which one it was.
"""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Final

from scale0.monitoring.agent.edge.log_segment import Instant

BOOT_ID_FILE: Final = Path("/proc/sys/kernel/random/boot_id")


def read_instant() -> Instant:
    """This moment."""
    return Instant(time.clock_gettime(time.CLOCK_BOOTTIME), time.time())


def read_boot_id() -> str:
    """Which boot this is. Where the system does not say, none but this run: then no age is known over a restart."""
    try:
        found = BOOT_ID_FILE.read_text().strip()
    except OSError:
        found = ""
    return found or f"unknown-{secrets.token_hex(8)}"

"""Whether a process has ended, asked at any moment of its end."""

from __future__ import annotations

import psutil


def gone(pid: int) -> bool:
    """True of one that is no more, and of one that only waits for its parent to ask."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True

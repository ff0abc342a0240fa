"""Child processes that end with their parent, even if it is killed by SIGKILL (prctl(2), PR_SET_PDEATHSIG). Only Linux
has this; elsewhere a child notices that its pipe to the parent is closed."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from typing import Final

PR_SET_PDEATHSIG: Final = 1


def end_with_parent(by: signal.Signals = signal.SIGKILL) -> None:
    """Asks the kernel to send `by` to this process when the thread that started it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, by, 0, 0, 0)


def before_exec(by: signal.Signals = signal.SIGTERM) -> Callable[[], None] | None:
    """For `preexec_fn` of subprocess: the child asks for `by`, and exits at once if its parent is gone already."""
    if sys.platform != "linux":
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, by, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return ask

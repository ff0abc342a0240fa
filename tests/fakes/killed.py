"""Programs that kill themselves at a failpoint, and how a test runs one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable


def kill_at(point: str, nth: int = 1) -> Callable[[str], None]:
    """A failpoint that ends this process by SIGKILL when it comes by for the nth time."""
    left = nth

    def reach(name: str) -> None:
        nonlocal left
        left -= name == point
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    return reach


def run_program(module: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """`python -m MODULE ARGUMENTS`, with the path of this process."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=120)

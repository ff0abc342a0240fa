"""A module of ours as a process of its own, with pipes to it: how one is started, and ended at once.

Lives here: what every such process has in common. Never here: what is said through the pipes, or when one is started
again. Invariant: nothing that it is told stands in the list of processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping
from typing import NamedTuple


class Piped(NamedTuple):
    """One that was started."""

    process: asyncio.subprocess.Process
    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader


async def start_module(module: str, max_line_bytes: int, environment: Mapping[str, str] | None = None) -> Piped:
    """Start it; `environment` is what it has beside ours. OSError if it cannot be."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", module),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=max_line_bytes,
        start_new_session=True,  # Ctrl-C is for us
        env={**os.environ, **(environment or {})},
    )
    if process.stdin is None or process.stdout is None:
        raise AssertionError("it was started with pipes")
    return Piped(process, process.stdin, process.stdout)


def kill(process: asyncio.subprocess.Process | None) -> None:
    """End it, if it runs."""
    if process is not None and process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()

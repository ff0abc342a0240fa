"""Filters useless lines from the stderr of a Java process."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Final

STDERR: Final = 2
USELESS: Final = (b"WARNING: Using incubator modules:",)
"""Prefixes of lines."""


@contextlib.contextmanager
def murmurs_left_out() -> Iterator[None]:
    """Processes started inside the context have a stderr without USELESS lines; all other lines are passed through."""
    ours = os.dup(STDERR)
    inlet, outlet = os.pipe()
    threading.Thread(target=_pass_on, args=(inlet, ours), daemon=True, name="scale0-murmurs").start()
    os.dup2(outlet, STDERR)
    os.close(outlet)
    try:
        yield
    finally:
        os.dup2(ours, STDERR)


def _pass_on(inlet: int, ours: int) -> None:
    """Copy lines until the last process that holds the other end has exited."""
    with open(inlet, "rb") as lines, contextlib.suppress(OSError):
        for line in lines:
            if not line.startswith(USELESS):
                os.write(ours, line)
    os.close(ours)

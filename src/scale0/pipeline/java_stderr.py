"""What a Java machine says on stderr that nobody can do anything about, left out.

Lives here: a pipe between its stderr and ours, while it starts and as long as it lives. Never here: Spark's own log,
which `conf/log4j2.properties` keeps short. Invariant: whatever is not known to be of no use is passed on as it is.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Final

STDERR: Final = 2
USELESS: Final = (b"WARNING: Using incubator modules:",)
"""Beginnings of lines."""


@contextlib.contextmanager
def murmurs_left_out() -> Iterator[None]:
    """Processes that are started within have a stderr without such lines."""
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
    """Until the last process that has the other end is gone."""
    with open(inlet, "rb") as lines, contextlib.suppress(OSError):
        for line in lines:
            if not line.startswith(USELESS):
                os.write(ours, line)
    os.close(ours)

"""What brokers and Helens set up for their whole process: signals that stop it, file descriptors, and the interpreter.

Invariant: a signal to stop is never lost, also while a process restarts its server within itself."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import signal
import sys
from typing import Final

from scale0.kernel.errors import ConfigError

WANTED_FILES: Final = 1_048_576
"""File descriptors that are requested: one for each client."""
LEAST_FILES: Final = 256
"""A broker's own files take some dozens, and connections leave RESERVED_DESCRIPTORS."""

GC_THRESHOLDS: Final = (10_000, 500, 100)
"""Net allocations before a collection of the young generation, and how often older generations follow."""

SWITCH_SECONDS: Final = 0.0005
"""How long the writer's thread may wait for the GIL: a commit takes a dozen such steps."""


class ProcessEnd:
    """Ends a server with a status: 0 after SIGTERM or SIGINT, another one by `end`. The first call counts.

    A server that starts again in the same process ends at once if a signal came before."""

    def __init__(self) -> None:
        self._stop_requested = False
        self._status: asyncio.Future[int] | None = None

    def begin(self) -> asyncio.Future[int]:
        """The status of the server that starts now, once it is known."""
        self._status = asyncio.get_running_loop().create_future()
        if self._stop_requested:
            self.end(0)
        return self._status

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)

    def end(self, status: int) -> None:
        if self._status is not None and not self._status.done():
            self._status.set_result(status)

    def _stop(self) -> None:
        self._stop_requested = True
        self.end(0)


def tune_interpreter() -> None:
    """Objects from the start live until the end, and later ones are freed by reference counting: the cycle collector
    would traverse all clients repeatedly for nothing."""
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_SECONDS)


def raise_file_limit() -> None:
    """Permit as many files as possible; raises ConfigError if connections could not have any of them."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(hard, WANTED_FILES)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    permitted, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if permitted != resource.RLIM_INFINITY and permitted < LEAST_FILES:
        limit = f"at most {permitted} open files are permitted, and {LEAST_FILES} are needed for a few connections"
        raise ConfigError([f"{limit}: raise the hard limit (LimitNOFILE in its unit, or ulimit -Hn)"])

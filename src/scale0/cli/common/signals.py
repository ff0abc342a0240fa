"""SIGINT and SIGTERM for commands that start processes: `scale0 chaos`, `scale0 demo` and `scale0 bench`.

A signal is recorded, and never raised as an exception where it happens to arrive: Python swallows an exception in the
middle of a fork, and one inside a lock, a `finally` or a process start would leave processes behind. The main thread
does not wait for the work after a signal. A second signal ends the process at once.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn, TypeVar

from scale0.cli.common.errors import INTERRUPTED, NO

STATUS: Final[dict[int, int]] = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: NO}
"""The exit code after a signal."""
DONE: Final = 0
"""The byte that the work writes when it has ended; no signal has this number."""
SAME_SIGNAL_SECONDS: Final = 1.0
"""A signal that follows the first one sooner is the same one, forwarded by the parent process."""
STDERR: Final = 2
REMOVALS: Final = 10
"""The thread of the work, or a dying process, may write a last file while the folder is removed."""

Result = TypeVar("Result")


class StopRequested(Exception):
    """A signal arrived: clean up, and let this exception pass."""

    def __init__(self, status: int) -> None:
        super().__init__(f"ended by a signal, with {status}")
        self.status = status


class StopSignal:
    """A pipe through which the end of the work, or a signal, arrives as a byte.

    The kernel may deliver a signal to any thread, for example to one that is just forking, and a Python handler then
    waits until the main thread runs. So the main thread reads the pipe, into which Python's wakeup descriptor writes
    the signal's number at once, whichever thread got it.
    """

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self.writer, False)
        self._first: float | None = None

    def close(self) -> None:
        os.close(self._reader)
        os.close(self.writer)

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """The signal handler: the byte is already in the pipe, so only a second signal needs an action."""
        now = time.monotonic()
        if self._first is None:
            self._first = now
        elif now - self._first >= SAME_SIGNAL_SECONDS:
            os._exit(STATUS[number])  # the kernel ends our children: see kernel.edge.parent_death

    def run(self, work: Callable[[], Result]) -> Result:
        """The result of the work; raises StopRequested as soon as a signal arrives."""
        results: list[Result] = []
        errors: list[BaseException] = []

        def target() -> None:
            try:
                results.append(work())
            except BaseException as error:  # it is raised below, in the waiting thread
                errors.append(error)
            finally:
                os.write(self.writer, bytes([DONE]))

        # A thread of its own, so that this one can wait for signals; a daemon, as it may be anywhere when we exit.
        threading.Thread(target=target, name="scale0-work", daemon=True).start()
        while (byte := os.read(self._reader, 1)[0]) != DONE:
            if byte in STATUS:
                raise StopRequested(STATUS[byte])
        if errors:
            raise errors[0]
        return results[0]


@contextlib.contextmanager
def stop_on_signal() -> Iterator[StopSignal]:
    """Inside, signals end `run` only. If StopRequested passes, the process exits at once with the signal's status."""
    stop = StopSignal()
    # A shell may start a process with SIGINT ignored; then it stays ignored.
    handled = [number for number in STATUS if signal.getsignal(number) is not signal.SIG_IGN]
    old_wakeup = signal.set_wakeup_fd(stop.writer, warn_on_full_buffer=False)
    old_handlers = {number: signal.signal(number, stop.handle) for number in handled}
    try:
        yield stop
    except StopRequested as request:
        _exit(request.status)
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(old_wakeup)
        stop.close()


def _exit(status: int) -> NoReturn:
    """At once: the thread of the work may hold locks that a normal exit needs."""
    if status == INTERRUPTED:
        with contextlib.suppress(OSError):
            os.write(STDERR, b"\n")  # after the ^C of a terminal
    os._exit(status)


def remove(folder: Path) -> None:
    for _ in range(REMOVALS):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return

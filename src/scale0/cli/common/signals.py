"""A command with processes of its own that is told to end: by Ctrl-C or by SIGTERM, at any moment.

Lives here: how `scale0 chaos` and `scale0 demo` hear it, and how their folder goes. Never here: what there is to end.
Invariants: a signal is written down and never raised where it happens to arrive, for an exception in the middle of a
fork is swallowed by Python, and one in a lock, a `finally` or a start leaves behind what nobody knows; whoever is told
waits for nothing that the story still does; a second signal ends the process at once.
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

from scale0.cli.common import errors as faults

STATUS: Final[dict[int, int]] = {signal.SIGINT: faults.INTERRUPTED, signal.SIGTERM: faults.NO}
"""What a command exits with that was ended by a signal."""
OVER: Final = 0
"""The story's own end; no signal has this number."""
AGAIN_SECONDS: Final = 1.0
"""A signal that comes sooner after the first is the same one, passed on by the program that started us."""
STDERR: Final = 2
REMOVALS: Final = 10
"""The story's thread, or a process that is dying, may write a last file while the folder is removed."""

Result = TypeVar("Result")


class StopRequested(Exception):
    """Somebody wants the command to end: clean up, and let it pass."""

    def __init__(self, status: int) -> None:
        super().__init__(f"ended by a signal, with {status}")
        self.status = status


class StopSignal:
    """What ends a story: its last line, or a signal. Both come as a byte through a pipe.

    The kernel may hand a signal to any thread of ours, above all to one that is just forking, and a handler in Python
    then waits until the main thread does something. So the main thread waits for the pipe, into which Python itself
    writes a signal's number at once, whichever thread it hit.
    """

    def __init__(self) -> None:
        self._ends, self.bell = os.pipe()
        os.set_blocking(self.bell, False)
        self._first: float | None = None

    def close(self) -> None:
        """Hear no more."""
        os.close(self._ends)
        os.close(self.bell)

    def hear(self, number: int, _frame: FrameType | None) -> None:
        """A signal has come, whose byte is in the pipe: nothing but a second one has to be done something about."""
        now = time.monotonic()
        if self._first is None:
            self._first = now
        elif now - self._first >= AGAIN_SECONDS:
            os._exit(STATUS[number])  # the kernel ends our children: see `child.tether`

    def run(self, story: Callable[[], Result]) -> Result:
        """What the story returns or raises; Told as soon as a signal comes, wherever the story is then."""
        results: list[Result] = []
        errors: list[BaseException] = []

        def tell() -> None:
            try:
                results.append(story())
            except BaseException as error:  # it is raised below, in the thread that waits
                errors.append(error)
            finally:
                os.write(self.bell, bytes([OVER]))

        # A thread of its own, so that this one is free to hear; a daemon, as it may be anywhere when we leave.
        threading.Thread(target=tell, name="scale0-story", daemon=True).start()
        while (end := os.read(self._ends, 1)[0]) != OVER:
            if end in STATUS:
                raise StopRequested(STATUS[end])
        if errors:
            raise errors[0]
        return results[0]


@contextlib.contextmanager
def told_to_end() -> Iterator[StopSignal]:
    """From here on signals are heard by `run` alone; who lets Told pass leaves at once, with the signal's status."""
    ending = StopSignal()
    # A shell starts what must not hear Ctrl-C with SIGINT ignored: so it stays.
    heard = [number for number in STATUS if signal.getsignal(number) is not signal.SIG_IGN]
    bell = signal.set_wakeup_fd(ending.bell, warn_on_full_buffer=False)
    before = {number: signal.signal(number, ending.hear) for number in heard}
    try:
        yield ending
    except StopRequested as told:
        _leave(told.status)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(bell)
        ending.close()


def _leave(status: int) -> NoReturn:
    """Now: the story's thread may be anywhere, and hold what an exit in order would need."""
    if status == faults.INTERRUPTED:
        with contextlib.suppress(OSError):
            os.write(STDERR, b"\n")  # after the ^C of a terminal
    os._exit(status)


def remove(folder: Path) -> None:
    """The folder and all that is in it."""
    for _ in range(REMOVALS):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return

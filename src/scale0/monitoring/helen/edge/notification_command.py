"""A command of Helen's own file, run for a notice.

Lives here: one process, its input, the beginning of its complaints, and its end. Never here: what it is run for.
Invariants: no shell; nothing that it started (and that did not leave its session) outlasts it; it ends at its time at
the latest, whatever it does; of what it says, little is kept.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable
from typing import IO, Final

LOOK_SECONDS: Final = 0.1
"""How often it is asked whether anybody still waits."""
READ_BYTES: Final = 65_536
MAX_SAID_BYTES: Final = 2_000


def run_command(words: tuple[str, ...], given: bytes, timeout: float, unwanted: Callable[[], bool]) -> tuple[int, str]:
    """Its exit status, and what it said on stderr. TimeoutError: it took too long; OSError: it cannot be started.

    It blocks: for a thread. `unwanted` turns true when nobody waits for it any more.
    """
    with subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            said = _follow(process, given, time.monotonic() + timeout, unwanted)
        finally:
            # Before it is buried: until then its number, and that of its group, is nobody else's.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
    return process.returncode, said.decode("utf-8", "replace")


def _follow(process: subprocess.Popen[bytes], given: bytes, deadline: float, unwanted: Callable[[], bool]) -> bytearray:
    """Until it has ended. Its end is told by a descriptor: a pipe may be held open by what it left behind."""
    if process.stdin is None or process.stderr is None:
        raise AssertionError("it was started with pipes")
    said = bytearray()
    ended = os.pidfd_open(process.pid)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(ended, selectors.EVENT_READ)
            for pipe, event in ((process.stderr, selectors.EVENT_READ), (process.stdin, selectors.EVENT_WRITE)):
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, event)
            while True:
                left = deadline - time.monotonic()
                if left <= 0 or unwanted():
                    raise TimeoutError
                ready = {key.fileobj for key, _ in selector.select(min(left, LOOK_SECONDS))}
                if process.stderr in ready and not _listen(process.stderr, said):
                    selector.unregister(process.stderr)
                if ended in ready:
                    return said
                if process.stdin in ready:
                    given = _feed(process.stdin, given)
                    if not given:
                        selector.unregister(process.stdin)
                        with contextlib.suppress(BrokenPipeError):
                            process.stdin.close()
    finally:
        os.close(ended)


def _listen(pipe: IO[bytes], said: bytearray) -> bool:
    """Keep the beginning; False when there is nothing more to come."""
    try:
        part = os.read(pipe.fileno(), READ_BYTES)
    except BlockingIOError:
        return True
    said += part[: MAX_SAID_BYTES - len(said)]
    return bool(part)


def _feed(pipe: IO[bytes], given: bytes) -> bytes:
    """What is left to be told; one that does not want to hear it need not."""
    try:
        return given[os.write(pipe.fileno(), given) :]
    except BlockingIOError:
        return given
    except BrokenPipeError:
        return b""

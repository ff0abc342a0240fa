"""Runs a command of Helen's configuration file for a notification.

There is no shell. The command gets its input on stdin and ends at its timeout at the latest. Whatever it started in its
session is killed with it.
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

POLL_SECONDS: Final = 0.1
"""How often `cancelled` is polled."""
READ_BYTES: Final = 65_536
MAX_STDERR_BYTES: Final = 2_000


def run_command(
    command: tuple[str, ...], stdin: bytes, timeout: float, cancelled: Callable[[], bool]
) -> tuple[int, str]:
    """Run a command; returns its exit status and the beginning of its stderr. Blocking: for a thread.

    `cancelled` returns True once nobody waits for the result. Raises TimeoutError if the command took too long, and
    OSError if it cannot be started.
    """
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            stderr = _run_to_end(process, stdin, time.monotonic() + timeout, cancelled)
        finally:
            # Before the process is reaped: until then its process id and its group are not reused.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
    return process.returncode, stderr.decode("utf-8", "replace")


def _run_to_end(
    process: subprocess.Popen[bytes], stdin: bytes, deadline: float, cancelled: Callable[[], bool]
) -> bytearray:
    """Feed stdin and read stderr until the process ends. A pidfd signals the end: descendants may hold pipes open."""
    if process.stdin is None or process.stderr is None:
        raise AssertionError("it was started with pipes")
    stderr = bytearray()
    ended = os.pidfd_open(process.pid)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(ended, selectors.EVENT_READ)
            for pipe, event in ((process.stderr, selectors.EVENT_READ), (process.stdin, selectors.EVENT_WRITE)):
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, event)
            while True:
                left = deadline - time.monotonic()
                if left <= 0 or cancelled():
                    raise TimeoutError
                ready = {key.fileobj for key, _ in selector.select(min(left, POLL_SECONDS))}
                if process.stderr in ready and not _read_stderr(process.stderr, stderr):
                    selector.unregister(process.stderr)
                if ended in ready:
                    return stderr
                if process.stdin in ready:
                    stdin = _write_stdin(process.stdin, stdin)
                    if not stdin:
                        selector.unregister(process.stdin)
                        with contextlib.suppress(BrokenPipeError):
                            process.stdin.close()
    finally:
        os.close(ended)


def _read_stderr(pipe: IO[bytes], stderr: bytearray) -> bool:
    """Keep the beginning of stderr; False at its end."""
    try:
        part = os.read(pipe.fileno(), READ_BYTES)
    except BlockingIOError:
        return True
    stderr += part[: MAX_STDERR_BYTES - len(stderr)]
    return bool(part)


def _write_stdin(pipe: IO[bytes], stdin: bytes) -> bytes:
    """Write to stdin; returns what is left. A command need not read its input."""
    try:
        return stdin[os.write(pipe.fileno(), stdin) :]
    except BlockingIOError:
        return stdin
    except BrokenPipeError:
        return b""

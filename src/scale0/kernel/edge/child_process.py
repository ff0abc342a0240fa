"""Runs a module of this package as a child process with pipes, and restarts it. Invariants: a failure of the child
never stops the parent or delays a turn; the child ends with its parent, because its standard input closes; nothing sent
to it appears in the process list; restarts back off exponentially until the child works."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple


class RestartPolicy(NamedTuple):
    """The module to run, and its restart delays."""

    module: str
    name: str
    """For messages, such as "the writer of segments"."""
    max_line_bytes: int
    first_backoff_seconds: float
    max_backoff_seconds: float


class ChildProcess:
    """The current process."""

    def __init__(
        self,
        manner: RestartPolicy,
        greeting: Callable[[], bytes],
        read_line: Callable[[bytes], None],
        trouble: Callable[[str], None],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`greeting` makes the first input of each process; `environment` is added to that of this process."""
        self._manner = manner
        self._first_input = greeting
        self._read_line = read_line
        self._trouble = trouble
        self._environment = dict(environment or {})
        self._process: asyncio.subprocess.Process | None = None
        self._backoff = manner.first_backoff_seconds
        self.finishing = False
        """True once the process may end without a restart."""
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    async def run(self) -> None:
        """Runs and restarts the process until it may end."""
        while not self.finishing:
            await self.run_once()
            self.restarts += 1
            await asyncio.sleep(self._backoff)
            self._backoff = min(self._backoff * 2, self._manner.max_backoff_seconds)

    async def run_once(self) -> None:
        name = self._manner.name
        try:
            process = await self._start()
        except OSError as error:
            self._trouble(f"{name} cannot be started: {error}")
            return
        self._process = process
        self.write(self._first_input())
        if process.stdout is not None:
            with contextlib.suppress(ValueError, ConnectionError):  # an overlong input, or a broken pipe
                while line := await process.stdout.readline():
                    self._read_line(line)
        self.kill()
        status = await process.wait()
        if not self.finishing:
            self._trouble(f"{name} ended with status {status}; it is started again")

    async def _start(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", self._manner.module),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=self._manner.max_line_bytes,
            start_new_session=True,  # Ctrl-C is for the parent only
            env={**os.environ, **self._environment},
        )

    def works(self) -> None:
        """Resets the backoff: the output of the process shows that it works."""
        self._backoff = self._manner.first_backoff_seconds

    def write(self, line: bytes) -> None:
        """Sends input to the process if its pipe is open."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(ConnectionError, RuntimeError):
                self._process.stdin.write(line)

    def close_input(self) -> None:
        """Closes the input of the process, which ends it in order."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(ConnectionError, RuntimeError):
                self._process.stdin.close()

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

"""A module of ours as a process of its own, with pipes to it: started, heard, started again, ended.

Lives here: what every such process has in common. Never here: what is said through the pipes. Invariants: whatever
becomes of the process, its parent goes on and no turn waits; it ends with its parent, because its standard input closes
then; nothing that it is told stands in the list of processes; it is started again after a pause that doubles until it
is found well.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple


class RestartPolicy(NamedTuple):
    """Which module it is, and how it is kept."""

    module: str
    name: str
    """In sentences: the writer of segments."""
    max_line_bytes: int
    first_backoff_seconds: float
    max_backoff_seconds: float


class ChildProcess:
    """One process, whichever runs now."""

    def __init__(
        self,
        manner: RestartPolicy,
        greeting: Callable[[], bytes],
        hear: Callable[[bytes], None],
        trouble: Callable[[str], None],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`greeting`: its first line, made anew for each process; `environment`: what it has beside ours."""
        self._manner = manner
        self._greeting = greeting
        self._hear = hear
        self._trouble = trouble
        self._environment = dict(environment or {})
        self._process: asyncio.subprocess.Process | None = None
        self._backoff = manner.first_backoff_seconds
        self.finishing = False
        """It may end, and is not started again."""
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    async def run(self) -> None:
        """One after the other, until it may end."""
        while not self.finishing:
            await self.run_once()
            self.restarts += 1
            await asyncio.sleep(self._backoff)
            self._backoff = min(self._backoff * 2, self._manner.max_backoff_seconds)

    async def run_once(self) -> None:
        """One process, from its start to its end."""
        name = self._manner.name
        try:
            process = await self._start()
        except OSError as error:
            self._trouble(f"{name} cannot be started: {error}")
            return
        self._process = process
        self.say(self._greeting())
        if process.stdout is not None:
            with contextlib.suppress(ValueError, ConnectionError):  # a line that is too long; a pipe that broke
                while said := await process.stdout.readline():
                    self._hear(said)
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
            start_new_session=True,  # Ctrl-C is for us
            env={**os.environ, **self._environment},
        )

    def is_well(self) -> None:
        """What it said shows that it works: the next pause is a short one."""
        self._backoff = self._manner.first_backoff_seconds

    def say(self, line: bytes) -> None:
        """Tell it, if it still listens."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(ConnectionError, RuntimeError):
                self._process.stdin.write(line)

    def hang_up(self) -> None:
        """Say nothing more: it ends in order."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(ConnectionError, RuntimeError):
                self._process.stdin.close()

    def kill(self) -> None:
        """End it at once, if it runs."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

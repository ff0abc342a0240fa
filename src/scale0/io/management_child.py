"""The management server's process, as a broker sees it: started, heard, started again, ended.

Lives here: `ManagementChild`. Never here: HTTP. Invariants: whatever becomes of that process, the broker goes on and no
turn waits; it ends with the broker; what is in the way is logged once, and again when it is over; started again, it
serves where it did, so that an open console finds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

import msgspec

from scale0.base.about import about
from scale0.io.management_settings import Ready, Settings
from scale0.io.piped import kill, start_module

log = logging.getLogger("scale0.management")

MODULE: Final = "scale0.management"
READY: Final = b"ready "
FINISH_SECONDS: Final = 5.0
"""How long it may take to say goodbye to browsers."""
FIRST_BACKOFF_SECONDS: Final = 0.5
MAX_BACKOFF_SECONDS: Final = 30.0
MAX_LINE_BYTES: Final = 65_536

Served = Callable[[Ready], None]


class ManagementChild:
    """One server's process, and what it said."""

    def __init__(self, settings: Settings | None, served: Served, environment: Mapping[str, str] | None = None) -> None:
        """`environment`: what it has beside ours."""
        self._environment = dict(environment or {})
        self._settings = settings
        """None: it is not wanted, and there is nothing to do."""
        self._served = served
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._backoff = FIRST_BACKOFF_SECONDS
        self._finishing = False
        self._trouble = ""
        self._any_port = settings is not None and settings.port == 0
        self._is_ready = False
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    def start(self) -> None:
        """Begin."""
        if self._settings is not None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def finish(self) -> None:
        """Let it end in order, if that does not take too long; then it is gone."""
        self._finishing = True
        if self._task is not None and self.pid is not None:
            self._hang_up()
            await asyncio.wait([self._task], timeout=FINISH_SECONDS)
        self.close()

    def close(self) -> None:
        """End it at once."""
        self._finishing = True
        self._kill()
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while not self._finishing:
            await self._run_once()
            self.restarts += 1
            await asyncio.sleep(self._backoff)
            self._backoff = min(self._backoff * 2, MAX_BACKOFF_SECONDS)

    async def _run_once(self) -> None:
        """One process, from its start to its end."""
        if self._any_port and not self._is_ready:
            self._serve_at(0)  # where it was, somebody else may be
        self._is_ready = False
        try:
            process, stdin, stdout = await start_module(MODULE, MAX_LINE_BYTES, self._environment)
        except OSError as error:
            self._note_trouble(f"the management server cannot be started: {error}")
            return
        self._process = process
        with contextlib.suppress(ValueError, ConnectionError):  # a line that is too long; a pipe that broke
            # Its standard input stays open: when it closes, whatever the reason, the server ends.
            stdin.write(msgspec.json.encode(self._settings) + b"\n")
            while said := await stdout.readline():
                self._hear(said)
        self._kill()
        status = await process.wait()
        if not self._finishing:
            self._note_trouble(f"the management server ended with status {status}; it is started again")

    def _hear(self, said: bytes) -> None:
        if not said.startswith(READY):
            return
        try:
            ready = msgspec.json.decode(said[len(READY) :], type=Ready)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._note_trouble(f"the management server speaks nonsense: {error}")
            return
        self._backoff = FIRST_BACKOFF_SECONDS
        self._trouble = ""
        log.info("management is served at %s", ready.url, extra=about(url=ready.url))
        if self._settings is not None and self._settings.wants_link:
            self._settings = msgspec.structs.replace(self._settings, wants_link=False)  # a way in is told once
        self._is_ready = True
        if self._any_port:
            self._serve_at(urlsplit(ready.url).port or 0)
        self._served(ready)

    def _serve_at(self, port: int) -> None:
        if self._settings is not None:
            self._settings = msgspec.structs.replace(self._settings, port=port)

    def _hang_up(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(ConnectionError, RuntimeError):
                self._process.stdin.close()

    def _kill(self) -> None:
        kill(self._process)

    def _note_trouble(self, what: str) -> None:
        """Log it once."""
        if what != self._trouble:
            self._trouble = what
            log.error("%s", what, extra=about())

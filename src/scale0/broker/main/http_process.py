"""The management server's process, as a broker sees it: started, heard, started again, ended.

Lives here: `HttpProcess`. Never here: HTTP. Invariants: what is in the way is logged once, and
again when it is over; started again, it serves where it did, so that an open console finds it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

import msgspec

from scale0.broker.main.http_settings import HttpReady, HttpSettings
from scale0.kernel.edge.child_process import ChildProcess, RestartPolicy
from scale0.kernel.log_context import about

log = logging.getLogger("scale0.http")

MANNER: Final = RestartPolicy("scale0.http", "the management server", 65_536, 0.5, 30.0)
READY: Final = b"ready "
FINISH_SECONDS: Final = 5.0
"""How long it may take to say goodbye to browsers."""

Served = Callable[[HttpReady], None]


class HttpProcess:
    """One server's process, and what it said."""

    def __init__(
        self, settings: HttpSettings | None, served: Served, environment: Mapping[str, str] | None = None
    ) -> None:
        """`environment`: what it has beside ours."""
        self._settings = settings
        """None: it is not wanted, and there is nothing to do."""
        self._served = served
        self._child = ChildProcess(MANNER, self._greet, self._hear, self._note_trouble, environment)
        self._task: asyncio.Task[None] | None = None
        self._trouble = ""
        self._any_port = settings is not None and settings.port == 0
        self._is_ready = False

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        return self._child.pid

    @property
    def restarts(self) -> int:
        """How often it was started again."""
        return self._child.restarts

    def start(self) -> None:
        """Begin."""
        if self._settings is not None:
            self._task = asyncio.get_running_loop().create_task(self._child.run())

    async def finish(self) -> None:
        """Let it end in order, if that does not take too long; then it is gone."""
        self._child.finishing = True
        if self._task is not None and self.pid is not None:
            self._child.hang_up()
            await asyncio.wait([self._task], timeout=FINISH_SECONDS)
        self.close()

    def close(self) -> None:
        """End it at once."""
        self._child.finishing = True
        self._child.kill()
        if self._task is not None:
            self._task.cancel()

    def _greet(self) -> bytes:
        if self._any_port and not self._is_ready:
            self._serve_at(0)  # where it was, somebody else may be
        self._is_ready = False
        return msgspec.json.encode(self._settings) + b"\n"

    def _hear(self, said: bytes) -> None:
        if not said.startswith(READY):
            return
        try:
            ready = msgspec.json.decode(said[len(READY) :], type=HttpReady)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._note_trouble(f"the management server speaks nonsense: {error}")
            return
        self._child.is_well()
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

    def _note_trouble(self, what: str) -> None:
        """Log it once."""
        if what != self._trouble:
            self._trouble = what
            log.error("%s", what, extra=about())

"""The HTTP server's process: started, supervised, restarted and stopped by a broker.

Invariants: a problem is logged once, and again when it is solved; after a restart the server uses the same port, so
that open consoles find it.
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
"""How long it may take to close the connections of browsers."""

Served = Callable[[HttpReady], None]


class HttpProcess:
    def __init__(
        self, settings: HttpSettings | None, served: Served, environment: Mapping[str, str] | None = None
    ) -> None:
        """`environment`: variables in addition to ours."""
        self._settings = settings
        """None: HTTP is disabled, and there is nothing to do."""
        self._served = served
        self._child = ChildProcess(MANNER, self._greet, self._read_line, self._note_trouble, environment)
        self._task: asyncio.Task[None] | None = None
        self._trouble = ""
        self._any_port = settings is not None and settings.port == 0
        self._is_ready = False

    @property
    def pid(self) -> int | None:
        return self._child.pid

    @property
    def restarts(self) -> int:
        return self._child.restarts

    def start(self) -> None:
        if self._settings is not None:
            self._task = asyncio.get_running_loop().create_task(self._child.run())

    async def finish(self) -> None:
        """Stop it gracefully, and kill it after FINISH_SECONDS."""
        self._child.finishing = True
        if self._task is not None and self.pid is not None:
            self._child.close_input()
            await asyncio.wait([self._task], timeout=FINISH_SECONDS)
        self.close()

    def close(self) -> None:
        self._child.finishing = True
        self._child.kill()
        if self._task is not None:
            self._task.cancel()

    def _greet(self) -> bytes:
        if self._any_port and not self._is_ready:
            self._serve_at(0)  # another process may use its port
        self._is_ready = False
        return msgspec.json.encode(self._settings) + b"\n"

    def _read_line(self, line: bytes) -> None:
        if not line.startswith(READY):
            return
        try:
            ready = msgspec.json.decode(line[len(READY) :], type=HttpReady)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._note_trouble(f"the management server speaks nonsense: {error}")
            return
        self._child.works()
        self._trouble = ""
        log.info("HTTP management listens at %s", ready.url, extra=about(url=ready.url))
        if self._settings is not None and self._settings.wants_link:
            self._settings = msgspec.structs.replace(self._settings, wants_link=False)  # a one-time link is issued once
        self._is_ready = True
        if self._any_port:
            self._serve_at(urlsplit(ready.url).port or 0)
        self._served(ready)

    def _serve_at(self, port: int) -> None:
        if self._settings is not None:
            self._settings = msgspec.structs.replace(self._settings, port=port)

    def _note_trouble(self, what: str) -> None:
        if what != self._trouble:
            self._trouble = what
            log.error("%s", what, extra=about())

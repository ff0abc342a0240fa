"""The writer's process, as a broker or Helen sees it: started, heard, trimmed after, started again, ended.

Lives here: `Scribe`. Never here: pyarrow, or what a segment is. Invariants: whatever becomes of that process, its
parent goes on and no turn waits; the journal is trimmed only up to what the process said is safe, on the store's own
thread, in pieces so small that no commit waits long; what is in the way is logged once, and again when it is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from typing import Final

import msgspec

from scale0.base.about import about
from scale0.base.errors import StoreError
from scale0.io.commits import Commits
from scale0.io.piped import kill, start_module
from scale0.io.segments.settings import Settings, shown
from scale0.io.segments.words import FINISH, MAX_LINE_BYTES, Failed, Removed, Wrote, decode

log = logging.getLogger("scale0.segments")

MODULE: Final = "scale0.io.segments.child"
FINISH_SECONDS: Final = 6.0
"""How long the rest may take to be written when its parent stops; then it stays in the journal."""
TRIM_EVENTS: Final = 4_000
"""Of the journal, at once."""
TRIM_PAUSE_SECONDS: Final = 0.01
FIRST_BACKOFF_SECONDS: Final = 1.0
MAX_BACKOFF_SECONDS: Final = 60.0


class Scribe:
    """One writer's process, and what it said."""

    def __init__(self, settings: Settings | None, commits: Commits) -> None:
        self._settings = settings
        """None: no segments are wanted, and there is nothing to do."""
        self._where = "" if settings is None else shown(settings.place)
        self._commits = commits
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._trimmer: asyncio.Task[None] | None = None
        self._safe: deque[tuple[int, int]] = deque()
        """What may leave the journal, oldest first."""
        self._backoff = FIRST_BACKOFF_SECONDS
        self._finishing = False
        self._trouble = ""
        """What is in the way, as it was logged."""
        self.exported_seq = 0
        self.segments = 0
        self.failures = 0
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    def start(self) -> None:
        """Begin."""
        if self._settings is None:
            return
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def finish(self, status: int) -> None:
        """Have the rest written, if that does not take too long; then the process is gone.

        With a status other than 0 the store has failed: nothing more is read from it.
        """
        self._finishing = True
        task = self._task
        if task is None or status != 0:
            self.close()
            return
        if self.pid is None:
            task.cancel()  # it waits to be started again: a last try
            task = self._task = asyncio.get_running_loop().create_task(self._run_once())
        else:
            self._tell_finish()
        await asyncio.wait([task], timeout=FINISH_SECONDS)
        if not task.done():
            log.warning(
                "the last events were not written in time: they stay in the journal until the next start",
                extra=about(segments=self._where),
            )
        self._kill()
        await asyncio.wait([task], timeout=FINISH_SECONDS)
        if self._trimmer is not None:
            await asyncio.wait([self._trimmer], timeout=FINISH_SECONDS)
        self.close()

    def close(self) -> None:
        """End it at once; what it wrote and did not tell is found at the next start."""
        self._finishing = True
        self._kill()
        for task in (self._task, self._trimmer):
            if task is not None:
                task.cancel()

    async def _run(self) -> None:
        while not self._finishing:
            await self._run_once()
            self.restarts += 1
            await asyncio.sleep(self._backoff)
            self._backoff = min(self._backoff * 2, MAX_BACKOFF_SECONDS)

    async def _run_once(self) -> None:
        """One process, from its start to its end."""
        try:
            process, stdin, stdout = await start_module(MODULE, MAX_LINE_BYTES)
        except OSError as error:
            self._note_trouble(f"the writer of segments cannot be started: {error}")
            return
        self._process = process
        stdin.write(msgspec.json.encode(self._settings) + b"\n")
        if self._finishing:
            self._tell_finish()
        with contextlib.suppress(ValueError, ConnectionError):  # a line that is too long; a pipe that broke
            while said := await stdout.readline():
                self._hear(said)
        self._kill()
        status = await process.wait()
        if not self._finishing:
            self._note_trouble(f"the writer of segments ended with status {status}")

    def _tell_finish(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(ConnectionError, RuntimeError):
                self._process.stdin.write(FINISH)

    def _kill(self) -> None:
        kill(self._process)

    def _hear(self, text: bytes) -> None:
        try:
            said = decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._note_trouble(f"the writer of segments speaks nonsense: {error}")
            return
        match said:
            case Wrote(first_seq, last_seq, name):
                self.exported_seq = max(self.exported_seq, last_seq)
                self.segments += bool(name)
                self._backoff = FIRST_BACKOFF_SECONDS
                if self._trouble:
                    log.warning("segments are written again, to %s", self._where, extra=about(segments=self._where))
                    self._trouble = ""
                log.debug(
                    "events %d to %d are safe: %s",
                    first_seq,
                    last_seq,
                    name or "they were there already",
                    extra=about(segment=name, seq=first_seq),
                )
                self._trim(first_seq, last_seq)
            case Failed(why, damaged):
                if damaged:
                    self._note_trouble(f"{why}. Neither it nor what follows is written to {self._where}")
                else:
                    self._note_trouble(f"cannot write segments to {self._where}: {why}. It is tried again")
            case Removed(days):
                log.info("old segments were removed: %s", ", ".join(days), extra=about(segments=self._where))

    def _note_trouble(self, what: str) -> None:
        """Count it; log it once."""
        self.failures += 1
        if what != self._trouble:
            self._trouble = what
            log.error("%s; meanwhile events stay in the journal, which grows", what, extra=about(segments=self._where))

    def _trim(self, first_seq: int, last_seq: int) -> None:
        self._safe.append((first_seq, last_seq))
        if self._trimmer is None or self._trimmer.done():
            self._trimmer = asyncio.get_running_loop().create_task(self._trim_all())

    async def _trim_all(self) -> None:
        """In pieces, between commits."""
        while self._safe:
            first, last = self._safe.popleft()
            for end in [*range(first + TRIM_EVENTS - 1, last, TRIM_EVENTS), last]:
                try:
                    await self._commits.trim(end)
                except StoreError:
                    return  # it was told where it failed: the process ends
                await asyncio.sleep(TRIM_PAUSE_SECONDS)

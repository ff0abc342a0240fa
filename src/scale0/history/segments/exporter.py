"""The writer's process, as a broker or Helen sees it: started, heard, trimmed after, started again, ended.

Lives here: `SegmentExporter`. Never here: pyarrow, or what a segment is. Invariants: the journal is trimmed
only up to what the process said is safe, on the store's own thread, in pieces so small that no commit waits long; what
is in the way is logged once, and again when it is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final

import msgspec

from scale0.history.segments.exporter_process import (
    FINISH,
    MAX_LINE_BYTES,
    ExportFailed,
    SegmentRemoved,
    SegmentWritten,
    decode_message,
)
from scale0.history.segments.settings import ExporterSettings, redact_url
from scale0.kernel.edge.child_process import ChildProcess, RestartPolicy
from scale0.kernel.edge.commits import Commits
from scale0.kernel.edge.extras import install_command, missing
from scale0.kernel.errors import StoreError
from scale0.kernel.log_context import about

log = logging.getLogger("scale0.segments")

RESTART_POLICY: Final = RestartPolicy(
    "scale0.history.segments.exporter_process", "the writer of segments", MAX_LINE_BYTES, 1.0, 60.0
)
FINISH_SECONDS: Final = 6.0
"""How long the rest may take to be written when its parent stops; then it stays in the journal."""
TRIM_EVENTS: Final = 4_000
"""Of the journal, at once."""
TRIM_PAUSE_SECONDS: Final = 0.01


class SegmentExporter:
    """One writer's process, and what it said."""

    def __init__(self, settings: ExporterSettings | None, commits: Commits) -> None:
        self._settings = settings
        """None: no segments are wanted, and there is nothing to do."""
        self._where = "" if settings is None else redact_url(settings.place)
        self._commits = commits
        self._child = ChildProcess(RESTART_POLICY, self._greet, self._hear, self._note_trouble)
        self._task: asyncio.Task[None] | None = None
        self._trimmer: asyncio.Task[None] | None = None
        self._safe: deque[tuple[int, int]] = deque()
        """What may leave the journal, oldest first."""
        self._trouble = ""
        """What is in the way, as it was logged."""
        self.exported_seq = 0
        self.segments = 0
        self.failures = 0

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
        if self._settings is None:
            return
        if missing(["segments"]):
            log.warning(
                "events are not exported and stay in the journal: pyarrow is not installed; %s",
                install_command(["segments"]),
                extra=about(segments=self._where),
            )
            return
        self._task = asyncio.get_running_loop().create_task(self._child.run())

    async def finish(self, status: int) -> None:
        """Have the rest written, if that does not take too long; then the process is gone.

        With a status other than 0 the store has failed: nothing more is read from it.
        """
        self._child.finishing = True
        task = self._task
        if task is None or status != 0:
            self.close()
            return
        if self.pid is None:
            task.cancel()  # it waits to be started again: a last try
            task = self._task = asyncio.get_running_loop().create_task(self._child.run_once())
        else:
            self._child.say(FINISH)
        await asyncio.wait([task], timeout=FINISH_SECONDS)
        if not task.done():
            log.warning(
                "the last events were not written in time: they stay in the journal until the next start",
                extra=about(segments=self._where),
            )
        self._child.kill()
        await asyncio.wait([task], timeout=FINISH_SECONDS)
        if self._trimmer is not None:
            await asyncio.wait([self._trimmer], timeout=FINISH_SECONDS)
        self.close()

    def close(self) -> None:
        """End it at once; what it wrote and did not tell is found at the next start."""
        self._child.finishing = True
        self._child.kill()
        for task in (self._task, self._trimmer):
            if task is not None:
                task.cancel()

    def _greet(self) -> bytes:
        return msgspec.json.encode(self._settings) + b"\n" + (FINISH if self._child.finishing else b"")

    def _hear(self, text: bytes) -> None:
        try:
            said = decode_message(text)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._note_trouble(f"the writer of segments speaks nonsense: {error}")
            return
        match said:
            case SegmentWritten(first_seq, last_seq, name):
                self.exported_seq = max(self.exported_seq, last_seq)
                self.segments += bool(name)
                self._child.is_well()
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
            case ExportFailed(why, damaged):
                if damaged:
                    self._note_trouble(f"{why}. Neither it nor what follows is written to {self._where}")
                else:
                    self._note_trouble(f"cannot write segments to {self._where}: {why}. It is tried again")
            case SegmentRemoved(days):
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

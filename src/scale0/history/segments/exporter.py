"""The segment exporter's process, as a broker or Helen runs it: start, messages, trimming, restart, end.

The journal is trimmed only up to what the process reported as durable, on the store's own thread, in steps so small
that no commit waits long. A problem is logged once, and again when it is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any, Final

import msgspec

from scale0.history.events.audit import AuditStart
from scale0.history.segments.exporter_process import (
    FINISH,
    MAX_LINE_BYTES,
    AuditChainBegins,
    ExportFailed,
    SegmentRemoved,
    SegmentsHeld,
    SegmentWritten,
    decode_message,
)
from scale0.history.segments.settings import ExporterSettings, redact_url
from scale0.kernel.confirmed_clock import CONFIRM_SECONDS
from scale0.kernel.edge.child_process import ChildProcess, RestartPolicy
from scale0.kernel.edge.commits import Commits
from scale0.kernel.edge.extras import install_command, missing
from scale0.kernel.errors import StoreError
from scale0.kernel.log_context import about
from scale0.storage.interface import AUDIT_START
from scale0.storage.rows import PutSetting

log = logging.getLogger("scale0.segments")

RESTART_POLICY: Final = RestartPolicy(
    "scale0.history.segments.exporter_process", "the segment exporter", MAX_LINE_BYTES, 1.0, 60.0
)
FINISH_SECONDS: Final = 6.0
"""How long the last export may take when the parent stops; what is left stays in the journal."""
TRIM_EVENTS: Final = 4_000
"""The number of events that are trimmed at once."""
TRIM_PAUSE_SECONDS: Final = 0.01


class SegmentExporter:
    def __init__(self, settings: ExporterSettings | None, commits: Commits) -> None:
        self._settings = settings
        """None: the export is off."""
        self._destination = "" if settings is None else redact_url(settings.destination)
        self._commits = commits
        self._child = ChildProcess(RESTART_POLICY, self._first_line, self.receive, self._report_problem)
        self._task: asyncio.Task[None] | None = None
        self._trimmer: asyncio.Task[None] | None = None
        self._exported: deque[tuple[int, int]] = deque()
        """Ranges that may be trimmed, oldest first."""
        self._problem = ""
        """The current problem, as it was logged; empty: none."""
        self.exported_seq = 0
        self.segments = 0
        self.failures = 0

    @property
    def pid(self) -> int | None:
        return self._child.pid

    @property
    def restarts(self) -> int:
        return self._child.restarts

    def start(self) -> None:
        if self._settings is None:
            return
        if missing(["segments"]):
            log.warning(
                "events are not exported and stay in the journal: pyarrow is not installed; %s",
                install_command(["segments"]),
                extra=self._about(),
            )
            return
        self._task = asyncio.get_running_loop().create_task(self._child.run())

    async def finish(self, status: int) -> None:
        """Export the rest, if that does not take too long, and end the process.

        With a status other than 0 the store has failed, and nothing more is read from it.
        """
        self._child.finishing = True
        task = self._task
        if task is None or status != 0:
            self.close()
            return
        if self.pid is None:
            task.cancel()  # it waits for a restart: a last attempt
            task = self._task = asyncio.get_running_loop().create_task(self._child.run_once())
        else:
            self._child.write(FINISH)
        await asyncio.wait([task], timeout=FINISH_SECONDS)
        if not task.done():
            log.warning(
                "the last events were not exported in time: they stay in the journal until the next start",
                extra=self._about(),
            )
        self._child.kill()
        await asyncio.wait([task], timeout=FINISH_SECONDS)
        if self._trimmer is not None:
            await asyncio.wait([self._trimmer], timeout=FINISH_SECONDS)
        self.close()

    def close(self) -> None:
        """End it immediately; the next start finds segments that it did not report."""
        self._child.finishing = True
        self._child.kill()
        for task in (self._task, self._trimmer):
            if task is not None:
                task.cancel()

    def _first_line(self) -> bytes:
        return msgspec.json.encode(self._settings) + b"\n" + (FINISH if self._child.finishing else b"")

    def receive(self, text: bytes) -> None:
        try:
            message = decode_message(text)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._report_problem(f"the segment exporter sent an invalid message: {error}")
            return
        match message:
            case SegmentWritten(first_seq, last_seq, name):
                self.exported_seq = max(self.exported_seq, last_seq)
                self.segments += bool(name)
                self._child.works()
                if self._problem:
                    log.warning("segments are written again to %s", self._destination, extra=self._about())
                    self._problem = ""
                log.debug(
                    "events %d to %d are exported: %s",
                    first_seq,
                    last_seq,
                    name or "they were exported before",
                    extra=about(segment=name, seq=first_seq),
                )
                self._trim(first_seq, last_seq)
            case ExportFailed(why, damaged):
                if damaged:
                    self._report_problem(f"{why}. Events from there on are not exported to {self._destination}")
                else:
                    self._report_problem(
                        f"cannot write segments to {self._destination}: {why}. The exporter tries again"
                    )
            case AuditChainBegins(after, source):
                self._commits.add([PutSetting(AUDIT_START, AuditStart(after, source).encode())], None)
            case SegmentRemoved(days):
                log.info("old segments were removed: %s", ", ".join(days), extra=self._about())
            case SegmentsHeld(days):
                log.warning(
                    "the wall clock jumped forward: segments of %d days, %s to %s, are kept until it has kept its"
                    " time for %g s; check the clock of this host",
                    len(days),
                    days[0],
                    days[-1],
                    CONFIRM_SECONDS,
                    extra=self._about(),
                )

    def _report_problem(self, what: str) -> None:
        self.failures += 1
        if what != self._problem:
            self._problem = what
            log.error("%s; until then events stay in the journal, which grows", what, extra=self._about())

    def _about(self) -> dict[str, Any]:
        return about(segments=self._destination)

    def _trim(self, first_seq: int, last_seq: int) -> None:
        self._exported.append((first_seq, last_seq))
        if self._trimmer is None or self._trimmer.done():
            self._trimmer = asyncio.get_running_loop().create_task(self._trim_all())

    async def _trim_all(self) -> None:
        while self._exported:
            first, last = self._exported.popleft()
            for end in [*range(first + TRIM_EVENTS - 1, last, TRIM_EVENTS), last]:
                try:
                    await self._commits.trim(end)
                except StoreError:
                    return  # the failed commit was reported there: the process ends
                await asyncio.sleep(TRIM_PAUSE_SECONDS)

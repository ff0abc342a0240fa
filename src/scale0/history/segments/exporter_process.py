"""The segment exporter's process (`python -m scale0.history.segments.exporter_process`) and its messages.

Messages are lines of JSON over two pipes: the parent sends `ExporterSettings` once, then perhaps FINISH. The process
ends when its parent ends, however that happens. Errors are reported and retried, and never end the process. pyarrow is
loaded when the first segment is due, so that a broker that stops soon does not pay for it.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import time
from typing import TYPE_CHECKING, Final

import msgspec

from scale0.history.segments.settings import ExporterSettings
from scale0.kernel.backoff import Backoff
from scale0.kernel.edge.parent_death import end_with_parent
from scale0.kernel.errors import StoreError

if TYPE_CHECKING:
    from scale0.history.segments.writer import SegmentWriter

POLL_SECONDS: Final = 1.0
"""How often the journal is read."""
LOAD_SECONDS: Final = 5.0
"""How long after the start pyarrow is loaded, unless a segment is due before."""
ORPHANS_SECONDS: Final = 30.0
"""How often the journals of dead brokers of the group are exported."""
FIRST_BACKOFF_SECONDS: Final = 1.0
MAX_BACKOFF_SECONDS: Final = 60.0
DAMAGED_BACKOFF_SECONDS: Final = 600.0
NICENESS: Final = 5
"""The broker has priority."""


FINISH: Final = b"finish\n"
"""From the parent: export everything, and end."""
MAX_LINE_BYTES: Final = 64 * 1024
MAX_WHY_CHARS: Final = 1_000


class SegmentWritten(msgspec.Struct, frozen=True, tag="wrote"):
    """These events are durable in a segment, and may be trimmed from the journal."""

    first_seq: int
    last_seq: int
    name: str = ""
    """The segment; blank: it existed before."""


class ExportFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The export failed; the exporter tries again later."""

    describe_error: str
    damaged: bool = False
    """A row of the journal is damaged: retrying does not help."""


class SegmentRemoved(msgspec.Struct, frozen=True, tag="removed"):
    """Days that were older than the retention."""

    days: tuple[str, ...]


class SegmentsHeld(msgspec.Struct, frozen=True, tag="held"):
    """Days that a jump of the wall clock put beyond the retention; they are kept until the clock is confirmed."""

    days: tuple[str, ...]


class AuditChainBegins(msgspec.Struct, frozen=True, tag="begins"):
    """An `AuditStart` that the parent must store, before the retention removes anything."""

    after: str
    source: str


ExporterMessage = SegmentWritten | ExportFailed | SegmentRemoved | SegmentsHeld | AuditChainBegins

decode_message: Final = msgspec.json.Decoder(ExporterMessage).decode


def encode_message(message: ExporterMessage) -> bytes:
    return msgspec.json.encode(message) + b"\n"


def describe_error(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:MAX_WHY_CHARS]


class ParentGone(Exception):
    """The parent process has ended."""


class ExporterParent:
    """The pipes from and to the parent."""

    def __init__(self, receiving: int, sending: int) -> None:
        self._receiving = receiving
        self._sending = sending
        self._buffer = b""
        self._poll = select.poll()
        self._poll.register(receiving, select.POLLIN)

    def receive(self, seconds: float) -> bytes:
        """The next line; blank if none arrives in time. ParentGone if the pipe is closed."""
        until = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            if not self._poll.poll(max(0.0, until - time.monotonic()) * 1_000):
                return b""
            more = os.read(self._receiving, MAX_LINE_BYTES)
            if not more or len(self._buffer) > MAX_LINE_BYTES:
                raise ParentGone
            self._buffer += more
        first, _, self._buffer = self._buffer.partition(b"\n")
        return first + b"\n"

    def send(self, message: ExporterMessage) -> None:
        left = encode_message(message)
        try:
            while left:
                left = left[os.write(self._sending, left) :]
        except BrokenPipeError as error:
            raise ParentGone from error


def serve(parent: ExporterParent) -> None:
    """Export until the parent asks for the end, or has ended."""
    settings = msgspec.json.decode(parent.receive(LOAD_SECONDS), type=ExporterSettings)
    finishing = parent.receive(min(LOAD_SECONDS, settings.seconds)) == FINISH
    from scale0.history.segments.writer import SegmentWriter  # noqa: PLC0415  # pyarrow: not before it is needed

    writer: SegmentWriter | None = None
    orphans_due = time.monotonic() + ORPHANS_SECONDS
    poll = min(POLL_SECONDS, settings.seconds / 2)
    backoff = Backoff(FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
    while True:
        pause = poll
        try:
            writer = writer or SegmentWriter(settings)
            for done in writer.export(finishing):
                parent.send(SegmentWritten(*done))
                backoff.reset()
            if not finishing and (removed := writer.apply_retention()):
                parent.send(SegmentRemoved(tuple(map(str, removed))))
            if writer.unrecorded is not None:
                parent.send(AuditChainBegins(writer.unrecorded, settings.source))
                writer.unrecorded = None
            if writer.held:
                parent.send(SegmentsHeld(tuple(map(str, writer.held))))
                writer.held = []
            if not finishing and settings.database and time.monotonic() >= orphans_due:
                orphans_due = time.monotonic() + ORPHANS_SECONDS
                _export_orphans(settings)
        except ParentGone:
            raise
        except Exception as error:
            # pyarrow raises errors of many classes; the broker continues in any case, and we try again.
            if not isinstance(error, StoreError | OSError | ValueError):
                sys.excepthook(*sys.exc_info())
            damaged = hasattr(error, "first_seq")
            parent.send(ExportFailed(describe_error(error), damaged))
            pause = DAMAGED_BACKOFF_SECONDS if damaged else backoff.next()
        if finishing:
            return
        gc.collect()
        finishing = parent.receive(pause) == FINISH


def _export_orphans(settings: ExporterSettings) -> None:
    from scale0.history.segments.writer import export_orphans  # noqa: PLC0415  # psycopg is an extra

    for _ in export_orphans(settings):
        pass


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_with_parent()
    os.nice(NICENESS)
    sending = os.dup(1)
    os.dup2(2, 1)  # what a library prints goes to the log
    # A segment is a million small objects without cycles: the garbage collector would scan them for nothing.
    gc.disable()
    try:
        serve(ExporterParent(0, sending))
    except ParentGone:
        os._exit(0)


if __name__ == "__main__":
    main()

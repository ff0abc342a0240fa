"""The segment exporter's process: `python -m scale0.history.segments.exporter_process`.

Lives here: its loop. Never here: what a segment is. Invariants: it ends when its parent is gone, however that ended;
what goes wrong is told and tried again, it never ends the process; pyarrow is loaded when the first segment is due, so
that a broker that is stopped soon costs nothing.
"""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import sys
import time
from typing import TYPE_CHECKING, Final

import msgspec

from scale0.history.segments.settings import ExporterSettings
from scale0.kernel.errors import StoreError

if TYPE_CHECKING:
    from scale0.history.segments.writer import SegmentWriter

LOOK_SECONDS: Final = 1.0
"""How often the journal is looked at."""
LOAD_SECONDS: Final = 5.0
"""How long after the start pyarrow is loaded, unless something is due before."""
LEFT_SECONDS: Final = 30.0
"""How often is looked for what dead brokers of a group left."""
FIRST_BACKOFF_SECONDS: Final = 1.0
MAX_BACKOFF_SECONDS: Final = 60.0
DAMAGED_BACKOFF_SECONDS: Final = 600.0
NICENESS: Final = 5
"""The broker goes first."""
SET_PARENT_DEATH_SIGNAL: Final = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


FINISH: Final = b"finish\n"
"""Write what there is, and end."""
MAX_LINE_BYTES: Final = 64 * 1024
MAX_WHY_CHARS: Final = 1_000


class SegmentWritten(msgspec.Struct, frozen=True, tag="wrote"):
    """These events are safe: the journal need not have them any more."""

    first_seq: int
    last_seq: int
    name: str = ""
    """Of the segment; blank: it was there already."""


class ExportFailed(msgspec.Struct, frozen=True, tag="failed"):
    """Something is in the way; it is tried again after a while."""

    describe_error: str
    damaged: bool = False
    """It is a row of the journal: trying again does not help."""


class SegmentRemoved(msgspec.Struct, frozen=True, tag="removed"):
    """Days that were older than wanted."""

    days: tuple[str, ...]


ExporterMessage = SegmentWritten | ExportFailed | SegmentRemoved

decode_message: Final = msgspec.json.Decoder(ExporterMessage).decode


def encode_message(said: ExporterMessage) -> bytes:
    """As it goes over the pipe."""
    return msgspec.json.encode(said) + b"\n"


def describe_error(error: BaseException) -> str:
    """An error in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:MAX_WHY_CHARS]


class ParentGone(Exception):
    """Nobody wants us any more."""


class ExporterParent:
    """The two pipes."""

    def __init__(self, ears: int, mouth: int) -> None:
        self._ears = ears
        self._mouth = mouth
        self._heard = b""
        self._poll = select.poll()
        self._poll.register(ears, select.POLLIN)

    def hear(self, seconds: float) -> bytes:
        """The next line; blank if none comes in time. ParentGone when there is nobody."""
        until = time.monotonic() + seconds
        while b"\n" not in self._heard:
            if not self._poll.poll(max(0.0, until - time.monotonic()) * 1_000):
                return b""
            more = os.read(self._ears, MAX_LINE_BYTES)
            if not more or len(self._heard) > MAX_LINE_BYTES:
                raise ParentGone
            self._heard += more
        first, _, self._heard = self._heard.partition(b"\n")
        return first + b"\n"

    def say(self, said: ExporterMessage) -> None:
        """Tell it."""
        left = encode_message(said)
        try:
            while left:
                left = left[os.write(self._mouth, left) :]
        except BrokenPipeError as error:
            raise ParentGone from error


def serve(parent: ExporterParent) -> None:
    """Until the parent says so, or is gone."""
    settings = msgspec.json.decode(parent.hear(LOAD_SECONDS), type=ExporterSettings)
    finishing = parent.hear(min(LOAD_SECONDS, settings.seconds)) == FINISH
    from scale0.history.segments.writer import SegmentWriter  # noqa: PLC0415  # pyarrow: not before it is needed

    writer: SegmentWriter | None = None
    left_due = time.monotonic() + LEFT_SECONDS
    look = min(LOOK_SECONDS, settings.seconds / 2)
    backoff = FIRST_BACKOFF_SECONDS
    while True:
        pause = look
        try:
            writer = writer or SegmentWriter(settings)
            for done in writer.export(finishing):
                parent.say(SegmentWritten(*done))
                backoff = FIRST_BACKOFF_SECONDS
            if not finishing and (removed := writer.keep()):
                parent.say(SegmentRemoved(tuple(map(str, removed))))
            if not finishing and settings.database and time.monotonic() >= left_due:
                left_due = time.monotonic() + LEFT_SECONDS
                _export_left(settings)
        except ParentGone:
            raise
        except Exception as error:
            # pyarrow's errors are of every kind; whatever it is, the broker goes on and we try again.
            if not isinstance(error, StoreError | OSError | ValueError):
                sys.excepthook(*sys.exc_info())
            damaged = hasattr(error, "first_seq")
            parent.say(ExportFailed(describe_error(error), damaged))
            pause = DAMAGED_BACKOFF_SECONDS if damaged else backoff
            backoff = min(backoff * 2, MAX_BACKOFF_SECONDS)
        if finishing:
            return
        gc.collect()
        finishing = parent.hear(pause) == FINISH


def _export_left(settings: ExporterSettings) -> None:
    from scale0.history.segments.writer import export_orphans  # noqa: PLC0415  # psycopg is an extra

    for _ in export_orphans(settings):
        pass


def die_with_parent() -> None:
    """Ask the kernel to kill us with our parent, even if we are stopped. Elsewhere the end of the pipe must do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def main() -> None:
    """Serve on stdin and stdout."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a stop is the parent's business
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    die_with_parent()
    os.nice(NICENESS)
    mouth = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints is for the log
    # A segment is a million small objects without a cycle: the collector would walk through them for nothing.
    gc.disable()
    try:
        serve(ExporterParent(0, mouth))
    except ParentGone:
        os._exit(0)


if __name__ == "__main__":
    main()

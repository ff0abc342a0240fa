"""A writer that kills itself at a step: `python doomed.py SETTINGS_JSON POINT NTH`.

It exports all that is in the journal and says what is safe, as the real process does: "FIRST LAST" on a line.
"""

from __future__ import annotations

import os
import signal
import sys

import msgspec

from scale0.history.segments.settings import ExporterSettings
from scale0.history.segments.writer import SegmentWriter


def main(settings: str, point: str, nth: int) -> None:
    hits = 0

    def die(name: str) -> None:
        nonlocal hits
        hits += name == point
        if hits == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    writer = SegmentWriter(msgspec.json.decode(settings.encode(), type=ExporterSettings), failpoint=die)
    for done in writer.export(everything=True):
        os.write(1, f"{done.first_seq} {done.last_seq}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))

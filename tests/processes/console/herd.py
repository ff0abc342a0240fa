"""Many idle frontends in one process: `python -m tests.processes.console.herd PLACE COUNT`

A frontend that never sent a heartbeat is not judged by its silence, so these need not say anything more.
"""

from __future__ import annotations

import signal
import sys
from typing import Any

import zmq

from benchmarks.idle import PER_SOCKET, Herd, encode


def main(place: str, count: int) -> None:
    context: Any = zmq.Context()
    for first in range(0, count, PER_SOCKET):
        herd = Herd(context, place, first, min(PER_SOCKET, count - first))
        herd.round(b"CHECKCONFIG", lambda number: encode(config_type="json", identity=f"idle-{number}"))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    signal.pause()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

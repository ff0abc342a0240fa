"""A word to systemd: this process serves. Nothing happens where nobody wants to hear it.

Lives here: one datagram to the place that the environment names. Never here: when that is so. Invariant: no failure of
it reaches the process.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Final

PLACE: Final = "NOTIFY_SOCKET"
READY: Final = b"READY=1"


def tell_ready() -> None:
    """As sd_notify does, for units of `Type=notify`."""
    place = os.environ.get(PLACE, "")
    if not place.startswith(("/", "@")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.connect("\0" + place[1:] if place.startswith("@") else place)
        line.sendall(READY)

"""Notifies systemd that this process is ready. Without systemd it does nothing, and its failures are ignored."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Final

PLACE: Final = "NOTIFY_SOCKET"
READY: Final = b"READY=1"


def notify_ready() -> None:
    """As sd_notify does, for units of `Type=notify`."""
    place = os.environ.get(PLACE, "")
    if not place.startswith(("/", "@")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.connect("\0" + place[1:] if place.startswith("@") else place)
        line.sendall(READY)

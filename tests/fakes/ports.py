"""Ports for servers that are killed and started again at the same address.

None is of the range from which the system gives ports to connections: while a server is down, its port stays free.
"""

from __future__ import annotations

import itertools
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

RANGE_FILE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
USUAL_FIRST: Final = 32_768
"""Where that range begins if the system does not say."""
FIRST: Final = 10_000
"""Below are the ports of well-known servers, our own among them."""


def _candidates() -> Iterator[int]:
    """Round and round from a random place: other runs on this machine begin elsewhere."""
    end = int(RANGE_FILE.read_text().split()[0]) if RANGE_FILE.exists() else USUAL_FIRST
    ports = range(FIRST, max(end, FIRST + 1_000))
    start = random.SystemRandom().randrange(len(ports))
    return itertools.cycle([*ports[start:], *ports[:start]])


_next: Final = _candidates()


def free_port(host: str = "127.0.0.1") -> int:
    """One on which nobody listens, and that was not given before in this process, but for very many."""
    for port in _next:
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise AssertionError("there is always a next one")

"""The listening sockets of the processes of a namespace, read from /proc."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

LISTENS: Final = "0A"
"""The state of a TCP socket that listens; one of UDP without a peer waits for anybody."""
WAITS: Final = "07"


class Listener(NamedTuple):
    """One socket that others can reach."""

    protocol: str
    address: str
    port: int
    inode: str


def listeners(pid: int) -> set[Listener]:
    """All of the network that this process is in, whoever has them."""
    found = set()
    for protocol in ("tcp", "tcp6", "udp", "udp6"):
        lines = Path(f"/proc/{pid}/net/{protocol}").read_text().splitlines()[1:]
        for cells in map(str.split, lines):
            if cells[3] == (LISTENS if protocol.startswith("tcp") else WAITS):
                host, _, port = cells[1].partition(":")
                found.add(Listener(protocol, address_of(host), int(port, 16), cells[9]))
    return found


def address_of(text: str) -> str:
    """An address from the kernel's words of four bytes, each in the machine's order; of version 4 if it is one."""
    words = [bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8)]
    written = socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, b"".join(words))
    return written.removeprefix("::ffff:")


def owned(pids: Iterator[int] | list[int]) -> set[str]:
    """The inodes of the sockets that these processes have open."""
    found = set()
    for pid in pids:
        for one in Path(f"/proc/{pid}/fd").iterdir():
            try:
                name = os.readlink(one)
            except FileNotFoundError:  # closed meanwhile
                continue
            if name.startswith("socket:["):
                found.add(name[8:-1])
    return found

"""Which users listen at an address of this machine, as the kernel's tables of TCP sockets say.

A connection without keys proves nothing about the other end; on one machine, the kernel knows it.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
LISTENING: Final = "0A"
LOCAL_ADDRESS: Final = 1
STATE: Final = 3
USER: Final = 7
"""Fields of a row of the tables."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def users_at(host: str, port: int) -> frozenset[int] | None:
    """The users of all processes that listen at this address; None if the host is not this machine."""
    addresses = _addresses_of(host)
    if not addresses or not all(map(_is_ours, addresses)):
        return None
    return frozenset(
        user for address, at, user in _listening() if at == port and (address in addresses or address.is_unspecified)
    )


def _addresses_of(host: str) -> set[Address]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return {_plain(ipaddress.ip_address(str(row[4][0]).partition("%")[0])) for row in found}
    except (OSError, ValueError):
        return set()


def _is_ours(address: Address) -> bool:
    """True for an address of this machine: nothing that is sent there leaves it."""
    if address.is_multicast or address.is_unspecified:
        return False
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return address.is_loopback  # IPv6 may be off
    return True


def _listening() -> Iterator[tuple[Address, int, int]]:
    """Address, port and user of every listening socket."""
    for table in TABLES:
        try:
            rows = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            if len(fields) > USER and fields[STATE] == LISTENING:
                address, _, port = fields[LOCAL_ADDRESS].partition(":")
                yield _plain(_address(address)), int(port, 16), int(fields[USER])


def _address(text: str) -> Address:
    """The kernel prints words of 32 bits in the order of the machine."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    return ipaddress.ip_address(struct.pack(f"={len(words)}I", *words))


def _plain(address: Address) -> Address:
    """An IPv4 address of a socket for both is that address."""
    return getattr(address, "ipv4_mapped", None) or address

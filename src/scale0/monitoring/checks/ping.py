"""The check `ping`: echoes by ICMP, their time and their loss.

Lives here: echo requests over an unprivileged datagram socket, or a raw one. Never here: the program `ping`.
Invariants: an answer counts only with our own random mark; where the system allows neither socket, the check says so
and guesses nothing.
"""

from __future__ import annotations

import secrets
import socket
import struct
import time
from typing import Annotated, Final

import msgspec

from scale0.monitoring.checks.arguments import Family, Host, Limit, limits
from scale0.monitoring.checks.check_run import CheckFailed, CheckRun
from scale0.monitoring.checks.metrics import PERCENT, SECONDS, Measurements, span
from scale0.monitoring.checks.sockets import Address, addresses, reaching, reason
from scale0.monitoring.protocol.results import CRITICAL, UNKNOWN, CheckFinding

ECHO_4: Final = 8
ECHO_REPLY_4: Final = 0
ECHO_6: Final = 128
ECHO_REPLY_6: Final = 129
HEADER: Final = struct.Struct("!BBHHH")
MARK_BYTES: Final = 16
"""Random, at the start of the payload; the rest is filled up."""


class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """See docs/checks.md."""

    host: Host
    count: Annotated[int, msgspec.Meta(ge=1, le=20)] = 3
    interval: Annotated[float, msgspec.Meta(ge=0.05, le=5)] = 0.2
    wait: Annotated[float, msgspec.Meta(ge=0.05, le=60)] = 2.0
    size: Annotated[int, msgspec.Meta(ge=MARK_BYTES, le=1_400)] = 56
    warn: Limit = 0.2
    crit: Limit = 1.0
    loss_warn: Limit = 20.0
    loss_crit: Limit = 60.0
    family: Family = "any"


def measure(args: Args, run: CheckRun) -> CheckFinding:
    """Send `count` echoes, and tell how many came back, and how fast."""
    with reaching(args.host):
        target = addresses(args.host, 0, socket.SOCK_DGRAM, args.family, run)[0]
    with echo_socket(target.family) as sock:
        with reaching(args.host):
            sock.connect(target.address)
        trips = Echoes(sock, target, args, run).exchange()
    loss = 100.0 * (args.count - len(trips)) / args.count
    gauges = Measurements()
    warn, crit = limits(args, "loss_")
    says = f"{args.host}: {loss:.0f} % of {args.count} echoes lost"
    gauges.add("loss_percent", loss, PERCENT, warn=warn, crit=crit, low=0.0, high=100.0, says=says)
    if not trips:
        if gauges.state != CRITICAL:
            gauges.blame(CRITICAL, f"{args.host} does not answer")
        return gauges.finding("")
    mean = sum(trips) / len(trips)
    warn, crit = limits(args)
    answers = f"{args.host} answers within {span(mean)}"
    gauges.add("rtt_seconds", mean, SECONDS, warn=warn, crit=crit, low=0.0, says=answers)
    gauges.add("rtt_min_seconds", min(trips), SECONDS, low=0.0)
    gauges.add("rtt_max_seconds", max(trips), SECONDS, low=0.0)
    return gauges.finding(f"{answers}, {loss:.0f} % lost")


def echo_socket(family: socket.AddressFamily) -> socket.socket:
    """A socket for echoes: the kind that needs no privilege first."""
    protocol = socket.IPPROTO_ICMPV6 if family == socket.AF_INET6 else socket.IPPROTO_ICMP
    refused: OSError | None = None
    for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
        try:
            return socket.socket(family, kind, protocol)
        except OSError as error:
            refused = error
    why = reason(refused) if refused else ""
    advice = "allow the agent's group in net.ipv4.ping_group_range, or give the agent CAP_NET_RAW"
    raise CheckFailed(UNKNOWN, f"the system allows this agent no ICMP socket ({why}): {advice}")


class Echoes:
    """Echoes to one address."""

    __slots__ = ("_args", "_deadline", "_mark", "_number", "_six", "_sock")

    def __init__(self, sock: socket.socket, target: Address, args: Args, run: CheckRun) -> None:
        self._sock = sock
        self._args = args
        self._deadline = run.deadline
        self._six = target.family == socket.AF_INET6
        self._mark = secrets.token_bytes(MARK_BYTES - 2)
        self._number = secrets.randbelow(65_536)

    def exchange(self) -> list[float]:
        """The round trips that were completed, in seconds."""
        sent: dict[int, float] = {}
        trips: dict[int, float] = {}
        args = self._args
        first = time.monotonic()
        gives_up = first + (args.count - 1) * args.interval + args.wait
        while len(trips) < args.count and not self._deadline.passed():
            now = time.monotonic()
            if len(sent) < args.count and now >= first + len(sent) * args.interval:
                sent[len(sent)] = time.monotonic()
                self._send(len(sent) - 1)
                continue
            until = gives_up if len(sent) == args.count else first + len(sent) * args.interval
            if now >= gives_up:
                break
            number = self._heard(max(0.001, min(until - now, gives_up - now)))
            if number in sent and number not in trips:
                trips[number] = time.monotonic() - sent[number]
        return list(trips.values())

    def _send(self, number: int) -> None:
        payload = (self._mark + struct.pack("!H", number)).ljust(self._args.size, b"\0")
        kind = ECHO_6 if self._six else ECHO_4
        # The system writes the checksum of IPv6, and of datagram sockets also the identifier.
        total = 0 if self._six else checksum(HEADER.pack(kind, 0, 0, self._number, number) + payload)
        try:
            self._sock.settimeout(self._deadline.left())
            self._sock.send(HEADER.pack(kind, 0, total, self._number, number) + payload)
        except OSError:
            pass  # lost on the way out: no answer will come, and that is what is counted

    def _heard(self, seconds: float) -> int | None:
        """The number of an echo that came back within so long; None: none, or something else came."""
        try:
            self._sock.settimeout(min(seconds, self._deadline.left()))
            data = self._sock.recv(4_096)
        except OSError:
            return None
        if not self._six and data[:1] and data[0] >> 4 == 4:
            data = data[(data[0] & 15) * 4 :]  # raw sockets of IPv4 hear the IP header too
        start = HEADER.size
        if len(data) < start + MARK_BYTES or data[0] != (ECHO_REPLY_6 if self._six else ECHO_REPLY_4):
            return None
        if data[start : start + len(self._mark)] != self._mark:
            return None
        return int.from_bytes(data[start + len(self._mark) : start + MARK_BYTES], "big")


def checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071)."""
    if len(data) % 2:
        data += b"\0"
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF

"""The check `ping`: ICMP echoes, their round trip time and their loss.

It uses an unprivileged datagram socket or a raw socket, not the program `ping`. Invariants: an answer counts only with
our own random mark; if the system allows neither socket, the result is unknown with the reason.
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
from scale0.monitoring.checks.metrics import PERCENT, SECONDS, Measurements, duration
from scale0.monitoring.checks.sockets import ResolvedAddress, connection_errors, error_reason, resolve
from scale0.monitoring.protocol.results import CRITICAL, UNKNOWN, CheckFinding

ECHO_4: Final = 8
ECHO_REPLY_4: Final = 0
ECHO_6: Final = 128
ECHO_REPLY_6: Final = 129
HEADER: Final = struct.Struct("!BBHHH")
MARK_BYTES: Final = 16
"""Random, at the start of the payload; the rest is padding."""


class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
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
    """Send `count` echoes, and measure how many came back, and how fast."""
    with connection_errors(args.host):
        target = resolve(args.host, 0, socket.SOCK_DGRAM, args.family, run)[0]
    with echo_socket(target.family) as sock:
        with connection_errors(args.host):
            sock.connect(target.address)
        trips = Echoes(sock, target, args, run).exchange()
    loss = 100.0 * (args.count - len(trips)) / args.count
    metrics = Measurements()
    warn, crit = limits(args, "loss_")
    message = f"{args.host}: {loss:.0f} % of {args.count} echoes lost"
    metrics.add("loss_percent", loss, PERCENT, warn=warn, crit=crit, low=0.0, high=100.0, message=message)
    if not trips:
        if metrics.state != CRITICAL:
            metrics.add_problem(CRITICAL, f"{args.host} does not answer")
        return metrics.finding("")
    mean = sum(trips) / len(trips)
    warn, crit = limits(args)
    answers = f"{args.host} answers within {duration(mean)}"
    metrics.add("rtt_seconds", mean, SECONDS, warn=warn, crit=crit, low=0.0, message=answers)
    metrics.add("rtt_min_seconds", min(trips), SECONDS, low=0.0)
    metrics.add("rtt_max_seconds", max(trips), SECONDS, low=0.0)
    return metrics.finding(f"{answers}, {loss:.0f} % lost")


def echo_socket(family: socket.AddressFamily) -> socket.socket:
    """A socket for echoes; the unprivileged kind is tried first."""
    protocol = socket.IPPROTO_ICMPV6 if family == socket.AF_INET6 else socket.IPPROTO_ICMP
    refused: OSError | None = None
    for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
        try:
            return socket.socket(family, kind, protocol)
        except OSError as error:
            refused = error
    why = error_reason(refused) if refused else ""
    advice = "allow the agent's group in net.ipv4.ping_group_range, or give the agent CAP_NET_RAW"
    raise CheckFailed(UNKNOWN, f"the system allows this agent no ICMP socket ({why}): {advice}")


class Echoes:
    def __init__(self, sock: socket.socket, target: ResolvedAddress, args: Args, run: CheckRun) -> None:
        self._sock = sock
        self._args = args
        self._deadline = run.deadline
        self._is_ipv6 = target.family == socket.AF_INET6
        self._mark = secrets.token_bytes(MARK_BYTES - 2)
        self._number = secrets.randbelow(65_536)

    def exchange(self) -> list[float]:
        """The completed round trips, in seconds."""
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
            number = self._receive(max(0.001, min(until - now, gives_up - now)))
            if number in sent and number not in trips:
                trips[number] = time.monotonic() - sent[number]
        return list(trips.values())

    def _send(self, number: int) -> None:
        payload = (self._mark + struct.pack("!H", number)).ljust(self._args.size, b"\0")
        kind = ECHO_6 if self._is_ipv6 else ECHO_4
        # The system writes the checksum for IPv6, and the identifier for datagram sockets.
        total = 0 if self._is_ipv6 else checksum(HEADER.pack(kind, 0, 0, self._number, number) + payload)
        try:
            self._sock.settimeout(self._deadline.left())
            self._sock.send(HEADER.pack(kind, 0, total, self._number, number) + payload)
        except OSError:
            pass  # it counts as lost: no answer will come

    def _receive(self, seconds: float) -> int | None:
        """The number of an echo that came back in time; None: there was none, or another message."""
        try:
            self._sock.settimeout(min(seconds, self._deadline.left()))
            data = self._sock.recv(4_096)
        except OSError:
            return None
        if not self._is_ipv6 and data[:1] and data[0] >> 4 == 4:
            data = data[(data[0] & 15) * 4 :]  # raw IPv4 sockets receive the IP header too
        start = HEADER.size
        if len(data) < start + MARK_BYTES or data[0] != (ECHO_REPLY_6 if self._is_ipv6 else ECHO_REPLY_4):
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

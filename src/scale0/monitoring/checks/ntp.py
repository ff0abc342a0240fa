"""The check `ntp`: how far this machine's clock is from a time server's (SNTP, RFC 4330).

Invariants: only an answer that repeats our random mark counts; the wall clock is read once for each question, so that a
jump of the clock meanwhile has no effect.
"""

from __future__ import annotations

import secrets
import socket
import struct
import time
from typing import Annotated, Final, NamedTuple

import msgspec

from scale0.monitoring.checks.arguments import Family, Host, Limit, Port, limits
from scale0.monitoring.checks.check_run import CheckFailed, CheckRun
from scale0.monitoring.checks.metrics import SECONDS, Measurements, duration
from scale0.monitoring.checks.sockets import connection_errors, host_port, resolve
from scale0.monitoring.checks.thresholds import Range
from scale0.monitoring.protocol.results import UNKNOWN, CheckFinding

PACKET: Final = struct.Struct("!BBbb11I")
"""The 48 bytes of question and answer."""
QUESTION: Final = 4 << 3 | 3
"""Version 4, a client."""
SERVER_MODE: Final = 4
NOT_SYNCHRONISED: Final = 3
EPOCH_SECONDS: Final = 2_208_988_800
"""From 1900 to 1970."""
ERA_SECONDS: Final = 2**32
RETRY_SECONDS: Final = 1.0
"""How long to wait for an answer before the question is sent again."""


class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    server: Host
    port: Port = 123
    samples: Annotated[int, msgspec.Meta(ge=1, le=8)] = 1
    warn: Limit = 0.5
    crit: Limit = 2.0
    family: Family = "any"


class ClockSample(NamedTuple):
    offset: float
    delay: float
    stratum: int


def measure(args: Args, run: CheckRun) -> CheckFinding:
    """The offset of the sample with the shortest delay."""
    endpoint = host_port(args.server, args.port)
    with connection_errors(endpoint):
        found = resolve(args.server, args.port, socket.SOCK_DGRAM, args.family, run)
        samples = []
        with socket.socket(found[0].family, socket.SOCK_DGRAM) as sock:
            sock.connect(found[0].address)
            for _ in range(args.samples):
                samples.append(ask(sock, run))
    best = min(samples, key=lambda sample: sample.delay)
    warn, crit = limits(args)
    metrics = Measurements()
    way = "ahead" if best.offset < 0 else "behind"
    message = f"this clock is {duration(abs(best.offset))} {way} of {endpoint}"
    # The sign matters for a chart but not for a threshold: both directions are wrong.
    metrics.add("offset_seconds", best.offset, SECONDS, warn=_both(warn), crit=_both(crit), message=message)
    metrics.add("delay_seconds", best.delay, SECONDS, low=0.0)
    metrics.add("stratum", best.stratum, low=1.0, high=15.0)
    return metrics.finding(message)


def _both(given: Range | None) -> Range | None:
    """A range that starts at 0 also applies to negative values."""
    if given is None or given.start != 0:
        return given
    return Range(-given.end, given.end, given.inside)


def ask(sock: socket.socket, run: CheckRun) -> ClockSample:
    mark = secrets.randbits(64)
    question = PACKET.pack(QUESTION, 0, 0, 0, *(0,) * 9, mark >> 32, mark & 0xFFFFFFFF)
    while True:
        left = run.deadline.left()
        wall, began = time.time(), time.monotonic()
        sock.send(question)
        again = began + min(left, RETRY_SECONDS)
        while (wait := again - time.monotonic()) > 0:
            sock.settimeout(wait)
            try:
                answer = sock.recv(512)
            except TimeoutError:
                break
            took = time.monotonic() - began
            if len(answer) >= PACKET.size and (sample := read(answer[: PACKET.size], mark, wall, took)) is not None:
                return sample


def read(answer: bytes, mark: int, wall: float, took: float) -> ClockSample | None:
    """Decode an answer that came `took` seconds after `wall`; None if it answers another question."""
    flags, stratum, _, _, _, _, name, _, _, mark_high, mark_low, *times = PACKET.unpack(answer)
    if mark_high << 32 | mark_low != mark or flags & 7 != SERVER_MODE:
        return None
    if stratum == 0:
        code = struct.pack("!I", name)
        raise CheckFailed(
            UNKNOWN, f"the time server refuses: {code.decode('ascii', 'replace') if code.isalnum() else '?'}"
        )
    if flags >> 6 == NOT_SYNCHRONISED or stratum > 15 or not times[2]:
        raise CheckFailed(UNKNOWN, "the time server is not synchronised itself")
    received, sent = seconds_of(times[0], times[1], wall), seconds_of(times[2], times[3], wall)
    offset = ((received - wall) + (sent - (wall + took))) / 2
    return ClockSample(offset, max(0.0, took - (sent - received)), stratum)


def seconds_of(seconds: int, fraction: int, near: float) -> float:
    """Unix seconds of a time stamp, of the era nearest to `near`: the counter wraps in 2036."""
    found = seconds - EPOCH_SECONDS + fraction / 2**32
    return found + round((near - found) / ERA_SECONDS) * ERA_SECONDS

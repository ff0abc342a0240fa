"""The check `ntp`: how far this machine's clock is from a time server's.

Lives here: one SNTP question (RFC 4330) and its arithmetic. Never here: setting a clock. Invariants: only an answer
that repeats our random mark counts; the wall clock is read once per question, so that a jump meanwhile does no harm.
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
from scale0.monitoring.checks.metrics import SECONDS, Measurements, span
from scale0.monitoring.checks.sockets import addresses, place, reaching
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
ASK_AGAIN_SECONDS: Final = 1.0
"""A datagram may get lost: so long until the question is asked again."""


class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """See docs/checks.md."""

    server: Host
    port: Port = 123
    samples: Annotated[int, msgspec.Meta(ge=1, le=8)] = 1
    warn: Limit = 0.5
    crit: Limit = 2.0
    family: Family = "any"


class ClockSample(NamedTuple):
    """One answer."""

    offset: float
    delay: float
    stratum: int


def measure(args: Args, run: CheckRun) -> CheckFinding:
    """The offset of the sample with the shortest way."""
    spot = place(args.server, args.port)
    with reaching(spot):
        found = addresses(args.server, args.port, socket.SOCK_DGRAM, args.family, run)
        samples = []
        with socket.socket(found[0].family, socket.SOCK_DGRAM) as sock:
            sock.connect(found[0].address)
            for _ in range(args.samples):
                samples.append(ask(sock, run))
    best = min(samples, key=lambda sample: sample.delay)
    warn, crit = limits(args)
    gauges = Measurements()
    way = "ahead" if best.offset < 0 else "behind"
    says = f"this clock is {span(abs(best.offset))} {way} of {spot}"
    # The sign matters to a chart and not to a threshold: both directions are wrong alike.
    gauges.add("offset_seconds", best.offset, SECONDS, warn=_both(warn), crit=_both(crit), says=says)
    gauges.add("delay_seconds", best.delay, SECONDS, low=0.0)
    gauges.add("stratum", best.stratum, low=1.0, high=15.0)
    return gauges.finding(says)


def _both(given: Range | None) -> Range | None:
    """A range from 0 up holds below 0 as well."""
    if given is None or given.start != 0:
        return given
    return Range(-given.end, given.end, given.inside)


def ask(sock: socket.socket, run: CheckRun) -> ClockSample:
    """One question and its answer."""
    mark = secrets.randbits(64)
    question = PACKET.pack(QUESTION, 0, 0, 0, *(0,) * 9, mark >> 32, mark & 0xFFFFFFFF)
    while True:
        left = run.deadline.left()
        wall, began = time.time(), time.monotonic()
        sock.send(question)
        again = began + min(left, ASK_AGAIN_SECONDS)
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
    """What the server says; None of an answer to somebody else. `took` seconds after `wall` it came."""
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
    heard, sent = seconds_of(times[0], times[1], wall), seconds_of(times[2], times[3], wall)
    offset = ((heard - wall) + (sent - (wall + took))) / 2
    return ClockSample(offset, max(0.0, took - (sent - heard)), stratum)


def seconds_of(seconds: int, fraction: int, near: float) -> float:
    """Unix seconds of a time stamp; of the era that is nearest to `near`, as the count begins again in 2036."""
    found = seconds - EPOCH_SECONDS + fraction / 2**32
    return found + round((near - found) / ERA_SECONDS) * ERA_SECONDS

"""The check `tcp`: whether a port takes connections, how fast, and what it answers.

Lives here: one connection, something to say, something to hear. Never here: a protocol on top of it.
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import Final

import msgspec

from scale0.monitoring.checks.arguments import Family, Host, Limit, Port, Text, limits
from scale0.monitoring.checks.check_run import CheckRun
from scale0.monitoring.checks.metrics import BYTES, SECONDS, Measurements, excerpt, span
from scale0.monitoring.checks.sockets import SocketStream, dial, place, reaching
from scale0.monitoring.protocol.results import CRITICAL, CheckFinding

MAX_ANSWER_BYTES: Final = 65_536
"""Of what the other side says; the text that is expected must be within."""


class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """See docs/checks.md."""

    host: Host
    port: Port
    send: Text = ""
    expect: Text = ""
    warn: Limit = 1.0
    crit: Limit = 5.0
    family: Family = "any"


def measure(args: Args, run: CheckRun) -> CheckFinding:
    """Connect; send and hear what was asked for."""
    spot = place(args.host, args.port)
    began = time.monotonic()
    answer, took = b"", 0.0
    with reaching(spot), closing(dial(args.host, args.port, args.family, run)) as sock:
        connected = time.monotonic() - began
        stream = SocketStream(sock, run.deadline)
        if args.send:
            stream.sendall(args.send.encode("utf-8", "surrogatepass"))
        if args.expect:
            answer = heard(stream, args.expect.encode("utf-8", "surrogatepass"))
        took = time.monotonic() - began
    gauges = Measurements()
    warn, crit = limits(args)
    says = f"{spot} takes connections within {span(connected)}"
    gauges.add("connect_seconds", connected, SECONDS, warn=warn, crit=crit, low=0.0, says=says)
    if args.expect:
        gauges.add("seconds", took, SECONDS, low=0.0)
        gauges.add("answer_bytes", len(answer), BYTES, low=0.0)
        if args.expect.encode("utf-8", "surrogatepass") not in answer:
            text = excerpt(answer.decode("utf-8", "replace")) or "nothing"
            gauges.blame(CRITICAL, f"{spot} does not say {excerpt(args.expect)!r}, it says: {text}")
    return gauges.finding(says)


def heard(stream: SocketStream, expected: bytes) -> bytes:
    """What the other side says until the expected text is in it, it ends, or the time does."""
    answer = bytearray()
    while expected not in answer and len(answer) < MAX_ANSWER_BYTES:
        try:
            data = stream.more()
        except TimeoutError:
            break  # what it said so far is worth telling
        if not data:
            break
        answer += data
    return bytes(answer[:MAX_ANSWER_BYTES])

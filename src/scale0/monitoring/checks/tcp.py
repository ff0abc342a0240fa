"""The check `tcp`: whether a port accepts connections, how fast, and what it answers."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Final

import msgspec

from scale0.monitoring.checks.arguments import Family, Host, Limit, Port, Text, limits
from scale0.monitoring.checks.check_run import CheckRun
from scale0.monitoring.checks.metrics import BYTES, SECONDS, Measurements, duration, excerpt
from scale0.monitoring.checks.sockets import SocketStream, connect, connection_errors, host_port
from scale0.monitoring.protocol.results import CRITICAL, CheckFinding

MAX_ANSWER_BYTES: Final = 65_536
"""Of the answer; the expected text must be within."""


class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    host: Host
    port: Port
    send: Text = ""
    expect: Text = ""
    warn: Limit = 1.0
    crit: Limit = 5.0
    family: Family = "any"


def measure(args: Args, run: CheckRun) -> CheckFinding:
    endpoint = host_port(args.host, args.port)
    began = time.monotonic()
    answer, took = b"", 0.0
    with connection_errors(endpoint), closing(connect(args.host, args.port, args.family, run)) as sock:
        connected = time.monotonic() - began
        stream = SocketStream(sock, run.deadline)
        if args.send:
            stream.sendall(args.send.encode("utf-8", "surrogatepass"))
        if args.expect:
            answer = read_answer(stream, args.expect.encode("utf-8", "surrogatepass"))
        took = time.monotonic() - began
    metrics = Measurements()
    warn, crit = limits(args)
    message = f"{endpoint} takes connections within {duration(connected)}"
    metrics.add("connect_seconds", connected, SECONDS, warn=warn, crit=crit, low=0.0, message=message)
    if args.expect:
        metrics.add("seconds", took, SECONDS, low=0.0)
        metrics.add("answer_bytes", len(answer), BYTES, low=0.0)
        if args.expect.encode("utf-8", "surrogatepass") not in answer:
            text = excerpt(answer.decode("utf-8", "replace")) or "nothing"
            metrics.add_problem(CRITICAL, f"{endpoint} does not say {excerpt(args.expect)!r}, it says: {text}")
    return metrics.finding(message)


def read_answer(stream: SocketStream, expected: bytes) -> bytes:
    """Read until the expected text is found, the connection ends, or the time is over."""
    answer = bytearray()
    while expected not in answer and len(answer) < MAX_ANSWER_BYTES:
        try:
            data = stream.more()
        except TimeoutError:
            break  # report what was read so far
        if not data:
            break
        answer += data
    return bytes(answer[:MAX_ANSWER_BYTES])

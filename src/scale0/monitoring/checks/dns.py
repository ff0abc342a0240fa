"""The check `dns`: what a name server says about a name.

Lives here: asking one question, over UDP and where the answer is too long over TCP. Never here: the format
(`dns_message`). Invariant: only an answer from the server that was asked, with our random number and our question,
counts.
"""

from __future__ import annotations

import secrets
import socket
import time
from contextlib import closing
from typing import Annotated, Final, Literal

import msgspec

from scale0.monitoring.checks import dns_message
from scale0.monitoring.checks.arguments import MAX_HOST_CHARS, FullText, Limit, Port, Texts, WrongArgs, limits
from scale0.monitoring.checks.check_run import CheckFailed, CheckRun
from scale0.monitoring.checks.metrics import SECONDS, Measurements, excerpt, listed, span
from scale0.monitoring.checks.sockets import SocketStream, addresses, dial, place, reaching
from scale0.monitoring.protocol.results import CRITICAL, UNKNOWN, CheckFinding

RESOLVER_FILE: Final = "/etc/resolv.conf"
MAX_RESOLVER_BYTES: Final = 65_536
MAX_SERVERS: Final = 3
"""Of the resolver's file, as the system has it."""
TRIES: Final = 3
"""Datagrams to each server before it counts as silent; each waits an equal share of the time."""


class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """See docs/checks.md."""

    name: FullText
    type: Literal["A", "AAAA", "MX", "TXT", "NS", "CNAME"] = "A"
    server: Annotated[str, msgspec.Meta(max_length=MAX_HOST_CHARS)] = ""
    port: Port = 53
    expect: Texts = ()
    warn: Limit = 1.0
    crit: Limit = 5.0


def measure(args: Args, run: CheckRun) -> CheckFinding:
    """The records of a name, and whether those that are expected are among them."""
    try:
        asked = dns_message.question(secrets.randbits(16), args.name, args.type)
    except ValueError as error:
        raise WrongArgs(f"arg name: {error}") from None
    began = time.monotonic()
    server, reply = answer_of(servers_of(args), asked, args, run)
    took = time.monotonic() - began
    what = f"{args.type} of {excerpt(args.name)} at {server}"
    if reply.rcode:
        raise CheckFailed(CRITICAL, f"{what}: {dns_message.RCODES.get(reply.rcode, f'error {reply.rcode}')}")
    values = [record.value for record in reply.records]
    gauges = Measurements()
    warn, crit = limits(args)
    says = f"{what} within {span(took)}"
    gauges.add("seconds", took, SECONDS, warn=warn, crit=crit, low=0.0, says=says)
    gauges.add("records", len(values), low=0.0)
    if not values:
        gauges.blame(CRITICAL, f"{what}: there is none")
    else:
        gauges.add("ttl_seconds", min(record.ttl for record in reply.records), SECONDS, low=0.0)
        present = {plain(value, args.type) for value in values}
        lacking = [value for value in args.expect if plain(value, args.type) not in present]
        if lacking:
            gauges.blame(CRITICAL, f"{what} is {listed(values)}, without {listed(lacking)}")
    return gauges.finding(f"{what}: {listed(values)}")


def plain(value: str, type_: str) -> str:
    """A value as it is compared: names without regard to case and to the last dot, addresses in one spelling."""
    if type_ == "TXT":
        return value
    value = value.lower().removesuffix(".")
    if type_ == "AAAA":
        try:
            return socket.inet_ntop(socket.AF_INET6, socket.inet_pton(socket.AF_INET6, value))
        except OSError:
            return value
    return value


def servers_of(args: Args) -> list[str]:
    """The server that was named, or those of the resolver's file."""
    if args.server:
        return [args.server]
    try:
        with open(RESOLVER_FILE, "rb") as file:
            text = file.read(MAX_RESOLVER_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise CheckFailed(UNKNOWN, f"{RESOLVER_FILE} cannot be read ({error.strerror}): say which server") from None
    words = (line.split() for line in text.splitlines())
    found = [line[1] for line in words if len(line) > 1 and line[0] == "nameserver"]
    if not found:
        raise CheckFailed(UNKNOWN, f"{RESOLVER_FILE} names no server: say which one")
    return found[:MAX_SERVERS]


def answer_of(servers: list[str], asked: bytes, args: Args, run: CheckRun) -> tuple[str, dns_message.DnsReply]:
    """The first server's answer; the next is asked where one is silent."""
    silent: CheckFailed | None = None
    for number, server in enumerate(servers):
        spot = place(server, args.port)
        seconds = run.deadline.left() / (len(servers) - number)
        try:
            with reaching(spot):
                reply = over_udp(server, asked, args.port, seconds, run)
                return spot, over_tcp(server, asked, args.port, run) if reply.cut else reply
        except CheckFailed as failed:
            silent = failed
        if run.deadline.passed():
            break
    raise silent or CheckFailed(UNKNOWN, "there is no server to ask")


def over_udp(server: str, asked: bytes, port: int, seconds: float, run: CheckRun) -> dns_message.DnsReply:
    """Ask by datagram, several times if need be; anything that is no answer to us is passed over."""
    to = addresses(server, port, socket.SOCK_DGRAM, "any", run)[0]
    with socket.socket(to.family, socket.SOCK_DGRAM) as sock:
        sock.connect(to.address)
        for _ in range(TRIES):
            until = time.monotonic() + seconds / TRIES
            sock.send(asked)
            while (wait := until - time.monotonic()) > 0:
                sock.settimeout(min(wait, run.deadline.left()))
                try:
                    return dns_message.read(sock.recv(65_535), asked)
                except TimeoutError:
                    break
                except dns_message.Malformed:
                    continue
    raise TimeoutError("no answer")


def over_tcp(server: str, asked: bytes, port: int, run: CheckRun) -> dns_message.DnsReply:
    """Ask over a connection: two bytes of length before each message."""
    with closing(dial(server, port, "any", run)) as sock:
        stream = SocketStream(sock, run.deadline)
        stream.sendall(len(asked).to_bytes(2, "big") + asked)
        length = int.from_bytes(stream.read(2), "big")
        try:
            return dns_message.read(stream.read(length), asked)
        except dns_message.Malformed as error:
            raise OSError(str(error)) from None

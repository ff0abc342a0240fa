"""The check `dns`: the records of a name at a name server.

It asks by UDP, and by TCP if the answer is too long. Invariant: only an answer of the right server, with our random id
and our question, counts.
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
from scale0.monitoring.checks.metrics import SECONDS, Measurements, duration, excerpt, joined
from scale0.monitoring.checks.sockets import SocketStream, connect, connection_errors, host_port, resolve
from scale0.monitoring.protocol.results import CRITICAL, UNKNOWN, CheckFinding

RESOLVER_FILE: Final = "/etc/resolv.conf"
MAX_RESOLVER_BYTES: Final = 65_536
MAX_SERVERS: Final = 3
"""Of the resolver's file, as the system's resolver does it."""
TRIES: Final = 3
"""Datagrams to each server before it counts as silent; each waits an equal share of the time."""


class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    name: FullText
    type: Literal["A", "AAAA", "MX", "TXT", "NS", "CNAME"] = "A"
    server: Annotated[str, msgspec.Meta(max_length=MAX_HOST_CHARS)] = ""
    port: Port = 53
    expect: Texts = ()
    warn: Limit = 1.0
    crit: Limit = 5.0


def measure(args: Args, run: CheckRun) -> CheckFinding:
    """The records of a name, and whether the expected ones are among them."""
    try:
        question = dns_message.encode_question(secrets.randbits(16), args.name, args.type)
    except ValueError as error:
        raise WrongArgs(f"arg name: {error}") from None
    began = time.monotonic()
    server, reply = query_servers(servers_of(args), question, args, run)
    took = time.monotonic() - began
    what = f"{args.type} of {excerpt(args.name)} at {server}"
    if reply.rcode:
        raise CheckFailed(CRITICAL, f"{what}: {dns_message.RCODES.get(reply.rcode, f'error {reply.rcode}')}")
    values = [record.value for record in reply.records]
    metrics = Measurements()
    warn, crit = limits(args)
    message = f"{what} within {duration(took)}"
    metrics.add("seconds", took, SECONDS, warn=warn, crit=crit, low=0.0, message=message)
    metrics.add("records", len(values), low=0.0)
    if not values:
        metrics.add_problem(CRITICAL, f"{what}: there is none")
    else:
        metrics.add("ttl_seconds", min(record.ttl for record in reply.records), SECONDS, low=0.0)
        present = {normalized(value, args.type) for value in values}
        missing = [value for value in args.expect if normalized(value, args.type) not in present]
        if missing:
            metrics.add_problem(CRITICAL, f"{what} is {joined(values)}, without {joined(missing)}")
    return metrics.finding(f"{what}: {joined(values)}")


def normalized(value: str, type_: str) -> str:
    """A value for comparison: names without case and final dot, addresses in one notation."""
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
    """The configured server, or those of the resolver's file."""
    if args.server:
        return [args.server]
    try:
        with open(RESOLVER_FILE, "rb") as file:
            text = file.read(MAX_RESOLVER_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise CheckFailed(UNKNOWN, f"{RESOLVER_FILE} cannot be read ({error.strerror}): set the arg server") from None
    words = (line.split() for line in text.splitlines())
    found = [line[1] for line in words if len(line) > 1 and line[0] == "nameserver"]
    if not found:
        raise CheckFailed(UNKNOWN, f"{RESOLVER_FILE} names no server: set the arg server")
    return found[:MAX_SERVERS]


def query_servers(servers: list[str], question: bytes, args: Args, run: CheckRun) -> tuple[str, dns_message.DnsReply]:
    """The answer of the first server that is not silent."""
    silent: CheckFailed | None = None
    for number, server in enumerate(servers):
        endpoint = host_port(server, args.port)
        seconds = run.deadline.left() / (len(servers) - number)
        try:
            with connection_errors(endpoint):
                reply = query_udp(server, question, args.port, seconds, run)
                return endpoint, query_tcp(server, question, args.port, run) if reply.truncated else reply
        except CheckFailed as failed:
            silent = failed
        if run.deadline.passed():
            break
    raise silent or CheckFailed(UNKNOWN, "there is no server to query")


def query_udp(server: str, question: bytes, port: int, seconds: float, run: CheckRun) -> dns_message.DnsReply:
    """Ask by datagram, several times if needed; messages that do not answer the question are ignored."""
    to = resolve(server, port, socket.SOCK_DGRAM, "any", run)[0]
    with socket.socket(to.family, socket.SOCK_DGRAM) as sock:
        sock.connect(to.address)
        for _ in range(TRIES):
            until = time.monotonic() + seconds / TRIES
            sock.send(question)
            while (wait := until - time.monotonic()) > 0:
                sock.settimeout(min(wait, run.deadline.left()))
                try:
                    return dns_message.read(sock.recv(65_535), question)
                except TimeoutError:
                    break
                except dns_message.Malformed:
                    continue
    raise TimeoutError("no answer")


def query_tcp(server: str, question: bytes, port: int, run: CheckRun) -> dns_message.DnsReply:
    """Ask over a connection: each message is preceded by its length in two bytes."""
    with closing(connect(server, port, "any", run)) as sock:
        stream = SocketStream(sock, run.deadline)
        stream.sendall(len(question).to_bytes(2, "big") + question)
        length = int.from_bytes(stream.read(2), "big")
        try:
            return dns_message.read(stream.read(length), question)
        except dns_message.Malformed as error:
            raise OSError(str(error)) from None

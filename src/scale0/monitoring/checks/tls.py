"""The check `tls`: a server's certificate: how long it is valid, and whether it is trusted.

It makes one handshake, and a second one without verification if the first fails. Invariant: a certificate that is
expired, untrusted or for another host is still parsed and reported.
"""

from __future__ import annotations

import ssl
import time
from contextlib import closing
from typing import Annotated, Final

import msgspec

from scale0.monitoring.checks.arguments import MAX_HOST_CHARS, Family, Host, Limit, Port, Text, limits
from scale0.monitoring.checks.certificates import ParsedCertificate, context_of, parse_certificate, wrap_tls
from scale0.monitoring.checks.check_run import CheckFailed, CheckRun
from scale0.monitoring.checks.metrics import SECONDS, Measurements, duration, excerpt
from scale0.monitoring.checks.sockets import connect, connection_errors, host_port, tls_reason
from scale0.monitoring.protocol.results import CRITICAL, UNKNOWN, CheckFinding

DAY_SECONDS: Final = 86_400.0
DAYS: Final = "d"


class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    host: Host
    port: Port = 443
    server_name: Annotated[str, msgspec.Meta(max_length=MAX_HOST_CHARS)] = ""
    verify: bool = True
    ca_file: Text = ""
    warn: Limit = "21:"
    crit: Limit = "7:"
    family: Family = "any"


def measure(args: Args, run: CheckRun) -> CheckFinding:
    """Days left, and what is wrong with the chain or the name."""
    endpoint = host_port(args.host, args.port)
    distrust = ""
    began = time.monotonic()
    try:
        certificate, took = handshake(args, args.verify, run, endpoint), time.monotonic() - began
    except _NotTrusted as error:
        distrust = str(error)
        began = time.monotonic()
        certificate, took = handshake(args, False, run, endpoint), time.monotonic() - began
    metrics = Measurements()
    left = (certificate.ends - time.time()) / DAY_SECONDS
    warn, crit = limits(args)
    subject = f"the certificate of {endpoint} ({excerpt(certificate.subject) or 'no name'})"
    message = f"{subject} ends in {left:.1f} days"
    if left < 0:
        message = f"{subject} expired {duration(-left * DAY_SECONDS)} ago"
        if metrics.add("days_left", left, DAYS, warn=warn, crit=crit, message=message) != CRITICAL:
            metrics.add_problem(CRITICAL, message)
    else:
        metrics.add("days_left", left, DAYS, warn=warn, crit=crit, message=message)
        if distrust:
            metrics.add_problem(CRITICAL, f"{subject} is not good: {distrust}")
    if certificate.begins > time.time():
        metrics.add_problem(CRITICAL, f"{subject} is not valid yet")
    metrics.add("handshake_seconds", took, SECONDS, low=0.0)
    return metrics.finding(message)


class _NotTrusted(Exception):
    """OpenSSL does not trust the certificate; the text says why."""


def handshake(args: Args, verify: bool, run: CheckRun, endpoint: str) -> ParsedCertificate:
    with connection_errors(endpoint):
        context = context_of(verify, args.ca_file if verify else "", run)
        try:
            with closing(
                wrap_tls(connect(args.host, args.port, args.family, run), context, args.server_name or args.host, run)
            ) as sock:
                der = sock.getpeercert(binary_form=True)
        except ssl.SSLCertVerificationError as error:
            raise _NotTrusted(tls_reason(error).partition(": ")[2]) from None
    if not der:
        raise CheckFailed(CRITICAL, f"{endpoint} shows no certificate")
    try:
        return parse_certificate(der)
    except ValueError as error:
        raise CheckFailed(UNKNOWN, f"{endpoint}: {error}") from None

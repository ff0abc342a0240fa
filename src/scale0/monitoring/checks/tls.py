"""The check `tls`: a server's certificate: how long it is good, and whether it is trusted.

Lives here: one handshake, or two where the first finds a certificate that is not good. Never here: what is said over
the connection. Invariant: a certificate that is expired, strange or for another host is still read and told.
"""

from __future__ import annotations

import ssl
import time
from contextlib import closing
from typing import Annotated, Final

import msgspec

from scale0.monitoring.checks.arguments import MAX_HOST_CHARS, Family, Host, Limit, Port, Text, limits
from scale0.monitoring.checks.certificates import ServerCertificate, context_of, read_certificate, secured
from scale0.monitoring.checks.check_run import CheckFailed, CheckRun
from scale0.monitoring.checks.metrics import SECONDS, Measurements, excerpt, span
from scale0.monitoring.checks.sockets import dial, place, reaching, tls_reason
from scale0.monitoring.protocol.results import CRITICAL, UNKNOWN, CheckFinding

DAY_SECONDS: Final = 86_400.0
DAYS: Final = "d"


class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """See docs/checks.md."""

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
    spot = place(args.host, args.port)
    distrust = ""
    began = time.monotonic()
    try:
        certificate, took = shaken(args, args.verify, run, spot), time.monotonic() - began
    except _NotGood as error:
        distrust = str(error)
        began = time.monotonic()
        certificate, took = shaken(args, False, run, spot), time.monotonic() - began
    gauges = Measurements()
    left = (certificate.ends - time.time()) / DAY_SECONDS
    warn, crit = limits(args)
    whose = f"the certificate of {spot} ({excerpt(certificate.subject) or 'no name'})"
    says = f"{whose} ends in {left:.1f} days"
    if left < 0:
        says = f"{whose} expired {span(-left * DAY_SECONDS)} ago"
        if gauges.add("days_left", left, DAYS, warn=warn, crit=crit, says=says) != CRITICAL:
            gauges.blame(CRITICAL, says)
    else:
        gauges.add("days_left", left, DAYS, warn=warn, crit=crit, says=says)
        if distrust:
            gauges.blame(CRITICAL, f"{whose} is not good: {distrust}")
    if certificate.begins > time.time():
        gauges.blame(CRITICAL, f"{whose} is not valid yet")
    gauges.add("handshake_seconds", took, SECONDS, low=0.0)
    return gauges.finding(says)


class _NotGood(Exception):
    """OpenSSL does not trust the certificate; the text says why."""


def shaken(args: Args, verify: bool, run: CheckRun, spot: str) -> ServerCertificate:
    """The server's certificate."""
    with reaching(spot):
        context = context_of(verify, args.ca_file if verify else "", run)
        try:
            with closing(secured(dial(args.host, args.port, args.family, run), context, named(args), run)) as sock:
                der = sock.getpeercert(binary_form=True)
        except ssl.SSLCertVerificationError as error:
            raise _NotGood(tls_reason(error).partition(": ")[2]) from None
    if not der:
        raise CheckFailed(CRITICAL, f"{spot} shows no certificate")
    try:
        return read_certificate(der)
    except ValueError as error:
        raise CheckFailed(UNKNOWN, f"{spot}: {error}") from None


def named(args: Args) -> str:
    """The name that the certificate must have."""
    return args.server_name or args.host

"""The check `http`: a page: its status, its text, how long it takes.

It does not use `urllib.request`, which follows more redirects than a check should. Invariants: redirects are limited,
never leave http(s), and never go from https to http; configured headers are sent to the first host only; at most
`max_bytes` of a page are read; certificates are verified unless that is turned off.
"""

from __future__ import annotations

import http.client
import socket
import time
from contextlib import closing
from typing import Annotated, Any, Final, Literal, NamedTuple
from urllib.parse import SplitResult, quote, urljoin, urlsplit

import msgspec

from scale0 import __version__
from scale0.monitoring.checks.arguments import Family, FullText, Limit, Text, WrongArgs, limit, limits
from scale0.monitoring.checks.certificates import context_of, parse_certificate, wrap_tls
from scale0.monitoring.checks.check_run import CheckFailed, CheckRun
from scale0.monitoring.checks.metrics import BYTES, SECONDS, Measurements, byte_size, duration, excerpt
from scale0.monitoring.checks.sockets import BLOCK_BYTES, SocketStream, connect, connection_errors
from scale0.monitoring.checks.thresholds import Range
from scale0.monitoring.protocol.results import CRITICAL, CheckFinding

MAX_PAGE_BYTES: Final = 16_777_216
MAX_REDIRECTS: Final = 10
MAX_BODY_CHARS: Final = 65_536
DAY_SECONDS: Final = 86_400.0
MOVED: Final = frozenset({301, 302, 303, 307, 308})
KEEPS_METHOD: Final = frozenset({307, 308})
SAFE: Final = "/%:=&?~#+!$,;'@()*[]"
"""Characters of a target that are not escaped."""


class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    url: FullText
    method: Literal["GET", "HEAD", "POST"] = "GET"
    headers: Annotated[dict[FullText, Text], msgspec.Meta(max_length=50)] = {}
    body: Annotated[str, msgspec.Meta(max_length=MAX_BODY_CHARS)] = ""
    status: Limit = "200:399"
    expect: Text = ""
    warn: Limit = 2.0
    crit: Limit = 10.0
    redirects: Annotated[int, msgspec.Meta(ge=0, le=MAX_REDIRECTS)] = 5
    max_bytes: Annotated[int, msgspec.Meta(ge=1, le=MAX_PAGE_BYTES)] = 1_048_576
    verify: bool = True
    ca_file: Text = ""
    family: Family = "any"


class HttpPage(NamedTuple):
    status: int
    location: str
    body: bytes
    cut: bool
    days_left: float | None


class HttpRequest(NamedTuple):
    url: SplitResult
    method: str
    body: bytes | None
    headers: dict[str, str]


def measure(args: Args, run: CheckRun) -> CheckFinding:
    expected_status = limit("status", args.status)
    began = time.monotonic()
    request = HttpRequest(
        split(args.url), args.method, args.body.encode("utf-8", "replace") or None, dict(args.headers)
    )
    page = fetch(request, args, run)
    hops = 0
    while page.status in MOVED and page.location and args.redirects:
        hops += 1
        if hops > args.redirects:
            raise CheckFailed(CRITICAL, f"{args.url} redirects more than {args.redirects} times")
        request = next_request(request, page)
        page = fetch(request, args, run)
    return finding_of(args, page, hops, time.monotonic() - began, expected_status)


def finding_of(args: Args, page: HttpPage, hops: int, took: float, expected_status: Range | None) -> CheckFinding:
    metrics = Measurements()
    message = f"{excerpt(args.url)} answers {page.status}"
    metrics.add("status", page.status, crit=expected_status, message=message)
    warn, crit = limits(args)
    slow = f"{excerpt(args.url)} took {duration(took)}"
    metrics.add("seconds", took, SECONDS, warn=warn, crit=crit, low=0.0, message=slow)
    metrics.add("size_bytes", len(page.body), BYTES, low=0.0, high=float(args.max_bytes))
    metrics.add("redirects", hops, low=0.0)
    if page.days_left is not None:
        metrics.add("days_left", page.days_left, "d")
    if args.expect and args.expect.encode("utf-8", "replace") not in page.body:
        where = f"the first {byte_size(len(page.body))} of {excerpt(args.url)}" if page.cut else excerpt(args.url)
        metrics.add_problem(CRITICAL, f"{where} does not have the text {excerpt(args.expect)!r}")
    return metrics.finding(f"{message} within {duration(took)}, {byte_size(len(page.body))}")


def split(url: str) -> SplitResult:
    """The parts of a URL; raises WrongArgs."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise WrongArgs(f"arg url: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise WrongArgs(f"arg url: {excerpt(url)} is not an http:// or https:// URL")
    if parts.username is not None:
        raise WrongArgs("arg url: it has a user name; give an Authorization header instead")
    return parts


def next_request(request: HttpRequest, page: HttpPage) -> HttpRequest:
    base = request.url.geturl()
    try:
        url = split(urljoin(base, page.location))
    except (WrongArgs, ValueError):
        raise CheckFailed(
            CRITICAL, f"{excerpt(base)} redirects to {excerpt(page.location)}, which is not allowed"
        ) from None
    if request.url.scheme == "https" and url.scheme == "http":
        raise CheckFailed(CRITICAL, f"{excerpt(base)} redirects from https to http: {excerpt(page.location)}")
    same = (url.scheme, url.netloc) == (request.url.scheme, request.url.netloc)
    headers = request.headers if same else {}
    if page.status in KEEPS_METHOD or request.method == "HEAD":
        return HttpRequest(url, request.method, request.body if same else None, headers)
    return HttpRequest(url, "GET", None, headers)


def fetch(request: HttpRequest, args: Args, run: CheckRun) -> HttpPage:
    secure = request.url.scheme == "https"
    host = request.url.hostname or ""
    port = request.url.port or (443 if secure else 80)
    with connection_errors(excerpt(request.url.geturl())):
        context = context_of(args.verify, args.ca_file, run) if secure else None
        sock = connect(host, port, args.family, run)
        if context is not None:
            sock = wrap_tls(sock, context, host, run)
        with closing(sock):
            try:
                return exchange(sock, request, args, run)
            except http.client.HTTPException as error:
                raise OSError(f"the answer is not HTTP: {type(error).__name__}") from None


def exchange(sock: socket.socket, request: HttpRequest, args: Args, run: CheckRun) -> HttpPage:
    """Send the request, and read at most `max_bytes` of the answer."""
    url = request.url
    connection = http.client.HTTPConnection(url.hostname or "")
    stream: Any = SocketStream(sock, run.deadline)
    connection.sock = stream
    headers = {"Host": url.netloc, "User-Agent": f"scale0/{__version__}", "Accept": "*/*", "Connection": "close"}
    own = {name.lower() for name in request.headers}
    headers = {name: value for name, value in headers.items() if name.lower() not in own} | request.headers
    target = quote((url.path or "/") + (f"?{url.query}" if url.query else ""), safe=SAFE)
    try:
        connection.request(request.method, target, request.body, headers)
    except ValueError as error:  # a header with a line break, or not in Latin-1
        raise WrongArgs(f"arg headers: {error}") from None
    answer = connection.getresponse()
    body = bytearray()
    while len(body) <= args.max_bytes and (block := answer.read(min(BLOCK_BYTES, args.max_bytes + 1 - len(body)))):
        body += block
    cut = len(body) > args.max_bytes
    if not cut and answer.length:
        raise OSError(f"the page ends {answer.length} bytes too early")
    answer.close()
    location = answer.getheader("Location", "")
    return HttpPage(answer.status, location, bytes(body[: args.max_bytes]), cut, days_left(sock))


def days_left(sock: socket.socket) -> float | None:
    """Of the certificate, if the connection has one."""
    der = sock.getpeercert(binary_form=True) if hasattr(sock, "getpeercert") else None
    if not der:
        return None
    try:
        return (parse_certificate(der).ends - time.time()) / DAY_SECONDS
    except ValueError:
        return None

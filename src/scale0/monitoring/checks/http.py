"""The check `http`: a page: its status, its text, how long it takes.

Lives here: one request, and the redirects that follow from it. Never here: `urllib.request`, which follows more than a
check should. Invariants: redirects are bounded, never leave http(s), never go back from https to http; headers that
were given go to the first host only; no more than `max_bytes` of a page are read; certificates are verified unless
that was turned off.
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
from scale0.monitoring.checks.certificates import context_of, read_certificate, secured
from scale0.monitoring.checks.check_run import CheckFailed, CheckRun
from scale0.monitoring.checks.metrics import BYTES, SECONDS, Measurements, excerpt, size, span
from scale0.monitoring.checks.sockets import BLOCK_BYTES, SocketStream, dial, reaching
from scale0.monitoring.checks.thresholds import Range
from scale0.monitoring.protocol.results import CRITICAL, CheckFinding

MAX_PAGE_BYTES: Final = 16_777_216
MAX_REDIRECTS: Final = 10
MAX_BODY_CHARS: Final = 65_536
DAY_SECONDS: Final = 86_400.0
MOVED: Final = frozenset({301, 302, 303, 307, 308})
KEEPS_METHOD: Final = frozenset({307, 308})
SAFE: Final = "/%:=&?~#+!$,;'@()*[]"
"""Characters of a target that stay as they are."""


class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """See docs/checks.md."""

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
    """What one request brought."""

    status: int
    location: str
    body: bytes
    cut: bool
    days_left: float | None


class HttpRequest(NamedTuple):
    """What is asked for next."""

    url: SplitResult
    method: str
    body: bytes | None
    headers: dict[str, str]


def measure(args: Args, run: CheckRun) -> CheckFinding:
    """Ask for the page, follow where it moved, and judge what came."""
    expected_status = limit("status", args.status)
    began = time.monotonic()
    wish = HttpRequest(split(args.url), args.method, args.body.encode("utf-8", "replace") or None, dict(args.headers))
    page = fetch(wish, args, run)
    hops = 0
    while page.status in MOVED and page.location and args.redirects:
        hops += 1
        if hops > args.redirects:
            raise CheckFailed(CRITICAL, f"{args.url} moves more than {args.redirects} times")
        wish = next_wish(wish, page)
        page = fetch(wish, args, run)
    return told(args, page, hops, time.monotonic() - began, expected_status)


def told(args: Args, page: HttpPage, hops: int, took: float, expected_status: Range | None) -> CheckFinding:
    """Metrics and judgement of the last page."""
    gauges = Measurements()
    says = f"{excerpt(args.url)} answers {page.status}"
    gauges.add("status", page.status, crit=expected_status, says=says)
    warn, crit = limits(args)
    slow = f"{excerpt(args.url)} took {span(took)}"
    gauges.add("seconds", took, SECONDS, warn=warn, crit=crit, low=0.0, says=slow)
    gauges.add("size_bytes", len(page.body), BYTES, low=0.0, high=float(args.max_bytes))
    gauges.add("redirects", hops, low=0.0)
    if page.days_left is not None:
        gauges.add("days_left", page.days_left, "d")
    if args.expect and args.expect.encode("utf-8", "replace") not in page.body:
        where = f"the first {size(len(page.body))} of {excerpt(args.url)}" if page.cut else excerpt(args.url)
        gauges.blame(CRITICAL, f"{where} does not have the text {excerpt(args.expect)!r}")
    return gauges.finding(f"{says} within {span(took)}, {size(len(page.body))}")


def split(url: str) -> SplitResult:
    """The parts of a URL that can be asked for."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise WrongArgs(f"arg url: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise WrongArgs(f"arg url: {excerpt(url)} is no http:// or https:// address")
    if parts.username is not None:
        raise WrongArgs("arg url: it has a user name; give an Authorization header instead")
    return parts


def next_wish(wish: HttpRequest, page: HttpPage) -> HttpRequest:
    """Where the page moved to, and what may be said there."""
    base = wish.url.geturl()
    try:
        url = split(urljoin(base, page.location))
    except (WrongArgs, ValueError):
        raise CheckFailed(CRITICAL, f"{excerpt(base)} moves to {excerpt(page.location)}, which is no address") from None
    if wish.url.scheme == "https" and url.scheme == "http":
        raise CheckFailed(CRITICAL, f"{excerpt(base)} moves from https to http: {excerpt(page.location)}")
    same = (url.scheme, url.netloc) == (wish.url.scheme, wish.url.netloc)
    headers = wish.headers if same else {}
    if page.status in KEEPS_METHOD or wish.method == "HEAD":
        return HttpRequest(url, wish.method, wish.body if same else None, headers)
    return HttpRequest(url, "GET", None, headers)


def fetch(wish: HttpRequest, args: Args, run: CheckRun) -> HttpPage:
    """One request over a connection of its own."""
    secure = wish.url.scheme == "https"
    host = wish.url.hostname or ""
    port = wish.url.port or (443 if secure else 80)
    with reaching(excerpt(wish.url.geturl())):
        context = context_of(args.verify, args.ca_file, run) if secure else None
        sock = dial(host, port, args.family, run)
        if context is not None:
            sock = secured(sock, context, host, run)
        with closing(sock):
            try:
                return exchange(sock, wish, args, run)
            except http.client.HTTPException as error:
                raise OSError(f"the answer is not HTTP: {type(error).__name__}") from None


def exchange(sock: socket.socket, wish: HttpRequest, args: Args, run: CheckRun) -> HttpPage:
    """Say the request, and read the answer as far as it is wanted."""
    url = wish.url
    connection = http.client.HTTPConnection(url.hostname or "")
    stream: Any = SocketStream(sock, run.deadline)
    connection.sock = stream
    headers = {"Host": url.netloc, "User-Agent": f"scale0/{__version__}", "Accept": "*/*", "Connection": "close"}
    own = {name.lower() for name in wish.headers}
    headers = {name: value for name, value in headers.items() if name.lower() not in own} | wish.headers
    target = quote((url.path or "/") + (f"?{url.query}" if url.query else ""), safe=SAFE)
    try:
        connection.request(wish.method, target, wish.body, headers)
    except ValueError as error:  # a header that would be two, or is no Latin-1
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
    """Of the certificate, where there is one."""
    der = sock.getpeercert(binary_form=True) if hasattr(sock, "getpeercert") else None
    if not der:
        return None
    try:
        return (read_certificate(der).ends - time.time()) / DAY_SECONDS
    except ValueError:
        return None

"""The middleware around the application: it checks Host, Origin, method, sizes and times of every request, and adds
the security headers to every response.

A request for a host name that is not configured is refused, and so is a change from the page of another site. A body
has a maximal size and a deadline.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from scale0.broker.main.http_settings import HttpSettings
from scale0.config import MAX_DOCUMENT_BYTES
from scale0.http.problem import ApiProblem

MAX_BODY_BYTES: Final = MAX_DOCUMENT_BYTES + 64 * 1024
"""Of a request: the largest configuration document with its envelope."""
MAX_SMALL_BODY_BYTES: Final = 256 * 1024
"""Of all other requests."""
MAX_LOGIN_BYTES: Final = 16 * 1024
"""Of a login."""
BODY_SECONDS: Final = 10.0
"""How long a complete body may take to arrive."""
MAX_TARGET_BYTES: Final = 8 * 1024
"""Of a path with its query."""
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})
SAFE: Final = frozenset({"GET", "HEAD"})
API: Final = "/api/"
OWN_SITES: Final = frozenset({"same-origin", "none"})
"""The values of Sec-Fetch-Site for pages of this origin, and for an address that the user typed."""
LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
HSTS: Final = "max-age=31536000"
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
"""No other origins, and nothing inline."""
HEADERS: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)


class RequestChecks:
    def __init__(self, app: ASGIApp, settings: HttpSettings) -> None:
        self._app = app
        self._hosts = {name.lower() for name in settings.hosts} | LOCAL_NAMES | {plain(settings.bind)}
        self._headers = list(HEADERS)
        if settings.has_tls:
            self._headers.append((b"strict-transport-security", HSTS.encode()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        untyped: Any = scope
        if untyped["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_api = untyped["path"].startswith(API)
        request = CheckedRequest(self._headers, is_api, dict(untyped["headers"]), receive, send)
        try:
            self._check(untyped)
        except ApiProblem as problem:
            await request.refuse(problem)
            return
        if untyped["method"] == "HEAD":
            untyped = {**untyped, "method": "GET"}  # uvicorn leaves the body out
        await self._app(untyped, request.receive, request.send)

    def _check(self, scope: Any) -> None:
        if scope["method"] not in METHODS:
            raise ApiProblem(
                405, f"the method {scope['method'][:16]} is not supported", "use GET, POST, PUT, PATCH or DELETE"
            )
        if len(scope["raw_path"]) + len(scope["query_string"]) > MAX_TARGET_BYTES:
            raise ApiProblem(
                414, f"the path with its query exceeds {MAX_TARGET_BYTES} bytes", "send fewer or shorter parameters"
            )
        if "\0" in scope["path"] or "\\" in scope["path"]:
            raise ApiProblem(400, "the path contains a backslash or a NUL character")
        host = single(scope["headers"], b"host")
        if host is None:
            raise ApiProblem(400, "the Host header is missing or given more than once")
        self._check_host(host, scope.get("server"))
        length = single(scope["headers"], b"content-length") or "0"
        if length.isascii() and length.isdigit() and int(length[:20]) > MAX_BODY_BYTES:
            raise ApiProblem(413, f"the body exceeds {MAX_BODY_BYTES} bytes")
        if scope["method"] not in SAFE:
            check_origin(scope["headers"], host)

    def _check_host(self, host: str, server: Any) -> None:
        name = host_name(host)
        local = {plain(server[0])} if server and server[0] else set()
        if name is None or name not in self._hosts | local:
            raise ApiProblem(421, f"this server does not serve the host {host[:100]!r}")


class CheckedRequest:
    """One request: limits its body, and adds headers to its response."""

    __slots__ = ("_added", "_deadline", "_is_api", "_receive", "_received_bytes", "_send", "_unread")

    def __init__(
        self, headers: list[tuple[bytes, bytes]], is_api: bool, given: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        self._added = headers
        self._is_api = is_api
        self._receive = receive
        self._send = send
        self._received_bytes = 0
        self._deadline: float | None = None
        self._unread = b"transfer-encoding" in given or given.get(b"content-length", b"0") != b"0"
        """Whether a part of the body may still arrive: then the connection is closed after the response."""

    async def receive(self) -> Any:
        """The next chunk of the body. Raises `ApiProblem` if it is late or too large."""
        if not self._unread:
            return await self._receive()
        now = asyncio.get_running_loop().time()
        if self._deadline is None:
            self._deadline = now + BODY_SECONDS
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise ApiProblem(408, f"the body did not arrive within {BODY_SECONDS:g} s") from None
        if message["type"] == "http.request":
            self._received_bytes += len(message.get("body", b""))
            if self._received_bytes > MAX_BODY_BYTES:
                raise ApiProblem(413, f"the body exceeds {MAX_BODY_BYTES} bytes")
            self._unread = bool(message.get("more_body", False))
        return message

    async def send(self, message: Message) -> None:
        """A chunk of the response; the first one gets the security headers."""
        if message["type"] == "http.response.start":
            given = list(message.get("headers", ()))
            names = {name.lower() for name, _ in given}
            given += [(name, value) for name, value in self._added if name not in names]
            if self._is_api and b"cache-control" not in names:
                given.append((b"cache-control", b"no-store"))
            if self._unread:
                given.append((b"connection", b"close"))
            message = {**message, "headers": given}
        await self._send(message)

    async def refuse(self, problem: ApiProblem) -> None:
        """Respond without calling the application."""
        self._is_api = True
        body = msgspec.json.encode(problem.as_json())
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        headers += [(name.lower().encode(), value.encode()) for name, value in problem.headers().items()]
        await self.send({"type": "http.response.start", "status": problem.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body, "more_body": False})


def check_origin(headers: Iterable[tuple[bytes, bytes]], host: str) -> None:
    """Accept a change from a page of this origin, or from no page at all. Raises `ApiProblem`."""
    pairs = list(headers)
    site = single(pairs, b"sec-fetch-site")
    if site is not None and site.lower() not in OWN_SITES:
        raise ApiProblem(403, "a change from a page of another site is refused", "use the console of this server")
    if not any(name == b"origin" for name, _ in pairs):
        return
    origin = single(pairs, b"origin") or ""
    if authority_of(origin) != host.lower():
        raise ApiProblem(403, f"the origin {origin[:100]!r} is not this server", "use the console of this server")


def authority_of(origin: str) -> str | None:
    """The host and port of an origin; None: it is not the origin of a web page."""
    try:
        found = urlsplit(origin)
    except ValueError:
        return None
    if found.scheme not in ("http", "https") or found.path or found.query or found.fragment:
        return None
    return found.netloc.lower()


def host_name(host: str) -> str | None:
    """The name in a Host header, without its port; None: the header is invalid."""
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]"):
        name, port = host, ""
    if (colon and not host.endswith("]")) and not (port.isascii() and port.isdigit() and len(port) <= 5):
        return None
    return plain(name) or None


def plain(host: str) -> str:
    """The canonical form of an address, or a name in lower case."""
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        return bare.lower() if bare == host else ""


def single(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    """The value of a header that is given once; None: it is missing, or given more than once."""
    values = [value for key, value in headers if key == name]
    return values[0].decode("latin-1") if len(values) == 1 else None

"""Places: where exports go, and the headers that they carry.

Lives here: an address taken apart, how it may be shown, and a file of headers. Never here: a connection. Invariant: no
part of a header, and no password of a URL, is ever in a message.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from scale0.kernel.errors import ConfigError

DEFAULT_PORTS: Final = {"graphite": 2003, "statsd": 8125}
OTLP_PATH: Final = "/v1/metrics"
MAX_PORT_DIGITS: Final = 5
MAX_PORT: Final = 65_535
MAX_HEADERS_BYTES: Final = 65_536
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def host_and_port(kind: str, address: str) -> tuple[str, int]:
    """`HOST`, `HOST:PORT` or `[HOST]:PORT`. ConfigError: it is none of them."""
    host, colon, port = address.rpartition(":")
    if not colon or (":" in host and not host.endswith("]")):
        host, port = address, str(DEFAULT_PORTS[kind])
    good = port.isascii() and port.isdigit() and len(port) <= MAX_PORT_DIGITS and 0 < int(port) <= MAX_PORT
    host = host.removeprefix("[").removesuffix("]")
    if not (host and good and host.isprintable() and " " not in host and "/" not in host):
        raise ConfigError([f"management.exports: {shown(address)} is no HOST:PORT"])
    return host, int(port)


def otlp_url(address: str) -> str:
    """The URL of the receiver; without a path it gets the usual one."""
    url = urlsplit(address if "://" in address else f"http://{address}")
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ConfigError([f"management.exports: {shown(address)} is no URL such as http://127.0.0.1:4318"])
    return url._replace(path=OTLP_PATH).geturl() if url.path in ("", "/") else url.geturl()


def shown(address: str) -> str:
    """An address for logs and labels: without who logs in there, and without a query."""
    start, scheme, rest = address.rpartition("://")
    place, slash, path = rest.partition("/")
    return f"{start}{scheme}{place.rpartition('@')[2]}{slash}{path.partition('?')[0]}"


def read_headers(path: str) -> dict[str, str]:
    """A file of `Name: value` lines; blank lines and those that start with `#` say nothing. ConfigError: it is not."""
    if not path:
        return {}
    try:
        with Path(path).open("rb") as file:
            text = file.read(MAX_HEADERS_BYTES + 1).decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        raise ConfigError([f"management.exports: headers_file {path}: {why}"]) from None
    if len(text) > MAX_HEADERS_BYTES:
        raise ConfigError([f"management.exports: headers_file {path}: more than {MAX_HEADERS_BYTES} bytes"])
    headers: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, value = line.partition(":")
        if not colon or not _HEADER_NAME.fullmatch(name) or not value.strip().isprintable():
            raise ConfigError([f"management.exports: headers_file {path}: line {number} is not `Name: value`"])
        headers[name] = value.strip()
    return headers

"""A raw agent: a TLS socket, bytes out and lines in, written from the protocol alone. Each wait has a deadline."""

from __future__ import annotations

import json
import socket
import ssl
import time
from pathlib import Path
from typing import Any, NamedTuple

from tests.fakes.waiting import PATIENCE_SECONDS
from tests.wire.monitoring.authority import Papers

MOMENT_SECONDS = 0.3
"""How long silence is listened to."""
WITH_BLOB = {b"check": 3, b"schedule": 2, b"file": 3, b"enrolled": 1, b"upgrade": 2, b"open": 2, b"data": 2}
"""Which word of a line is the length of the blob that follows."""


class Message(NamedTuple):
    """A line, its words, and its blob if it has one."""

    words: list[bytes]
    blob: bytes

    @property
    def command(self) -> str:
        return self.words[0].decode()

    @property
    def number(self) -> int:
        """The message id."""
        return int(self.words[2 if self.words[0] == b"check" else 1])

    @property
    def json(self) -> Any:
        return json.loads(self.blob)


def client_context(ca: Path, papers: Papers | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(ca)
    if papers is not None:
        context.load_cert_chain(papers.certificate, papers.key)
    return context


class RawAgent:
    """One TLS connection to a Helen at 127.0.0.1."""

    with_blob = WITH_BLOB
    who = "Helen"

    def __init__(self, port: int, ca: Path, papers: Papers | None) -> None:
        plain = socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self.socket = client_context(ca, papers).wrap_socket(plain, server_hostname="127.0.0.1")
        except BaseException:
            plain.close()
            raise
        self._held = b""
        self._over = False

    def send(self, data: bytes) -> None:
        """Bytes as they are. A Helen who has closed already is no error here: what she said is still to be read."""
        self.socket.settimeout(PATIENCE_SECONDS)
        try:
            self.socket.sendall(data)
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise

    def hello(self, version: int = 1, software: str = "raw/1") -> None:
        self.send(f"hello {version} {software}\n".encode())

    def answer(self, asked: Message, result: Any) -> None:
        """The result of a check: JSON, or these bytes."""
        blob = result if isinstance(result, bytes) else json.dumps(result).encode()
        self.send(b"result %d %s %d\n%s\n" % (asked.number, asked.words[1], len(blob), blob))

    def line(self, seconds: float = PATIENCE_SECONDS) -> bytes:
        """The next line without its end."""
        self._read_until(lambda: b"\n" in self._held, seconds)
        line, self._held = self._held.split(b"\n", 1)
        return line

    def message(self, seconds: float = PATIENCE_SECONDS) -> Message:
        """The next line, with its blob if it has one."""
        words = self.line(seconds).split(b" ")
        if words[0] not in self.with_blob:
            return Message(words, b"")
        length = int(words[self.with_blob[words[0]]])
        self._read_until(lambda: len(self._held) > length, seconds)
        blob, end, self._held = self._held[:length], self._held[length : length + 1], self._held[length + 1 :]
        assert end == b"\n", f"{words} has a blob without its end"
        return Message(words, blob)

    def hear(self, command: str, seconds: float = PATIENCE_SECONDS) -> Message:
        """The next message, which must be this one; a ping before it is answered and passed over."""
        end = time.monotonic() + seconds
        heard = self.message(seconds)
        while heard.command == "ping" and command != "ping":
            self.send(b"pong %d\n" % heard.number)
            heard = self.message(end - time.monotonic())
        assert heard.command == command, f"{heard} was heard in place of {command}"
        return heard

    def silent(self, seconds: float = MOMENT_SECONDS) -> bool:
        """True if nothing comes for a moment and the connection stays."""
        try:
            self._read_until(lambda: bool(self._held), seconds)
        except AssertionError:
            return not self._over
        return False

    def rest(self, seconds: float = PATIENCE_SECONDS) -> bytes:
        """All that comes until the other side closes; the test fails when it does not."""
        end = time.monotonic() + seconds
        while not self._over:
            assert self._receive(end), f"{self.who} did not close within {seconds} s, and said {self._held!r}"
        rest, self._held = self._held, b""
        return rest

    def refused(self, seconds: float = PATIENCE_SECONDS) -> str:
        """What `error` says; nothing may follow but the close."""
        rest = self.rest(seconds)
        assert rest.startswith(b"error "), f"no error, but {rest!r}, then close"
        assert rest.endswith(b"\n"), f"an error without its end: {rest!r}"
        assert rest.count(b"\n") == 1, f"more than an error: {rest!r}"
        return rest[6:-1].decode()

    def close(self) -> None:
        """Gone without a word."""
        self.socket.close()

    def _read_until(self, enough: Any, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not enough():
            assert not self._over, f"{self.who} has closed, and said {self._held!r}"
            assert self._receive(end), f"nothing more from {self.who} within {seconds} s but {self._held!r}"

    def _receive(self, end: float) -> bool:
        """Take in what comes next, an end of the connection too; False when nothing came in time."""
        left = end - time.monotonic()
        if left <= 0:
            return False
        self.socket.settimeout(left)
        try:
            data = self.socket.recv(262_144)
        except TimeoutError:
            return False
        except OSError:
            data = b""
        self._held += data
        self._over = not data
        return True

    def is_over(self) -> bool:
        """True if the other side has closed already."""
        if not self._over:
            self._receive(time.monotonic() + 0.02)
        return self._over

"""A fake agent: a TLS connection, bytes out and lines in, written from the protocol alone. Each wait has a deadline."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.fakes.certificates import CertificateFiles
from tests.fakes.waiting import PATIENCE_SECONDS

SILENT_SECONDS = 0.3
"""How long nothing must come before a connection counts as silent."""
BLOB_LENGTHS = {
    b"check": 3,
    b"schedule": 2,
    b"file": 3,
    b"enrolled": 1,
    b"upgrade": 2,
    b"open": 2,
    b"data": 2,
    b"result": 3,
    b"report": 3,
    b"enrol": 1,
}
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
    def name(self) -> str:
        """Of the check."""
        return self.words[1 if self.words[0] == b"check" else 2].decode()

    @property
    def json(self) -> Any:
        return json.loads(self.blob)


class Connection:
    """One end of a TLS connection between Helen and an agent."""

    def __init__(self, wrapped: ssl.SSLSocket, peer: str) -> None:
        self.socket, self.peer = wrapped, peer
        self._buffer = b""
        self._is_over = False

    def send(self, data: bytes) -> None:
        """Bytes as they are. It is no error that the peer has closed: what it sent is still to be read."""
        self.socket.settimeout(PATIENCE_SECONDS)
        try:
            self.socket.sendall(data)
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise

    def send_blob(self, head: bytes, body: Any) -> None:
        """A command with a blob: JSON, or these bytes."""
        blob = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send(b"%b %d\n%b\n" % (head, len(blob), blob))

    def line(self, seconds: float = PATIENCE_SECONDS) -> bytes:
        """The next line without its end."""
        self._read_until(lambda: b"\n" in self._buffer, seconds)
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line

    def message(self, seconds: float = PATIENCE_SECONDS) -> Message:
        """The next line, with its blob if it has one."""
        words = self.line(seconds).split(b" ")
        if words[0] not in BLOB_LENGTHS:
            return Message(words, b"")
        length = int(words[BLOB_LENGTHS[words[0]]])
        self._read_until(lambda: len(self._buffer) > length, seconds)
        blob, end = self._buffer[:length], self._buffer[length : length + 1]
        self._buffer = self._buffer[length + 1 :]
        assert end == b"\n", f"{words} has a blob without its end"
        return Message(words, blob)

    def expect(self, command: str, seconds: float = PATIENCE_SECONDS) -> Message:
        """The next message, which must be this one; a ping before it is answered and skipped."""
        end = time.monotonic() + seconds
        received = self.message(seconds)
        while received.command == "ping" and command != "ping":
            self.send(b"pong %d\n" % received.number)
            received = self.message(end - time.monotonic())
        assert received.command == command, f"{received} was received in place of {command}"
        return received

    def is_silent(self, seconds: float = SILENT_SECONDS) -> bool:
        """True if nothing comes for a moment and the connection stays."""
        try:
            self._read_until(lambda: bool(self._buffer), seconds)
        except AssertionError:
            return not self._is_over
        return False

    def read_to_end(self, seconds: float = PATIENCE_SECONDS) -> bytes:
        """All that comes until the other side closes; the test fails when it does not."""
        end = time.monotonic() + seconds
        while not self._is_over:
            assert self._receive(end), f"{self.peer} did not close within {seconds} s, and sent {self._buffer!r}"
        rest, self._buffer = self._buffer, b""
        return rest

    def expect_error(self, seconds: float = PATIENCE_SECONDS) -> str:
        """The text of `error`; nothing may follow but the close."""
        rest = self.read_to_end(seconds)
        assert rest.startswith(b"error "), f"no error, but {rest!r}, then close"
        assert rest.endswith(b"\n"), f"an error without its end: {rest!r}"
        assert rest.count(b"\n") == 1, f"more than an error: {rest!r}"
        return rest[6:-1].decode()

    def is_closed(self) -> bool:
        """True if the other side has closed already."""
        if not self._is_over:
            self._receive(time.monotonic() + 0.02)
        return self._is_over

    def close(self) -> None:
        """Without a goodbye."""
        self.socket.close()

    def _read_until(self, is_enough: Callable[[], bool], seconds: float) -> None:
        end = time.monotonic() + seconds
        while not is_enough():
            assert not self._is_over, f"{self.peer} has closed, and sent {self._buffer!r}"
            assert self._receive(end), f"nothing more from {self.peer} within {seconds} s but {self._buffer!r}"

    def _receive(self, end: float) -> bool:
        """Read what comes next, an end of the connection too; False when nothing came in time."""
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
        self._buffer += data
        self._is_over = not data
        return True


def client_context(ca: Path, files: CertificateFiles | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(ca)
    if files is not None:
        context.load_cert_chain(*files)
    return context


class FakeAgent(Connection):
    """An agent's connection to a Helen on loopback."""

    def __init__(self, port: int, ca: Path, files: CertificateFiles | None, name: str = "") -> None:
        self.name = name
        plain = socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            super().__init__(client_context(ca, files).wrap_socket(plain, server_hostname="127.0.0.1"), "Helen")
        except BaseException:
            plain.close()
            raise

    def hello(self, version: int = 1, software: str = "raw/1") -> None:
        self.send(f"hello {version} {software}\n".encode())

    def expect_accepted(self) -> None:
        self.expect("accepted")
        self.expect("schedule")

    def answer(self, check: Message, result: Any) -> None:
        """The result of a check: JSON, or these bytes."""
        self.send_blob(b"result %d %b" % (check.number, check.name.encode()), result)

    def answer_next(self, result: Any) -> Message:
        """The result of the next check."""
        check = self.expect("check")
        self.answer(check, result)
        return check

    def __enter__(self) -> FakeAgent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

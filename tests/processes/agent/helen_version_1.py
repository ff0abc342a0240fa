"""A Helen of protocol version 1, written from its first specification alone: lines, blobs, five commands, TLS."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


class Helen:
    """One listening socket, and one agent at a time."""

    def __init__(self, certificate: Path, key: Path, ca: Path) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(certificate, key)
        self.context.load_verify_locations(ca)
        self.context.verify_mode = ssl.CERT_REQUIRED
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(20)
        self.port: int = self.listener.getsockname()[1]

    @contextmanager
    def accept(self) -> Iterator[Equus]:
        raw, _ = self.listener.accept()
        raw.settimeout(20)
        with self.context.wrap_socket(raw, server_side=True) as tls, tls.makefile("rb") as file:
            yield Equus(tls, file)

    def close(self) -> None:
        self.listener.close()


class Equus:
    """The agent at the other end of a connection."""

    def __init__(self, connection: ssl.SSLSocket, file: BinaryIO) -> None:
        self.connection = connection
        self.file = file
        command, version, self.software = self.line()
        assert command == "hello"
        self.version = int(version)

    def line(self) -> list[str]:
        line = self.file.readline()
        if not line:
            raise EOFError
        return line.decode().rstrip("\n").split(" ")

    def check(self, name: str, message_id: int, args: bytes = b"{}") -> None:
        self.connection.sendall(b"check %s %d %d\n%s\n" % (name.encode(), message_id, len(args), args))

    def say(self, line: str) -> None:
        self.connection.sendall(line.encode() + b"\n")

    def result(self) -> tuple[int, str, bytes]:
        """The next `result`: message id, name, blob."""
        command, message_id, name, length = self.line()
        assert command == "result"
        blob = self.file.read(int(length))
        assert self.file.read(1) == b"\n"
        return int(message_id), name, blob

"""A Helen of version 1, written from the protocol alone: hello, check, result, reload, error."""

from __future__ import annotations

import json
import socket
import ssl
import time
from typing import Any

from tests.wire.monitoring.authority import Authority, Papers
from tests.wire.monitoring.raw_agent import Message, RawAgent

ACCEPT_SECONDS = 15.0
"""An agent that was sent away waits up to a second, then up to two, four and so on."""
WITH_BLOB = {b"result": 3, b"report": 3, b"enrol": 1, b"file": 3, b"data": 2, b"open": 2}


class Line(RawAgent):
    """One agent's connection, seen from Helen: the same socket, lines and deadlines, the other way round."""

    with_blob = WITH_BLOB
    who = "the agent"

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self.socket, self._held, self._over, self._next = sock, b"", False, 0
        peer: Any = sock.getpeercert()
        self.common_name = dict(pair[0] for pair in peer["subject"])["commonName"]

    def check(self, name: str, args: Any = None, number: int | None = None) -> int:
        """Send a check; its message id."""
        self._next += 1
        number = self._next if number is None else number
        blob = args if isinstance(args, bytes) else json.dumps({} if args is None else args).encode()
        self.send(b"check %s %d %d\n%s\n" % (name.encode(), number, len(blob), blob))
        return number

    def result(self, seconds: float = 15.0) -> Message:
        """The next result; reports and pings of version 2 may come between."""
        heard = self.message(seconds)
        while heard.command in ("report", "ping"):
            heard = self.message(seconds)
        assert heard.command == "result", heard
        return heard

    def run(self, name: str, args: Any = None, seconds: float = 15.0) -> Any:
        """Check, and the JSON of the result."""
        number = self.check(name, args)
        heard = self.result(seconds)
        assert (heard.number, heard.words[2].decode()) == (number, name)
        return heard.json


class Helen1:
    """Listens at 127.0.0.1 with these papers; agents must show a certificate of `authority`."""

    def __init__(self, authority: Authority, papers: Papers, port: int = 0) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_3
        self.context.load_cert_chain(papers.certificate, papers.key)
        self.context.load_verify_locations(authority.file)
        self.context.verify_mode = ssl.CERT_REQUIRED
        self._door = socket.create_server(("127.0.0.1", port))
        self.port = int(self._door.getsockname()[1])

    def accept(self, seconds: float = ACCEPT_SECONDS) -> Line:
        """The next agent; its handshake is done, its hello is not read."""
        end = time.monotonic() + seconds
        self._door.settimeout(seconds)
        plain, _ = self._door.accept()
        plain.settimeout(max(0.1, end - time.monotonic()))
        try:
            return Line(self.context.wrap_socket(plain, server_side=True))
        except BaseException:
            plain.close()
            raise

    def welcome(self, seconds: float = ACCEPT_SECONDS) -> Line:
        """The next agent, its hello read."""
        line = self.accept(seconds)
        words = line.line().split(b" ")
        assert words[0] == b"hello", words
        assert len(words) == 3, words
        return line

    def close(self) -> None:
        self._door.close()

"""The smallest Helen: real TLS on loopback, and only the command `enrol`."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any

from scale0.kernel.errors import Refusal
from scale0.monitoring.pki.enrolment import EnrolmentEndpoint
from scale0.monitoring.protocol import messages
from scale0.monitoring.protocol.encoder import encode, in_one_line
from scale0.monitoring.protocol.parser import ParseFault, Parser

if TYPE_CHECKING:
    from pathlib import Path

    from scale0.monitoring.pki.authority import CertificateAuthority


class SmallHelen:
    """Serves one connection at a time, in a thread, and remembers every byte that it heard."""

    def __init__(self, authority: CertificateAuthority, folder: Path) -> None:
        self.authority = authority
        self.heard: list[bytes] = []
        self.callers: list[str | None] = []
        self.answer: bytes | None = None
        """Say this in place of the truth."""
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._context.verify_mode = ssl.CERT_OPTIONAL
        self._context.verify_flags |= ssl.VERIFY_X509_STRICT
        self._context.load_cert_chain(folder / "helen.pem", folder / "helen-key.pem")
        self._context.load_verify_locations(folder / "agents-ca.pem")
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.place = EnrolmentEndpoint("127.0.0.1", self._listening.getsockname()[1])
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> SmallHelen:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                plain, _ = self._listening.accept()
            except OSError:
                return
            with plain:
                plain.settimeout(5)
                with contextlib.suppress(OSError), self._context.wrap_socket(plain, server_side=True) as connection:
                    self._talk(connection)

    def _talk(self, connection: ssl.SSLSocket) -> None:
        shown: Any = connection.getpeercert()
        name = serial = None
        if shown:
            name = next(value for part in shown["subject"] for key, value in part if key == "commonName")
            serial = shown["serialNumber"]
        self.callers.append(name)
        parser = Parser(to_helen=True)
        while data := connection.recv(65_536):
            self.heard.append(data)
            for word in parser.feed(data):
                connection.sendall(self.answer or self._reply(word, name, serial))
                connection.unwrap()
                return

    def _reply(self, word: object, name: str | None, serial: str | None) -> bytes:
        match word:
            case messages.Enrol(body):
                found = self.authority.enrol(body, name, time.time(), serial or "")
            case ParseFault(reason):
                found = Refusal(400, reason)
            case _:
                found = Refusal(400, "without a certificate there is nothing but one enrol")
        if isinstance(found, Refusal):
            return encode(messages.Error(in_one_line(found.message)))
        return encode(messages.Enrolled(found))

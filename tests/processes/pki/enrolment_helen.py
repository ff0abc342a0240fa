"""A fake Helen with a real authority that implements only `enrol`."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

from scale0.kernel.errors import Refusal
from scale0.monitoring.pki.authority import CertificateAuthority
from scale0.monitoring.pki.enrolment import EnrolmentEndpoint
from scale0.monitoring.protocol import messages
from scale0.monitoring.protocol.encoder import encode, in_one_line
from scale0.monitoring.protocol.parser import ParseFault, Parser
from tests.fakes.fake_helen import AgentConnection, ServingHelen


class EnrolmentHelen(ServingHelen):
    """Serves one connection at a time, in a thread, and records every byte that it received."""

    def __init__(self, authority: CertificateAuthority, folder: Path) -> None:
        self.authority = authority
        self.received: list[bytes] = []
        self.callers: list[str | None] = []
        self.reply: bytes | None = None
        """Sent in place of the right reply."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_OPTIONAL
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        context.load_cert_chain(folder / "helen.pem", folder / "helen-key.pem")
        context.load_verify_locations(folder / "agents-ca.pem")
        super().__init__(context)
        self.address = EnrolmentEndpoint("127.0.0.1", self.port)

    def _talk(self, agent: AgentConnection) -> None:
        self.callers.append(agent.common_name or None)
        parser = Parser(to_helen=True)
        while data := agent.socket.recv(65_536):
            self.received.append(data)
            for message in parser.feed(data):
                agent.socket.sendall(self.reply or self._reply(message, agent))
                agent.socket.unwrap()
                return

    def _reply(self, message: object, agent: AgentConnection) -> bytes:
        match message:
            case messages.Enrol(body):
                serial = agent.certificate.get("serialNumber", "")
                found = self.authority.enrol(body, agent.common_name or None, time.time(), serial)
            case ParseFault(reason):
                found = Refusal(400, reason)
            case _:
                found = Refusal(400, "without a certificate there is nothing but one enrol")
        if isinstance(found, Refusal):
            return encode(messages.Error(in_one_line(found.message)))
        return encode(messages.Enrolled(found))

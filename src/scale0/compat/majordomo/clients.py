"""MDP/Client: requests, replies, the management services of RFC 8, and access to those of RFC 9. Invariants: a client
receives only replies to its own requests; errors are not sent, so that the client times out as its standard requires; a
0.1 client gets one message for each request.

These clients send no ids: the broker assigns one to each request, which includes the service name for the PARTIALs of
0.2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from scale0.broker.core.connections import Connection
from scale0.compat.majordomo.broker_adapter import MajordomoAdapter
from scale0.compat.majordomo.frames import CLIENT_02, CLIENT_DIALECT, ClientForm, is_dialect, read_request, write_reply
from scale0.compat.titanic.services import TITANIC_SERVICES, Titanic
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, Message
from scale0.kernel.errors import Refusal
from scale0.transport.core.sockets import FRONTEND

MMI_PREFIX: Final = "mmi."
MMI_SERVICE: Final = "mmi.service"
FOUND: Final = b"200"
NOT_FOUND: Final = b"404"
NOT_IMPLEMENTED: Final = b"501"


class MajordomoClients:
    """All clients of one version."""

    def __init__(self, form: ClientForm, adapter: MajordomoAdapter, titanic: Titanic) -> None:
        self._form = form
        self._adapter = adapter
        self._titanic = titanic
        self._next = 0

    def receive(self, connection: Connection, frames: list[bytes], now: Now, effects: Effects) -> None:
        """Handles one message without routing id and delimiter."""
        adapter = self._adapter
        connection.one_reply = not self._form.partial  # the broker joins the parts of replies
        if not adapter.serving:
            return
        try:
            if connection.socket != FRONTEND:
                raise Refusal(codes.NOT_ALLOWED, "clients are served on the frontend socket")
            service, bodies = read_request(self._form, frames, adapter.limits.max_service_bytes)
        except Refusal as refusal:
            adapter.reject(connection, refusal.code, refusal.message, now, effects)
            return
        if not adapter.may_ask(connection, now):
            return  # errors are not sent: the client sends again later
        self._next += 1
        id_ = f"{self._form.header.decode()}.{self._next:x} {service}"
        if service.startswith(MMI_PREFIX):
            effects.send(
                connection, ("REPLY", {"id": id_, "service": service}, self._manage(connection, service, bodies))
            )
        elif service in TITANIC_SERVICES:
            self._titanic.receive(connection, id_, service, bodies, now, effects)
        else:
            adapter.submit(connection, id_, service, bodies, now, effects)

    def pack(self, connection: Connection, messages: Sequence[Message]) -> list[list[bytes]]:
        """Encodes replies; everything else is dropped, because these clients do not know it."""
        out: list[list[bytes]] = []
        for message in messages:
            if isinstance(message, list):
                out.append(message)
                continue
            command, options, *bodies = message
            if command == "REPLY":
                if self._fits(bodies):
                    out.append(write_reply(self._form, True, options["service"], bodies))
            elif command == "PARTIAL" and self._form.partial:
                out.append(write_reply(self._form, False, service_of(options["id"]), bodies))
        return out

    def _manage(self, connection: Connection, service: str, bodies: Sequence[bytes]) -> bytes:
        """RFC 8: one service is implemented."""
        if service != MMI_SERVICE:
            return NOT_IMPLEMENTED
        # A name that is not UTF-8 matches no service.
        name = bodies[0].decode("utf-8", "replace")
        return FOUND if name in TITANIC_SERVICES or self._adapter.offered(connection, name) else NOT_FOUND

    def _fits(self, bodies: Sequence[bytes]) -> bool:
        """False if a reply with its parts is too large for one message: it is not sent, as for any error."""
        limits = self._adapter.limits
        return len(bodies) <= limits.max_parts and sum(map(len, bodies)) <= limits.max_message_bytes


class MajordomoClients02:
    """The header `MDPC02`, which RFC 18 and the dialect share."""

    def __init__(self, adapter: MajordomoAdapter, titanic: Titanic) -> None:
        self._plain = MajordomoClients(CLIENT_02, adapter, titanic)
        self._dialect = MajordomoClients(CLIENT_DIALECT, adapter, titanic)

    def receive(self, connection: Connection, frames: list[bytes], now: Now, effects: Effects) -> None:
        """Detects the form by the request and assigns its handler to the connection."""
        if is_dialect(frames, connection.delimiter):
            # Its socket is a DEALER, so PARTIALs may be sent, although its messages look like those of a REQ socket.
            connection.delimiter = False
            connection.handler = self._dialect
            self._dialect.receive(connection, frames, now, effects)
        else:
            connection.handler = self._plain
            self._plain.receive(connection, frames, now, effects)

    def pack(self, connection: Connection, messages: Sequence[Message]) -> list[list[bytes]]:
        """Used only for a connection whose last message was refused before it was read."""
        return self._plain.pack(connection, messages)


def service_of(id_: str | int) -> str:
    """Returns the service name that a request id includes."""
    return str(id_).partition(" ")[2]

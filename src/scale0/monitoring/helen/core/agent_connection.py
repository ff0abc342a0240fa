"""One connection of an agent, as Helen sees it: its stage, its pending checks, and the messages that are allowed now.

A message id is issued once on a connection and answered once. Version 2 messages are never sent to a version 1 agent.
After the end, nothing is sent and nothing is handled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, Message
from scale0.monitoring.helen.core.socket_events import AGENTS, ConnectionOpened
from scale0.monitoring.protocol import messages
from scale0.monitoring.protocol.encoder import encode
from scale0.monitoring.protocol.messages import Report, ToAgent, ToHelen
from scale0.monitoring.protocol.parser import Parser

if TYPE_CHECKING:
    from scale0.monitoring.helen.core.agents import Agent
    from scale0.monitoring.helen.core.pending_requests import PendingRequest

AWAITING_HELLO: Final = "waiting for hello"
"""Nothing was received yet."""
SIGNING: Final = "waiting for a certificate"
"""The client asked for a certificate."""
JOINING: Final = "joining"
"""The hello is valid; other Helens are asked for the agent's state."""
ACTIVE: Final = "active"
"""The agent is accepted."""
RELOADING: Final = "reloading"
"""The agent's version is too old; it was asked to reload."""
ENDED: Final = "ended"

MAX_PENDING_CHECKS: Final = 1_000
"""Checks without a result on one connection; an agent has a queue of its own."""
MAX_PENDING_BYTES: Final = 2 * 1024 * 1024
"""The arguments of pending checks: with more unread bytes, the socket would disconnect the agent as too slow."""
MAX_GIVEN_UP: Final = 100
"""After this many timeouts in a row, without any result, the connection is closed."""
FAIR_SECONDS: Final = 10.0
"""A shorter timeout does not count against the agent: a client may be impatient, or want to get an agent disconnected.
"""

FaultReason = str
"""Why a connection must end; empty: it need not."""


class SignCertificate:
    """An ask: validate and sign this enrolment. The answer is the certificate chain (PEM), or a Refusal."""

    __slots__ = ("body", "cn", "serial", "then")

    def __init__(self, body: bytes, cn: str | None, serial: str, then: Callable[[Any, Now, Effects], None]) -> None:
        self.body = body
        """JSON `token` and `csr`."""
        self.cn = cn
        """The name in the certificate that the client showed; None: it showed none and needs a token."""
        self.serial = serial
        """The serial of that certificate, in hexadecimal; empty: none."""
        self.then = then


class AgentConnection:
    """A connection; also the peer that the runner sends to."""

    __slots__ = (
        *("_next_id", "address", "agent", "bucket", "given_up", "identity", "issued", "last_seen", "parser"),
        *("pending", "pending_bytes", "protocol", "reports", "routing_id", "schedule", "sequence", "serial", "stage"),
        "suspected_at",
    )

    socket: Final = AGENTS

    def __init__(self, routing_id: bytes, opened: ConnectionOpened, now: Now) -> None:
        self.routing_id = routing_id
        self.identity = opened.name or None
        """The name in the certificate; None: the client showed none."""
        self.serial = opened.serial
        self.issued = opened.issued
        self.address = opened.address
        self.parser = Parser(to_helen=True)
        self.stage = AWAITING_HELLO
        self.protocol = 0
        self.reports = False
        """The agent is accepted and speaks version 2."""
        self.agent: Agent | None = None
        self.last_seen = now.mono
        self.suspected_at: float | None = None
        """When it was first found silent for too long: Helen's own process may have been suspended."""
        self.bucket = 0
        """The bucket of its timer."""
        self.sequence = 0
        """The sequence number of the last report."""
        self.pending: dict[int, PendingRequest] | None = None
        """Checks without a result, including those that nobody waits for."""
        self.pending_bytes = 0
        """The bytes of their arguments."""
        self.given_up = 0
        """Checks in a row that timed out."""
        self.schedule: bytes | None = None
        """The schedule that was sent last."""
        self._next_id = 1

    @property
    def name(self) -> str:
        return self.identity or ""

    def pack(self, messages: Sequence[Message]) -> list[list[bytes]]:
        """Everything that a turn sends, as one piece."""
        return [[b"".join([part for message in messages for part in message])]]

    def send(self, message: ToAgent, effects: Effects) -> None:
        """Send a message at the end of the turn. Raises ValueError if it cannot be encoded."""
        effects.send(self, [encode(message)])

    def refuses(self, message: ToHelen) -> FaultReason:
        """Why this message is not allowed now; empty: it is."""
        kind, stage = type(message), self.stage
        if self.identity is None and (kind is not messages.Enrol or stage is not AWAITING_HELLO):
            return "without a certificate only one enrol is allowed"
        if stage is AWAITING_HELLO:
            return "" if kind is messages.Hello or kind is messages.Enrol else "the first message must be hello"
        if stage is SIGNING:
            return "no message may follow enrol"
        if kind is messages.Hello:
            return "hello was sent twice"
        if kind is messages.Enrol:
            return "enrol may only be sent in place of hello"
        if stage is JOINING:
            return "no message may be sent before accepted"
        if stage is ACTIVE and self.protocol < messages.VERSION_2 and kind is not messages.Result:
            return f"{kind.__name__.lower()} is not a message of version {messages.VERSION_1}"
        return ""

    def accept(self, agent: Agent, protocol: int) -> None:
        self.stage, self.agent = ACTIVE, agent
        self.protocol = min(protocol, messages.VERSION_2)
        self.reports = self.protocol >= messages.VERSION_2

    def end(self) -> None:
        self.stage, self.reports, self.schedule = ENDED, False, None

    def issue(self) -> int | None:
        """A new message id; None: all are used, and the connection must end."""
        number = self._next_id
        if number > messages.MAX_INT:
            return None
        self._next_id = number + 1
        return number

    def has_room(self, size: int) -> bool:
        """False: too many checks are pending for another one with arguments of this size."""
        return not self.pending or (
            len(self.pending) < MAX_PENDING_CHECKS and self.pending_bytes + size <= MAX_PENDING_BYTES
        )

    def expect(self, number: int, pending: PendingRequest) -> None:
        """A check was sent with this message id."""
        if self.pending is None:
            self.pending = {}
        self.pending[number] = pending
        self.pending_bytes += pending.size

    def settle_result(self, message: messages.Result) -> PendingRequest | FaultReason:
        """The check that this result answers, or why it answers none."""
        pending = None if self.pending is None else self.pending.pop(message.message_id, None)
        if pending is not None:
            self.given_up = 0
            self.pending_bytes -= pending.size
            return pending
        if 0 < message.message_id < self._next_id:
            return f"message id {message.message_id} was answered before: a check is answered once"
        return f"message id {message.message_id} was never issued on this connection"

    def give_up(self) -> FaultReason:
        """Count a timeout that was long enough."""
        self.given_up += 1
        return f"{self.given_up} checks were not answered in time" if self.given_up >= MAX_GIVEN_UP else ""

    def count_report(self, message: Report) -> FaultReason:
        """Note a report's sequence number. An ack covers all reports up to its number, so the numbers must grow."""
        if message.sequence <= self.sequence:
            return f"report {message.sequence} was sent after report {self.sequence}: sequence numbers must grow"
        self.sequence = message.sequence
        return ""

"""One connection of an agent: what may be said on it now, and what was asked over it.

Lives here: `AgentConnection`, the session as Helen sees it, and the wish for a certificate. Never here: who may come
in, what a result means, or a socket. Invariants: a number is issued once on a connection and answered once; version 2
is never spoken to a peer that said version 1; after the end nothing is said and nothing is heard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, Message
from scale0.monitoring.helen.core.socket_events import AGENTS, ConnectionOpened
from scale0.monitoring.protocol.encoder import encode
from scale0.monitoring.protocol.messages import (
    MAX_INT,
    VERSION_1,
    VERSION_2,
    Enrol,
    Hello,
    Report,
    Result,
    ToAgent,
    ToHelen,
)
from scale0.monitoring.protocol.parser import Parser

if TYPE_CHECKING:
    from scale0.monitoring.helen.core.agents import Agent
    from scale0.monitoring.helen.core.pending_requests import PendingRequest

AWAITING_HELLO: Final = "greeting"
"""Nothing was said yet."""
SIGNING: Final = "signing"
"""It asked for a certificate."""
JOINING: Final = "held back"
"""Its hello was good, and other Helens are asked what they know of it."""
ACTIVE: Final = "talking"
"""It is an agent that was taken in."""
RELOADING: Final = "reloading"
"""It is too old, and was told to begin again."""
ENDED: Final = "ended"

MAX_PENDING_CHECKS: Final = 1_000
"""Checks on one connection without an answer; an agent runs them side by side and in a queue of its own."""
MAX_PENDING_BYTES: Final = 2 * 1024 * 1024
"""Of their args: an agent that has not read so much gets no more, or the door would take it for one that never reads.
"""
MAX_GIVEN_UP: Final = 100
"""So many in a row that had their time and no answer, with no other answer between them: the agent answers nothing."""
FAIR_SECONDS: Final = 10.0
"""What a check must be given at least before its silence speaks against the agent: an asker may be impatient, or mean
to have an agent of others thrown out."""

FaultReason = str
"""Why a connection must end; blank: it need not."""


class SignCertificate:
    """An Ask: have this enrolment judged and signed. The answer is the chain (PEM), or a Refusal."""

    __slots__ = ("body", "cn", "serial", "then")

    def __init__(self, body: bytes, cn: str | None, serial: str, then: Callable[[Any, Now, Effects], None]) -> None:
        self.body = body
        """JSON `token` and `csr`."""
        self.cn = cn
        """Of the certificate that it showed; None: it has none, so a token must speak for it."""
        self.serial = serial
        """Of the same, in hexadecimal; blank: there is none."""
        self.then = then


class AgentConnection:
    """A connection. It is also the peer that the runner sends to."""

    __slots__ = (
        *(
            "_next_id",
            "address",
            "agent",
            "pending",
            "pending_bytes",
            "bucket",
            "suspected_at",
            "given_up",
            "last_seen",
        ),
        *("identity", "issued", "parser", "protocol", "reports", "routing_id", "schedule", "sequence", "serial"),
        "stage",
    )

    door: Final = AGENTS

    def __init__(self, routing_id: bytes, opened: ConnectionOpened, now: Now) -> None:
        self.routing_id = routing_id
        self.identity = opened.name or None
        """The name in its certificate; None: the client showed no certificate."""
        self.serial = opened.serial
        self.issued = opened.issued
        self.address = opened.address
        self.parser = Parser(to_helen=True)
        self.stage = AWAITING_HELLO
        self.protocol = 0
        self.reports = False
        """It is taken in and speaks version 2."""
        self.agent: Agent | None = None
        self.last_seen = now.mono
        self.suspected_at: float | None = None
        """When it was first found silent for too long: perhaps it was we who slept."""
        self.bucket = 0
        """Of its timer."""
        self.sequence = 0
        """Of its last report."""
        self.pending: dict[int, PendingRequest] | None = None
        """Checks that it has not answered, those that nobody waits for included."""
        self.pending_bytes = 0
        """Of their args."""
        self.given_up = 0
        """Checks in a row that were not answered in time."""
        self.schedule: bytes | None = None
        """The one that it was sent last."""
        self._next_id = 1

    @property
    def name(self) -> str:
        """For events and views."""
        return self.identity or ""

    def pack(self, messages: Sequence[Message]) -> list[list[bytes]]:
        """One piece of bytes for all that a turn says to it."""
        return [[b"".join([part for message in messages for part in message])]]

    def send(self, message: ToAgent, effects: Effects) -> None:
        """Send a word at the end of the turn. ValueError: it cannot be written."""
        effects.send(self, [encode(message)])

    def refuses(self, message: ToHelen) -> FaultReason:
        """Why this word may not come now; blank: it may."""
        kind, stage = type(message), self.stage
        if self.identity is None and (kind is not Enrol or stage is not AWAITING_HELLO):
            return "without a certificate there is nothing but one enrol"
        if stage is AWAITING_HELLO:
            return "" if kind is Hello or kind is Enrol else "nothing comes before hello"
        if stage is SIGNING:
            return "nothing follows enrol"
        if kind is Hello:
            return "a second hello"
        if kind is Enrol:
            return "enrol comes in place of hello"
        if stage is JOINING:
            return "nothing comes before accepted"
        if stage is ACTIVE and self.protocol < VERSION_2 and kind is not Result:
            return f"{kind.__name__.lower()} is not of version {VERSION_1}"
        return ""

    def accept(self, agent: Agent, protocol: int) -> None:
        """Its hello was good."""
        self.stage, self.agent = ACTIVE, agent
        self.protocol = min(protocol, VERSION_2)
        self.reports = self.protocol >= VERSION_2

    def end(self) -> None:
        """Nothing more."""
        self.stage, self.reports, self.schedule = ENDED, False, None

    def issue(self) -> int | None:
        """A number for something that Helen sends; None: they are used up, and the connection with them."""
        number = self._next_id
        if number > MAX_INT:
            return None
        self._next_id = number + 1
        return number

    def has_room(self, size: int) -> bool:
        """False: so many checks are not answered that it does not get another, with args of so many bytes."""
        return not self.pending or (
            len(self.pending) < MAX_PENDING_CHECKS and self.pending_bytes + size <= MAX_PENDING_BYTES
        )

    def expect(self, number: int, pending: PendingRequest) -> None:
        """A check was sent under this number."""
        if self.pending is None:
            self.pending = {}
        self.pending[number] = pending
        self.pending_bytes += pending.size

    def settle_result(self, message: Result) -> PendingRequest | FaultReason:
        """What this result answers, once; or why it answers nothing."""
        pending = None if self.pending is None else self.pending.pop(message.message_id, None)
        if pending is not None:
            self.given_up = 0
            self.pending_bytes -= pending.size
            return pending
        if 0 < message.message_id < self._next_id:
            return f"message id {message.message_id} is not open: a check is answered once"
        return f"message id {message.message_id} was never issued here"

    def give_up(self) -> FaultReason:
        """Whoever asked waits no more for one of its answers, and gave it time enough."""
        self.given_up += 1
        return f"{self.given_up} checks were not answered in time" if self.given_up >= MAX_GIVEN_UP else ""

    def count_report(self, message: Report) -> FaultReason:
        """Take the number of a report: an ack speaks of all up to it, so it must grow."""
        if message.sequence <= self.sequence:
            return f"report {message.sequence} comes after {self.sequence}"
        self.sequence = message.sequence
        return ""

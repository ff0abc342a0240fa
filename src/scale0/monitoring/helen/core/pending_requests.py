"""Requests of network clients that wait for an answer, and the asks to forward one to another Helen.

Each request is answered exactly once: with its result, with an error, or at its deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, Message
from scale0.kernel.errors import Refusal
from scale0.kernel.timers import TimerWheel
from scale0.monitoring.helen.core.socket_events import NETWORK, RequestError, RequestReply

if TYPE_CHECKING:
    from scale0.monitoring.helen.core.agent_connection import AgentConnection

MAX_OPEN: Final = 10_000
"""Pending requests, over all agents."""
PATIENT_CODES: Final = frozenset({codes.NO_SUCH_SERVICE, codes.BACKEND_DIED, codes.NOT_SERVING, codes.NO_ANSWER})
"""What a Helen without the agent may answer; 504 is among them, so that one slow Helen does not hide the others."""


class ForwardRequest:
    """An ask: send a request to the network. The answer is the reply's body (bytes), or a Refusal."""

    __slots__ = ("body", "service", "then", "timeout")

    def __init__(self, service: str, body: bytes, timeout: float, then: Callable[[Any, Now, Effects], None]) -> None:
        self.service = service
        self.body = body
        self.timeout = timeout
        self.then = then


class Requester:
    """A request or a task of the network: a peer that is answered once."""

    __slots__ = ("routing_id",)

    socket: Final = NETWORK

    def __init__(self, routing_id: bytes) -> None:
        self.routing_id = routing_id

    def pack(self, messages: Sequence[Message]) -> list[list[Any]]:
        return [list(message) for message in messages]

    def refuse(self, code: int, message: str, effects: Effects) -> None:
        """Send an error; it depends on nothing in the store."""
        effects.send(self, (RequestError(code, message),))

    def reply(self, body: bytes, effects: Effects) -> None:
        """Send an answer that depends on nothing in the store."""
        effects.send(self, (RequestReply(body),))

    def promise(self, body: bytes, effects: Effects) -> None:
        """Send an answer once this turn is stored."""
        effects.promise(self, (RequestReply(body),))


class PendingRequest:
    """A request that waits for an agent's result (`connection`) or for other Helens (`elsewhere`)."""

    __slots__ = (
        *("bucket", "check", "connection", "elsewhere", "ended", "enough_time", "ref", "refusal", "requester"),
        *("scheduled", "size"),
    )

    def __init__(self, requester: Requester, check: str, ref: str, scheduled: bool) -> None:
        self.requester = requester
        self.check = check
        """The name that its result is recorded under."""
        self.ref = ref
        self.scheduled = scheduled
        """It runs a definition like the schedule does, and so counts for its state."""
        self.connection: AgentConnection | None = None
        self.elsewhere = 0
        """Other Helens that have not answered."""
        self.refusal: Refusal | None = None
        """Their best answer so far."""
        self.ended = False
        self.enough_time = False
        """Its timeout was long enough to count against the agent."""
        self.size = 0
        """The bytes of its arguments."""
        self.bucket = 0


class PendingRequests:
    def __init__(self) -> None:
        self._wheel: TimerWheel[PendingRequest] = TimerWheel()
        self._all: dict[PendingRequest, None] = {}
        self.on_given_up: Callable[[PendingRequest, Now, Effects], None] = lambda *_: None
        """Called for a request that timed out while an agent may still answer."""

    @property
    def count(self) -> int:
        return len(self._all)

    @property
    def is_full(self) -> bool:
        return len(self._all) >= MAX_OPEN

    def add(self, pending: PendingRequest, deadline: float) -> None:
        pending.bucket = self._wheel.add(pending, deadline)
        self._all[pending] = None

    def close(self, pending: PendingRequest) -> None:
        if not pending.ended:
            pending.ended = True
            self._wheel.remove(pending, pending.bucket)
            self._all.pop(pending, None)

    def fail(self, pending: PendingRequest, code: int, message: str, effects: Effects) -> None:
        if not pending.ended:
            self.close(pending)
            pending.requester.refuse(code, message, effects)

    def fail_all(self, code: int, message: str, effects: Effects) -> None:
        for pending in list(self._all):
            self.fail(pending, code, message, effects)

    def on_replica_answer(self, pending: PendingRequest, value: Any, _now: Now, effects: Effects) -> None:
        """Another Helen answered: the first result counts, or the last error."""
        if pending.ended:
            return
        pending.elsewhere -= 1
        if isinstance(value, bytes):
            self.close(pending)
            pending.requester.reply(value, effects)
            return
        refusal = value if isinstance(value, Refusal) else Refusal(codes.BACKEND_DIED, "another Helen failed")
        if pending.refusal is None or pending.refusal.code == codes.NO_SUCH_SERVICE:
            pending.refusal = refusal
        if refusal.code not in PATIENT_CODES:
            self.fail(pending, refusal.code, refusal.message, effects)
        elif pending.elsewhere <= 0:
            self.fail(pending, pending.refusal.code, pending.refusal.message, effects)

    def tick(self, now: Now, effects: Effects) -> None:
        for pending in self._wheel.expire(now.mono):
            if not pending.ended:
                self.fail(pending, codes.NO_ANSWER, "no result in time", effects)
                self.on_given_up(pending, now, effects)

    def deadline(self) -> float | None:
        return self._wheel.deadline()

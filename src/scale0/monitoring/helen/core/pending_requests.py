"""Checks and other things that somebody on the network asked of Helen, until they are answered.

Lives here: `Requester`, who waits; `PendingRequest`, one open question; `PendingRequests`, all of them with their
deadlines; and the wish to ask another Helen. Never here: what a service is (`helen_services`), or a result's meaning.
Invariant: every question is answered exactly once: by its result, by an error, or at its deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, Message
from scale0.kernel.errors import Refusal
from scale0.kernel.timers import TimerWheel

if TYPE_CHECKING:
    from scale0.monitoring.helen.core.agent_connection import AgentConnection

NETWORK: Final = "network"
"""The door that requests of the Scale0 network come through."""

MAX_OPEN: Final = 10_000
"""Questions that wait, over all agents."""
PATIENT_CODES: Final = frozenset({codes.NO_SUCH_SERVICE, codes.BACKEND_DIED, codes.NOT_SERVING, codes.NO_ANSWER})
"""What another Helen may answer without having the agent; 504 among them: one that is slow must not hide the rest."""


class ForwardRequest:
    """An Ask: put a request to the network. The answer is the reply's body (bytes), or a Refusal."""

    __slots__ = ("body", "service", "then", "timeout")

    def __init__(self, service: str, body: bytes, timeout: float, then: Callable[[Any, Now, Effects], None]) -> None:
        self.service = service
        self.body = body
        self.timeout = timeout
        self.then = then


class Requester:
    """A request or a task of the network: a peer that is answered once."""

    __slots__ = ("routing_id",)

    door: Final = NETWORK

    def __init__(self, routing_id: bytes) -> None:
        self.routing_id = routing_id

    def pack(self, messages: Sequence[Message]) -> list[list[bytes]]:
        """As they are: this door takes frames."""
        return [list(message) for message in messages]

    def refuse(self, code: int, message: str, step: Effects) -> None:
        """It cannot be done; that speaks of nothing on disk."""
        step.send(self, [b"error", b"%d" % code, message.encode()])

    def reply(self, body: bytes, step: Effects) -> None:
        """An answer that speaks of nothing on disk."""
        step.send(self, [b"reply", body])

    def promise(self, body: bytes, step: Effects) -> None:
        """An answer that is said once this turn is on disk."""
        step.promise(self, [b"reply", body])


class PendingRequest:
    """One question that waits: for an agent's result (`line`), or for other Helens (`elsewhere`)."""

    __slots__ = (
        *("asker", "bucket", "check", "elsewhere", "ended", "fair", "line", "ref", "refusal", "scheduled", "size"),
    )

    def __init__(self, asker: Requester, check: str, ref: str, scheduled: bool) -> None:
        self.asker = asker
        self.check = check
        """The name that its result is recorded under."""
        self.ref = ref
        self.scheduled = scheduled
        """It runs a definition as the schedule does, and so counts for its state."""
        self.line: AgentConnection | None = None
        self.elsewhere = 0
        """Other Helens that have not answered."""
        self.refusal: Refusal | None = None
        """What they answered so far."""
        self.ended = False
        self.fair = False
        """It gave the agent time enough: no answer speaks against the agent."""
        self.size = 0
        """Bytes of its args."""
        self.bucket = 0


class PendingRequests:
    """All open questions."""

    __slots__ = ("_all", "_wheel", "on_given_up")

    def __init__(self) -> None:
        self._wheel: TimerWheel[PendingRequest] = TimerWheel()
        self._all: dict[PendingRequest, None] = {}
        self.on_given_up: Callable[[PendingRequest, Now, Effects], None] = lambda *_: None
        """Told of a question that its asker does not wait for any more, while an agent still may answer."""

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._all)

    @property
    def is_full(self) -> bool:
        """No more can be taken."""
        return len(self._all) >= MAX_OPEN

    def add(self, asked: PendingRequest, deadline: float) -> None:
        """Wait for its answer until then."""
        asked.bucket = self._wheel.add(asked, deadline)
        self._all[asked] = None

    def close(self, asked: PendingRequest) -> None:
        """It is answered."""
        if not asked.ended:
            asked.ended = True
            self._wheel.remove(asked, asked.bucket)
            self._all.pop(asked, None)

    def fail(self, asked: PendingRequest, code: int, message: str, step: Effects) -> None:
        """Answer with an error."""
        if not asked.ended:
            self.close(asked)
            asked.asker.refuse(code, message, step)

    def fail_all(self, code: int, message: str, step: Effects) -> None:
        """Answer everybody with an error."""
        for asked in list(self._all):
            self.fail(asked, code, message, step)

    def hear_elsewhere(self, asked: PendingRequest, value: Any, step: Effects) -> None:
        """Another Helen answered: the first who has the agent counts, and the last who has not."""
        if asked.ended:
            return
        asked.elsewhere -= 1
        if isinstance(value, bytes):
            self.close(asked)
            asked.asker.reply(value, step)
            return
        said = value if isinstance(value, Refusal) else Refusal(codes.BACKEND_DIED, "another Helen failed")
        if asked.refusal is None or asked.refusal.code == codes.NO_SUCH_SERVICE:
            asked.refusal = said
        if said.code not in PATIENT_CODES:
            self.fail(asked, said.code, said.message, step)
        elif asked.elsewhere <= 0:
            self.fail(asked, asked.refusal.code, asked.refusal.message, step)

    def tick(self, now: Now, step: Effects) -> None:
        """Those whose time is over."""
        for asked in self._wheel.expire(now.mono):
            if not asked.ended:
                self.fail(asked, codes.NO_ANSWER, "no result in time", step)
                self.on_given_up(asked, now, step)

    def deadline(self) -> float | None:
        """When the next one's time is over."""
        return self._wheel.deadline()

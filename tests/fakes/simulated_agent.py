"""An agent without sockets: the real session, and a clock and a Helen that the test plays."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from scale0.kernel.clock import Now
from scale0.monitoring.agent.core.effects import Address, AgentEffects, SessionAccepted
from scale0.monitoring.agent.core.session import ACCEPTED, DOWN, OPENING, AgentSession
from scale0.monitoring.protocol import messages
from scale0.monitoring.protocol.encoder import encode
from scale0.monitoring.protocol.messages import AgentMessage
from scale0.monitoring.protocol.parser import ParseFault, Parser

HELEN: Final = ("helen.example", 4166)
OTHER_HELEN: Final = ("helen-2.example", 4166)
WALL: Final = 1_700_000_000.0


class SimulatedAgent:
    """A session, and its connection."""

    def __init__(self, *addresses: Address, seed: int | str = 1) -> None:
        self.session = AgentSession(addresses or (HELEN,), "1.0", random.Random(seed))
        self.mono = 1_000.0
        self.opens: list[tuple[float, Address]] = []
        self.is_open = False
        """True from the request for a connection to its end."""
        self.closes = 0
        self.updates: list[Any] = []
        self.sent: list[Any] = []
        """On the current connection."""
        self._parser = Parser(to_helen=True)
        self.step("start")

    @property
    def now(self) -> Now:
        return Now(self.mono, WALL)

    def step(self, what: str, *values: Any) -> list[Any]:
        """One input of the session; the updates that it made."""
        return self.perform(partial(getattr(self.session, what), *values))

    def perform(self, act: Callable[[Now, AgentEffects], Any]) -> list[Any]:
        """Something that has effects, and the effects."""
        out = AgentEffects()
        act(self.now, out)
        self._update(out)
        if out.close:
            self._close()
        if out.open is not None:
            assert not out.sends
            self._open(out.open)
        for data in out.sends:
            self._send(data)
        return out.updates

    def _update(self, out: AgentEffects) -> None:
        self.updates += out.updates

    def _close(self) -> None:
        assert self.is_open
        self.is_open = False
        self.closes += 1

    def _open(self, address: Address) -> None:
        assert not self.is_open
        self.is_open = True
        self.opens.append((self.mono, address))
        self.sent = []
        self._parser = Parser(to_helen=True)

    def _send(self, data: bytes) -> None:
        assert self.is_open
        sent = self._parser.feed(data)
        assert not any(isinstance(message, ParseFault) for message in sent)
        self.sent += sent

    def pass_time(self, seconds: float) -> None:
        """With a tick at each deadline."""
        until = self.mono + seconds
        for _ in range(100_000):
            deadline = self.session.deadline()
            if deadline is None or deadline > until:
                self.mono = until
                return
            self.mono = max(self.mono, deadline)
            self.step("tick")
        raise AssertionError("a deadline that never moves")

    def open_next(self) -> None:
        """Up to the next request for a connection."""
        deadline = self.session.deadline()
        assert self.session.state == DOWN
        assert deadline is not None
        self.pass_time(deadline - self.mono)
        self.mono = max(self.mono, deadline)  # the sum above may be rounded
        self.step("tick")
        assert self.session.state == OPENING

    def connect(self) -> None:
        """Up to the answer to hello."""
        if self.session.state == DOWN:
            self.open_next()
        self.step("opened")

    def receive(self, *received: AgentMessage) -> list[Any]:
        """Messages of Helen, in one piece."""
        return self.step("received", b"".join(map(encode, received)))

    def accept(self, heartbeat_seconds: int = 30) -> None:
        self.connect()
        assert SessionAccepted(heartbeat_seconds) in self.receive(messages.Accepted(heartbeat_seconds))
        assert self.session.state == ACCEPTED

    def lose_connection(self, reason: str = "gone") -> list[Any]:
        """The session closes it, whether or not there is something left of it: that is not counted."""
        assert self.is_open
        updates = self.step("lost", reason)
        assert not self.is_open
        self.closes -= 1
        return updates

"""Drives an agent's session in a test: the test moves the clock and plays Helen."""

from __future__ import annotations

import random
from typing import Any, Final

from scale0.kernel.clock import Now
from scale0.monitoring.agent.core.effects import Address, AgentEffects, SessionAccepted
from scale0.monitoring.agent.core.session import ACCEPTED, DOWN, OPENING, AgentSession
from scale0.monitoring.protocol import messages
from scale0.monitoring.protocol.encoder import encode
from scale0.monitoring.protocol.messages import AgentMessage
from scale0.monitoring.protocol.parser import ParseFault, Parser

HERE: Final = ("helen.example", 4166)
THERE: Final = ("helen-2.example", 4166)
WALL: Final = 1_700_000_000.0


class Story:
    """A session, a clock that the test moves, and a connection to a Helen that the test plays."""

    def __init__(self, *places: Address, seed: int = 1) -> None:
        self.session = AgentSession(places or (HERE,), "1.0", random.Random(seed))
        self.mono = 1_000.0
        self.opens: list[tuple[float, Address]] = []
        self.open = False
        """True from the wish for a connection to its end."""
        self.closes = 0
        self.updates: list[Any] = []
        self.heard: list[Any] = []
        """What Helen heard on the connection that is."""
        self._parser = Parser(to_helen=True)
        self.does("start")

    def does(self, what: str, *values: Any) -> list[Any]:
        """One input; the news that it made."""
        out = AgentEffects()
        getattr(self.session, what)(*values, Now(self.mono, WALL), out)
        if out.close:
            assert self.open
            self.open = False
            self.closes += 1
        if out.open is not None:
            assert not self.open
            assert not out.sends
            self.open = True
            self.opens.append((self.mono, out.open))
            self.heard = []
            self._parser = Parser(to_helen=True)
        for data in out.sends:
            assert self.open
            words_heard = self._parser.feed(data)
            assert not any(isinstance(word, ParseFault) for word in words_heard)
            self.heard += words_heard
        self.updates += out.updates
        return out.updates

    def passes(self, seconds: float) -> None:
        """Time as an agent lives it: a tick at each deadline."""
        until = self.mono + seconds
        for _ in range(100_000):
            deadline = self.session.deadline()
            if deadline is None or deadline > until:
                self.mono = until
                return
            self.mono = max(self.mono, deadline)
            self.does("tick")
        raise AssertionError("a deadline that never moves")

    def opens_next(self) -> None:
        """Up to the next wish for a connection."""
        deadline = self.session.deadline()
        assert self.session.state == DOWN
        assert deadline is not None
        self.passes(deadline - self.mono)
        self.mono = max(self.mono, deadline)  # the sum above may be rounded
        self.does("tick")
        assert self.session.state == OPENING

    def connects(self) -> None:
        """Up to the answer to hello."""
        if self.session.state == DOWN:
            self.opens_next()
        self.does("opened")

    def says(self, *said: AgentMessage) -> list[Any]:
        """Helen says this, in one piece."""
        return self.does("received", b"".join(map(encode, said)))

    def is_accepted(self, heartbeat_seconds: int = 30) -> None:
        self.connects()
        assert SessionAccepted(heartbeat_seconds) in self.says(messages.Accepted(heartbeat_seconds))
        assert self.session.state == ACCEPTED

    def is_lost(self, reason: str = "gone") -> list[Any]:
        """The connection breaks."""
        assert self.open
        self.open = False
        out = AgentEffects()
        self.session.lost(reason, Now(self.mono, WALL), out)
        # The session says close, whether or not there is something left of the connection.
        assert out.close
        assert not out.sends
        assert out.open is None
        self.updates += out.updates
        return out.updates


def story(*places: Address, seed: int = 1) -> Story:
    """One that is accepted."""
    made = Story(*places, seed=seed)
    made.is_accepted()
    return made

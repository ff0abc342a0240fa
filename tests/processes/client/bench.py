"""A session without a socket: the test moves its clock and sends what a broker would.

As a socket does, it closes, opens and sends, in this order.
"""

from __future__ import annotations

from typing import Any, TypeVar

from scale0.kernel.clock import Now
from scale0.transport.core.backend_session import BackendSession
from scale0.transport.core.codec import encode
from scale0.transport.core.frontend_session import FrontendSession
from scale0.transport.core.session import SessionEffects

WALL = 1_900_000_000.0
HASH = "a" * 64

News = TypeVar("News")


class Bench:
    """One session, its clock, what it sent and opened, and its notifications."""

    def __init__(self, session: FrontendSession | BackendSession) -> None:
        self.session = session
        self.mono = 100.0
        self.opened: list[str] = []
        self.open_now = False
        self.said: list[tuple[Any, ...]] = []
        self.news: list[Any] = []

    @property
    def now(self) -> Now:
        return Now(self.mono, WALL + self.mono)

    @property
    def words(self) -> list[str]:
        """The commands that were sent."""
        return [message[0] for message in self.said]

    def act(self, name: str, *args: Any) -> None:
        out = SessionEffects()
        getattr(self.session, name)(*args, self.now, out)
        self._perform(out)

    def hear(self, command: str, *bodies: bytes, **said: Any) -> None:
        """The broker says something."""
        out = SessionEffects()
        self.session.receive(encode((command, said, *bodies)), self.now, out)
        self._perform(out)

    def ack(self, version: int = 1, digest: str = HASH, identity: str = "me", **more: object) -> None:
        self.hear("CONFIGACK", identity=identity, config_version=version, config_hash=digest, **more)

    def ready_ok(self, interval: float = 1.0) -> None:
        self.hear("READYOK", identity="me", heartbeat_interval=interval, time=WALL, config_version=1)

    def pong(self, boot: str) -> None:
        self.hear("REPLY", b'{"boot": "%s"}' % boot.encode(), id="~", service="scale0.ping")

    def pass_time(self, seconds: float) -> None:
        """Time passes, and each deadline in it is handled when it comes."""
        end = self.mono + seconds
        for _ in range(10_000):
            due = self.session.deadline()
            if due is None or due > end:
                break
            self.mono = max(self.mono, due)
            self.act("tick")
        else:
            raise AssertionError("deadlines do not pass")
        self.mono = end

    def reopen(self) -> None:
        """Time passes until it connects again."""
        count = len(self.opened)
        while len(self.opened) == count:
            due = self.session.deadline()
            assert due is not None, "it does not come back"
            self.mono = max(self.mono, due)
            self.act("tick")

    def take(self, kind: type[News]) -> list[News]:
        """The news of one kind since the last time."""
        found = [one for one in self.news if isinstance(one, kind)]
        self.news = [one for one in self.news if not isinstance(one, kind)]
        return found

    def hush(self) -> list[tuple[Any, ...]]:
        """What was sent since the last call."""
        said, self.said = self.said, []
        return said

    def _perform(self, out: SessionEffects) -> None:
        if out.close:
            if out.send_disconnect and self.open_now:
                self.said.append(("DISCONNECT", {}))
            self.open_now = False
            if out.open is None:
                self.session.unsent(out.sends)
                out.sends.clear()
        if out.open is not None:
            self.opened.append(out.open)
            self.open_now = True
        if not self.open_now:
            self.session.unsent(out.sends)
            out.sends.clear()
        self.said += out.sends  # type: ignore[arg-type]
        self.news += out.notifications

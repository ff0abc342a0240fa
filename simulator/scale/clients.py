"""Clients of a large simulated network: many thousands of the real sessions. Invariant: every call ends exactly once,
with a reply or with a code."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from scale0.kernel.clock import Now
from scale0.transport.core.backend_session import BackendSession, RequestReceived
from scale0.transport.core.calls import CallAnswered, CallFailed
from scale0.transport.core.frontend_session import FrontendSession
from scale0.transport.core.session import UP, Connected, ConnectionLost, SessionEffects, SessionEnded
from simulator.network.client_connection import Connect, SimLink
from simulator.network.connections import Route
from simulator.virtual_time import Agenda

WORK_SECONDS: Final = 0.01
"""How long a worker takes."""
CALL_SECONDS: Final = 10.0
"""Interval between the calls of a frontend."""
CALL_TIMEOUT_SECONDS: Final = 30.0


class Ledger:
    """The outcomes of all calls."""

    def __init__(self) -> None:
        self.made = 0
        self.answered = 0
        self.open = 0
        self.failed: Counter[int] = Counter()


class SilentLinkObserver:
    """An observer that does nothing."""

    def changed(self, link: SimLink) -> None: ...

    def lost(self, name: str) -> None: ...


class ScaleClient:
    def __init__(self, name: str, group: str, home: str, session: Any) -> None:
        self.name = name
        self.group = group
        self.home = home
        self.session = session
        self.at = ""
        """The broker that has accepted it; empty: none."""
        self.served_at = 0.0
        """When it was last accepted."""
        self.link: SimLink

    @property
    def config_version(self) -> int:
        return self.session.connection.config_version or 0

    @property
    def is_up(self) -> bool:
        return bool(self.session.connection.state == UP)


class Crowd:
    def __init__(self, agenda: Agenda, rng: random.Random, connect: Connect) -> None:
        self._agenda = agenda
        self._rng = rng
        self._connect = connect
        self._observer = SilentLinkObserver()
        self.all: list[ScaleClient] = []
        self.ledger = Ledger()
        self.calling = True
        self.on_up: Callable[[ScaleClient], None] = lambda _: None
        """Called with every client that was accepted."""

    def worker(self, name: str, group: str, home: str, endpoint: str, service: str) -> ScaleClient:
        session = BackendSession([endpoint], name, [service], 2, self._rng)
        return self._client(name, group, home, session, self._on_worker)

    def caller(self, name: str, group: str, home: str, endpoint: str, service: str) -> ScaleClient:
        session = FrontendSession([endpoint], name, self._rng)
        client = self._client(name, group, home, session, self._on_caller)
        self._agenda.after(CALL_SECONDS * (1 + self._rng.random()), self._call, client, service)
        return client

    def _client(self, name: str, group: str, home: str, session: Any, on_notification: Any) -> ScaleClient:
        client = ScaleClient(name, group, home, session)
        route = Route(name, self._rng)
        client.link = SimLink(
            self._agenda, route, session, self._connect, partial(on_notification, client), self._observer, 0.0
        )
        self.all.append(client)
        return client

    def start(self, client: ScaleClient) -> None:
        client.link.act(client.session.start)

    def _receive(self, client: ScaleClient, item: Any) -> None:
        match item:
            case Connected():
                assert client.link.wire is not None
                client.at, client.served_at = client.link.wire.broker.name, self._agenda.now
                client.session.connection.config = b""  # not used here, and there are many clients
                self.on_up(client)
            case ConnectionLost() | SessionEnded():
                client.at = ""

    def _on_worker(self, client: ScaleClient, notifications: list[Any]) -> None:
        for item in notifications:
            if isinstance(item, RequestReceived):
                client.link.later(WORK_SECONDS, partial(reply, client.session, item))
            else:
                self._receive(client, item)

    def _on_caller(self, client: ScaleClient, notifications: list[Any]) -> None:
        ledger = self.ledger
        for item in notifications:
            match item:
                case CallAnswered():
                    ledger.answered += 1
                    ledger.open -= 1
                case CallFailed():
                    ledger.failed[item.code] += 1
                    ledger.open -= 1
                case _:
                    self._receive(client, item)

    def _call(self, client: ScaleClient, service: str) -> None:
        if not self.calling:
            return
        self._agenda.after(CALL_SECONDS * (0.5 + self._rng.random()), self._call, client, service)
        self.ledger.made += 1
        self.ledger.open += 1
        request = client.session.request
        client.link.act(lambda now, out: request(service, [b"?"], CALL_TIMEOUT_SECONDS, True, None, now, out))


def reply(session: BackendSession, work: RequestReceived, now: Now, out: SessionEffects) -> None:
    session.reply(work.id, [b"!"], now, out)

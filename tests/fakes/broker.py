"""A broker without sockets: the real machine, a clock that the test moves, and a store whose commits it can hold back.

The order of a turn is that of production (`kernel.turn`). The name of a client begins with that of its socket
(`frontend-1`), and is its routing id. What the broker sends is packed as the runner packs it, and kept in `sent` until
a test takes it.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import deque
from collections.abc import Iterator
from typing import Any

from scale0.broker.admin.access import digest_of
from scale0.broker.admin.commands import ReadHistory
from scale0.broker.core.broker import Broker
from scale0.broker.core.connections import Connection
from scale0.broker.core.keys import Keys
from scale0.broker.main.composition import compose_broker, start_broker
from scale0.config import BrokerConfig, Endpoints
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, StoreQuery
from scale0.kernel.machine import Sent
from scale0.storage.interface import StoredJournal
from scale0.storage.memory.store import MemoryStore
from simulator.fake_postgres.store import FakeDatabase, FakePostgresStore
from tests.fakes.messages import MAGIC, Message, decode
from tests.fakes.turns import InstantHost

TOKEN = "s0_test"
WALL = 1_900_000_000.0
METHODS = "zerotask.broker."
RESTART_SECONDS = 0.25
"""Between the end of a broker and its next start."""


class FakeBroker:
    """One broker over all its lives."""

    shared_store = False
    """A new broker gets a store that it could share, in place of one of its own."""

    def __init__(
        self,
        store: Any = None,
        rng: random.Random | None = None,
        keys: Keys | None = None,
        blocked: bool = False,
        endpoints: Endpoints | None = None,
        **config: Any,
    ) -> None:
        """`keys`: as with CURVE; `blocked`: no commit returns, from the first one on."""
        self.config = BrokerConfig(**{"identity": "broker-1", **config})
        self.endpoints = endpoints or Endpoints()
        self.keys = keys
        self.rng = rng or random.Random(7)
        self.mono, self.wall = 100.0, WALL
        self.host = InstantHost(lambda: self.now, self._send, self._disconnect, (StoreQuery, ReadHistory))
        self.host.blocked = blocked
        self.events = self.host.events
        self.sent: deque[tuple[str, Message]] = deque()
        """Messages that nobody has taken yet, and to whom they were sent."""
        self.promised: list[tuple[str, str]] = []
        """Client and command of what was sent only after a commit."""
        self.disconnected: set[str] = set()
        """Connections that are cut: what is sent to them comes back."""
        self._ids = itertools.count(1)
        self.start(store or self._new_store())

    def start(self, store: Any) -> None:
        """The broker starts on this store."""
        opened = store.open()
        boot = max(int(self.now.wall * 1_000_000), opened.last_boot_us + 1)
        self.machine: Broker = compose_broker(
            self.config, self.endpoints, opened, boot, self.rng, digest_of(TOKEN), self.keys
        )
        journal = StoredJournal(self.config.identity, boot, opened)
        self.host.begin(self.machine, store, journal)
        effects = Effects()
        start_broker(self.machine, opened, self.now, effects)
        self.host.finish(effects)

    def _new_store(self) -> Any:
        if not self.shared_store:
            return MemoryStore()
        return FakePostgresStore(FakeDatabase(lambda: int(self.mono * 1_000_000)), self.config.identity)

    def crash(self, stored: bool = False, seconds: float = RESTART_SECONDS, wall: float | None = None) -> None:
        """kill -9 and a new start; `stored`: the commit in flight had reached the disk; `wall`: the calendar then."""
        if stored:
            self.host.store_one()
        self.sent.clear()
        self.events.clear()
        self.disconnected.clear()
        self._move(self.mono + seconds)
        self.wall = self.wall if wall is None else wall
        self.host.blocked = False
        self.start(self.store.crash())

    @property
    def now(self) -> Now:
        return Now(self.mono, self.wall)

    @property
    def store(self) -> Any:
        return self.host.store

    def hold(self) -> None:
        """From now on commits do not return."""
        self.host.blocked = True

    def let_go(self) -> None:
        """All commits return."""
        self.host.blocked = False
        self.host.go_on()

    # What clients send and receive.

    def socket_of(self, who: str) -> str:
        return who.partition("-")[0]

    def connection(self, who: str) -> Connection:
        found = self.machine.connections.find(self.socket_of(who), who.encode())
        assert found is not None
        return found

    def send(self, who: str, command: str, options: dict[str, Any] | None = None, *bodies: Any) -> None:
        """One message of SCALE0/1; bodies that are not bytes are sent as JSON."""
        packed = [body if isinstance(body, bytes) else json.dumps(body).encode() for body in bodies]
        self.send_frames(who, [MAGIC, command.encode(), json.dumps(options or {}).encode(), *packed])

    def ask(self, who: str, method: str, *params: Any) -> int:
        """One request of JSON-RPC; its id."""
        number = next(self._ids)
        request = {"jsonrpc": "2.0", "method": METHODS + method, "params": params, "id": number}
        self.send_frames(who, [json.dumps(request).encode()])
        return number

    def send_frames(self, who: str, *messages: list[bytes], socket: str = "") -> None:
        """Messages that arrive in one turn."""
        effects = Effects()
        for frames in messages:
            self.machine.receive(socket or self.socket_of(who), who.encode(), list(frames), self.now, effects)
        self.host.finish(effects)

    def break_connection(self, who: str, *unsent: Any) -> None:
        """The socket says that somebody's connection is gone, and what could not be sent."""
        effects = Effects()
        self.machine.undelivered(self.connection(who), unsent, self.now, effects)
        self.host.finish(effects)

    def received(self, who: str, *commands: str) -> list[Message]:
        """What this client received since it last looked: all of it, or these commands."""
        found: list[Message] = []
        for _ in range(len(self.sent)):
            one, message = self.sent.popleft()
            if one == who and (not commands or message.command in commands):
                found.append(message)
            else:
                self.sent.append((one, message))
        return found

    def exchange(self, who: str, command: str, options: dict[str, Any] | None = None, *bodies: Any) -> list[Message]:
        """Sends one message; what the sender received since it last looked."""
        self.send(who, command, options, *bodies)
        return self.received(who)

    def join(self, who: str, *services: str, **options: Any) -> None:
        """CHECKCONFIG and READY; their answers are taken."""
        version = self.exchange(who, "CHECKCONFIG", {"identity": options.pop("identity", who)})[0].options
        ready = {"services": services, "config_version": version["config_version"], "time": self.now.wall, **options}
        self.send(who, "READY", ready)
        assert self.received(who, "READYOK"), self.sent

    def manage(self, command: str, **arguments: Any) -> Message:
        """A command of an administrator, and its answer."""
        request = {"command": command, "id": "m", "auth_token": TOKEN, **arguments}
        return self.exchange("frontend-admin", "MANAGEMENTREQ", request)[-1]

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    # Time.

    def turns(self, seconds: float) -> Iterator[None]:
        """Lets time pass; a pause after the turn at each deadline."""
        end = self.mono + seconds
        while (due := self.machine.deadline()) is not None and due <= end:
            self._move(max(due, self.mono))
            self.turn()
            yield
        self._move(end)

    def pass_time(self, seconds: float) -> None:
        for _ in self.turns(seconds):
            pass

    def sleep(self, seconds: float) -> None:
        """The process stands still: no turn until it is over."""
        self._move(self.mono + seconds)

    def turn(self) -> None:
        self.host.finish(Effects())

    def _move(self, mono: float) -> None:
        self.wall += mono - self.mono
        self.mono = mono

    # The host's ends.

    def _send(self, peer: Any, frames: list[bytes]) -> Sent:
        who = peer.routing_id.decode()
        if who in self.disconnected:
            return "gone"
        for message in decode(frames[1:] if frames[0] == b"" else frames):
            self.sent.append((who, message))
            if self.host.releasing:
                self.promised.append((who, message.command))
        return "sent"

    def _disconnect(self, endpoint: str) -> None: ...

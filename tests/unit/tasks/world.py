"""A broker without sockets, its disk included: commits that a test can hold back, crashes, and what comes of them.

Lives here: turns, time and a disk for tests of the queue. Never here: a decision of the broker's, or what should come
of it. Invariants: a promise is heard only after its commit; questions are read behind the writes decided before them;
one commit is in flight at a time, and what is decided meanwhile goes into the next; a crash leaves what was committed.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from scale0.broker.core.broker import Broker
from scale0.broker.main.composition import compose_broker, start_broker
from scale0.config import BrokerConfig, Endpoints
from scale0.history.events.journal import Journal
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, StoreQuery
from scale0.kernel.machine import Sent
from scale0.storage.memory.store import MemoryStore
from simulator.fake_postgres.store import FakeDatabase, FakePostgresStore
from tests.fakes.turns import InstantHost

STORES = ["own"]
"""Which store a new world gets: one of the broker's `own`, or one that is `shared`."""
MAGIC = b"SCALE0/1"
WALL = 1_900_000_000.0
BROKER = "zerotask.broker."
RESTART_SECONDS = 0.25
"""Between the end of a broker and its next start."""


class Heard(NamedTuple):
    """One message that a client got: a Scale0 command, or a document of JSON-RPC."""

    who: str
    command: str
    options: dict[str, Any]
    body: Any


class Batch(NamedTuple):
    """What one commit stores, and what follows."""

    writes: list[Any]
    releases: list[Callable[[], None]]
    questions: list[StoreQuery]


class Disk:
    """Commits in their order, one in flight: the twin of `kernel/edge/commits.py`."""

    def __init__(self, store: MemoryStore, hear: Callable[[list[tuple[StoreQuery, Any]]], None]) -> None:
        self.store = store
        self.held = False
        self._hear = hear
        self._next = Batch([], [], [])
        self.in_flight: Batch | None = None
        self._answers: deque[list[tuple[StoreQuery, Any]]] = deque()
        self._telling = False

    def add(self, writes: list[Any], release: Callable[[], None] | None) -> None:
        self._next.writes.extend(writes)
        if release is not None:
            self._next.releases.append(release)
        self.go_on()

    def ask(self, question: StoreQuery) -> None:
        self._next.questions.append(question)
        self.go_on()

    def go_on(self) -> None:
        """Start the next commit, and end it at once unless the disk is held; then tell what was read."""
        while self.in_flight is None and any(self._next):
            self.in_flight, self._next = self._next, Batch([], [], [])
            if self.held and (self.in_flight.writes or self.in_flight.questions):
                break
            self._end()
        while self._answers and not self._telling:
            self._telling = True
            self._hear(self._answers.popleft())
            self._telling = False

    def end_one(self) -> None:
        """The commit in flight is done; the next one begins."""
        if self.in_flight is not None:
            self._end()
        self.go_on()

    def _end(self) -> None:
        batch = self.in_flight
        assert batch is not None
        self.store_one()
        answers = [(question, self.store.read(question.ask)) for question in batch.questions]
        self.in_flight = None
        for release in batch.releases:
            release()
        if answers:
            self._answers.append(answers)

    def store_one(self) -> None:
        """It is on the disk, and nobody has heard of it."""
        if self.in_flight is not None and self.in_flight.writes:
            self.store.commit(self.in_flight.writes)


class World:
    """One broker over all its lives, its clock and its disk."""

    disk_class = Disk

    def __init__(self, seed: int = 7, store: Any = None, held: bool = False, **config: Any) -> None:
        """`held`: no commit returns, from the first one on."""
        self.config = BrokerConfig(**{"identity": "broker-1", **config})
        self._rng = random.Random(seed)
        self._ids = itertools.count(1)
        self.mono, self.wall = 100.0, WALL
        self.heard: deque[Heard] = deque()
        self.events: deque[Any] = deque()
        """What is decided to be recorded, in order."""
        self.gone: set[str] = set()
        """Connections that are cut: what is sent to them comes back."""
        self.lives = 0
        self._start(store or self._new_store(), held)

    def _start(self, store: MemoryStore, held: bool = False) -> None:
        self.lives += 1
        self.disk = self.disk_class(store, self._hear)
        self.disk.held = held
        opened = store.open()
        boot = max(int(self.wall * 1_000_000), opened.last_boot_us + 1)
        self.broker: Broker = compose_broker(self.config, Endpoints(), opened, boot, self._rng, None)
        self._journal = Journal(self.config.identity, boot, opened.next_seq, opened.last_time_us)
        self._host = DiskHost(self)
        self._host.begin(self.broker, store)
        effects = Effects()
        start_broker(self.broker, opened, self.now, effects)
        self._finish(effects)

    def _new_store(self) -> Any:
        """A store of its own, or one that it could share."""
        if STORES[0] == "own":
            return MemoryStore()
        return FakePostgresStore(FakeDatabase(lambda: int(self.mono * 1_000_000)), self.config.identity)

    @property
    def now(self) -> Now:
        return Now(self.mono, self.wall)

    @property
    def store(self) -> MemoryStore:
        return self.disk.store

    def crash(self, stored: bool = False, seconds: float = RESTART_SECONDS, wall: float | None = None) -> None:
        """kill -9 and a new start; `stored`: the commit in flight had reached the disk; `wall`: the calendar then."""
        if stored:
            self.disk.store_one()
        self.heard.clear()
        self.events.clear()
        self.gone.clear()
        self._move(self.mono + seconds)
        self.wall = self.wall if wall is None else wall
        self._start(self.store.crash())

    def hold(self) -> None:
        """From now on commits do not return."""
        self.disk.held = True

    def let_go(self) -> None:
        """All commits return."""
        self.disk.held = False
        self.disk.end_one()

    def say(self, who: str, command: str, options: dict[str, Any] | None = None, *bodies: Any) -> None:
        """One message of Scale0's own, its bodies in JSON; the name of a client begins with its socket's."""
        packed = [json.dumps(body).encode() for body in bodies]
        self.frames(who, [MAGIC, command.encode(), json.dumps(options or {}).encode(), *packed])

    def ask(self, who: str, method: str, *params: Any) -> int:
        """One request of JSON-RPC; its id."""
        number = next(self._ids)
        said = {"jsonrpc": "2.0", "method": BROKER + method, "params": params, "id": number}
        self.frames(who, [json.dumps(said).encode()])
        return number

    def frames(self, who: str, frames: list[bytes]) -> None:
        effects = Effects()
        self.broker.receive(who.partition("-")[0], who.encode(), frames, self.now, effects)
        self._finish(effects)

    def pass_time(self, seconds: float) -> Iterator[None]:
        """Let time pass; a pause after each turn."""
        end = self.mono + seconds
        while (due := self.broker.deadline()) is not None and due <= end:
            self._move(max(due, self.mono))
            self._finish(Effects())
            yield
        self._move(end)

    def _move(self, mono: float) -> None:
        self.wall += mono - self.mono
        self.mono = mono

    def _hear(self, answers: list[tuple[StoreQuery, Any]]) -> None:
        effects = Effects()
        for question, value in answers:
            self.broker.answer(question, value, self.now, effects)
        self._finish(effects)

    def _finish(self, effects: Effects) -> None:
        self._host.finish(effects)

    def _send(self, peer: Any, frames: list[bytes]) -> Sent:
        who = peer.routing_id.decode()
        if who in self.gone:
            return "gone"
        self.heard.extend(read(who, frames))
        return "sent"


class DiskHost(InstantHost):
    """A host whose commits and queries go through a Disk, which may hold them back."""

    def __init__(self, world: World) -> None:
        super().__init__(lambda: world.now, world._send)
        self._world = world

    def commit(self, writes: list[Any], events: list[Any], release: Callable[[], None] | None, now: Now) -> None:
        row = self._world._journal.append(events, now)
        if row is not None:
            self._world.events.extend(events)
            writes.append(row)
        if writes or release is not None:
            self._world.disk.add(writes, release)

    def ask(self, ask: Any) -> None:
        self._world.disk.ask(ask)


def read(who: str, frames: list[bytes]) -> Iterator[Heard]:
    """The messages in these frames."""
    if frames[0] != MAGIC:
        said = msgspec.json.decode(frames[0])
        for each in said if isinstance(said, list) else [said]:
            yield Heard(who, "rpc", {}, each)
    else:
        body = msgspec.json.decode(frames[3]) if len(frames) > 3 and frames[1].startswith(b"TASKS") else frames[3:]
        yield Heard(who, frames[1].decode(), msgspec.json.decode(frames[2] or b"{}"), body)

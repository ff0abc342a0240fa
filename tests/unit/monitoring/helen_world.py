"""A Helen without sockets: the real machine, a clock that tests move, and what agents and clients receive.

A turn is that of the runner: promises are delivered only after their commit, and all writes go to a store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from scale0.config.monitoring import CheckDefinition
from scale0.history.events.journal import Journal
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.machine import Sent
from scale0.monitoring.helen.core.check_rules import CompiledCheck
from scale0.monitoring.helen.core.evaluation import Evaluation
from scale0.monitoring.helen.core.helen import Helen
from scale0.monitoring.helen.core.socket_events import (
    BytesReceived,
    ConnectionClosed,
    ConnectionOpened,
    NetworkRequest,
    NetworkTask,
    RequestReply,
    read_config,
)
from scale0.monitoring.helen.core.state import HelenSettings
from scale0.monitoring.protocol.encoder import encode
from scale0.monitoring.protocol.messages import Accepted, Hello, Report, Schedule, ToHelen
from scale0.monitoring.protocol.parser import Parser
from scale0.storage.check_rows import AgentRow, PutAgent, PutSpool, ReadAgents, ReadSpools, SpoolRow
from scale0.storage.memory.store import MemoryStore
from tests.fakes.turns import InstantHost

WALL = 1_900_000_000.0


class FakeEvaluation:
    """Watch as Helen sees it, without any meaning: it keeps what it is given and says what it is told to say."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, Any]] = []
        self.labels: list[dict[str, str]] = []
        self.plans: dict[str, list[dict[str, Any]]] = {}
        """By the label `role`; blank: all others."""
        self.parts: list[Any] = []
        self.forgotten: list[str] = []
        self.configured_at_all = True
        self.fails_at = ""
        self.slice = 500

    @property
    def configured(self) -> bool:
        return self.configured_at_all

    def configure(self, part: Any, now: Now, effects: Effects) -> None:
        self.parts.append(part)
        self.configured_at_all = True

    def process_result(self, agent: str, labels: dict[str, str], answered: Any, now: Now, effects: Effects) -> None:
        if answered.check == self.fails_at:
            raise RuntimeError("planted")
        self.taken.append((agent, answered))
        self.labels.append(labels)

    def schedule_for(self, agent: str, labels: dict[str, str]) -> bytes:
        return msgspec.json.encode({"version": 1, "checks": self.plans.get(labels.get("role", ""), [])})

    def tick(self, now: Now, effects: Effects) -> None:
        pass

    def deadline(self) -> float | None:
        return None

    def settle(self, effects: Effects) -> None:
        pass

    alive_checks = ()

    def selects(self, agent: str, labels: dict[str, str], check: str) -> CompiledCheck | None:
        plans = self.plans.get(labels.get("role", ""), [])
        found = [msgspec.convert(plan, CheckDefinition) for plan in plans if plan["name"] == check]
        return CompiledCheck(found[0]) if found else None

    def hand_over(self, agent: str, now: Now, effects: Effects) -> None:
        return None

    def take_over(self, agent: str, labels: dict[str, str], unpacked: Any, now: Now, effects: Effects) -> None:
        pass

    def find_incidents(self, query: Any, tell: Any, effects: Effects) -> None:
        tell(self.incidents(query), None, effects)

    def checks(self, query: Any, now: Now) -> Any:
        return {"items": [], "next": None, "query": query}

    def incidents(self, query: Any) -> Any:
        return {"items": [], "next": None, "query": query}

    def forget(self, agent: str, now: Now, effects: Effects) -> None:
        self.forgotten.append(agent)


class HeldHost(InstantHost):
    """A host whose commits wait until the world does them; asks are collected."""

    def __init__(self, world: HelenWorld) -> None:
        super().__init__(lambda: world.now, world._send)
        self._world = world
        self.held: list[tuple[list[Any], list[Any], Callable[[], None] | None]] = []

    def commit(self, writes: list[Any], events: list[Any], release: Callable[[], None] | None, now: Now) -> None:
        self._world.writes += writes
        self._world.events += events
        row = self._world._journal.append(events, now) if events else None
        self.held.append(([*writes, *([] if row is None else [row])], events, release))

    def ask(self, ask: Any) -> None:
        self._world.asks.append(ask)

    def close(self, peer: Any) -> None:
        self._world.closed.add(peer.routing_id)


class HelenWorld:
    """One Helen and her clock."""

    def __init__(
        self,
        agents: Sequence[AgentRow] = (),
        spools: Sequence[SpoolRow] = (),
        evaluation: Evaluation | None = None,
        **settings: Any,
    ) -> None:
        self.evaluation = FakeEvaluation()
        self.mono = 1_000.0
        self.wall = WALL
        self.helen = Helen(HelenSettings(identity="helen-1", **settings), evaluation or self.evaluation)  # type: ignore[arg-type]
        self.events: list[Any] = []
        self.writes: list[Any] = []
        self.asks: list[Any] = []
        self.closed: set[bytes] = set()
        self.holds_commits = False
        """What a turn writes and promises waits for `commit`; without it, a crash would lose it."""
        self.stored: list[Any] = []
        """Events that are on disk."""
        self._bytes: dict[bytes, bytes] = {}
        self._frames: dict[bytes, list[list[bytes]]] = {}
        self._parsers: dict[bytes, Parser] = {}
        self._store = MemoryStore()
        self._journal = Journal("helen-1", 1_000, self._store.open().next_seq, 0)
        self._store.commit([PutAgent(row.identity, row.body) for row in agents])
        self._store.commit([PutSpool(row.agent, row.spool, row.seen, row.heard_us) for row in spools])
        self._connections = 0
        self._host = HeldHost(self)
        self._host.begin(self.helen, self._store)
        effects = Effects()
        self.helen.start(agents, spools, self.now, effects)
        self.end(effects)

    @property
    def now(self) -> Now:
        return Now(self.mono, self.wall)

    def connect(self, name: str = "web-1", serial: str = "a1", address: str = "10.0.0.1") -> bytes:
        """A connection that has said nothing yet."""
        self._connections += 1
        routing_id = b"c%d" % self._connections
        self.turn(routing_id, ConnectionOpened(name, serial, 1_800_000_000, address))
        return routing_id

    def agent(self, name: str = "web-1", version: int = 2, software: str = "0.1.0", **where: str) -> bytes:
        """A connection that was taken in; what it heard is read already."""
        connection = self.connect(name, **where)
        heard = self.say(connection, Hello(version, software))
        kinds = [type(word) for word in heard]
        assert kinds == ([Accepted, Schedule] if version > 1 else []), heard
        return connection

    def say(self, connection: bytes, *words: ToHelen) -> list[Any]:
        """Words of an agent in one piece; what it hears at once."""
        return self.data(connection, b"".join(map(encode, words)))

    def data(self, connection: bytes, data: bytes) -> list[Any]:
        self.turn(connection, BytesReceived(data))
        return self.hear(connection)

    def gone(self, connection: bytes, orderly: bool = True) -> None:
        self.turn(connection, ConnectionClosed("gone", orderly))

    def hear(self, connection: bytes) -> list[Any]:
        """The words that this agent was sent since it last listened."""
        parser = self._parsers.setdefault(connection, Parser(to_helen=False))
        return list(parser.feed(self._bytes.pop(connection, b"")))

    def take_bytes(self, connection: bytes) -> bytes:
        """The same as bytes, for whoever has a parser of its own."""
        return self._bytes.pop(connection, b"")

    def request(self, service: str, body: Any = None, timeout: float = 30.0, name: bytes = b"r1") -> list[list[bytes]]:
        """A request of the network; what is answered at once."""
        raw = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        self.turn(name, NetworkRequest(service, timeout, raw), socket="network")
        return self.answers(name)

    def task(self, name: bytes, method: str, params: bytes) -> None:
        """A task of the network."""
        self.turn(name, NetworkTask("task-9", method, params), socket="network")

    def configure(self, body: bytes = b"{}") -> None:
        """Her part of the network configuration, as the network delivers it."""
        self.turn(b"n", read_config(body), socket="network")

    def answers(self, name: bytes = b"r1") -> list[list[bytes]]:
        return self._frames.pop(name, [])

    def turn(self, routing_id: bytes, event: Any, socket: str = "agents") -> None:
        effects = Effects()
        try:
            self.helen.receive(socket, routing_id, [event], self.now, effects)
        finally:
            self.end(effects)

    def do(self, act: Callable[[Now, Effects], Any]) -> Any:
        """A turn of something else than a message."""
        effects = Effects()
        out = act(self.now, effects)
        self.end(effects)
        return out

    def tell(self, ask: object, value: object) -> None:
        """What an Ask found."""
        self.do(lambda now, effects: self.helen.answer(ask, value, now, effects))

    def pass_time(self, seconds: float) -> None:
        """Let time pass, with a turn at each deadline, as the runner takes them."""
        end = self.mono + seconds
        while True:
            due = self.helen.deadline()
            if due is None or due > end:
                break
            self.wall += max(0.0, due - self.mono)
            self.mono = max(self.mono, due)
            self.end(Effects())
        self.wall += end - self.mono
        self.mono = end

    def end(self, effects: Effects) -> None:
        """The end of a turn; its commit is done at once, unless commits are held."""
        self._host.finish(effects)
        if not self.holds_commits:
            self.commit()

    def commit(self) -> None:
        """All that was held is on disk now."""
        while self._host.held:
            writes, events, release = self._host.held.pop(0)
            self._store.commit(writes)
            self.stored += events
            if release is not None:
                release()

    def _send(self, peer: Any, frames: list[Any]) -> Sent:
        if peer.routing_id in self.closed:
            return "sent"
        if peer.door == "agents":
            self._bytes[peer.routing_id] = self._bytes.get(peer.routing_id, b"") + b"".join(frames)
        else:
            self._frames.setdefault(peer.routing_id, []).append(answer_frames(frames[0]))
        return "sent"

    def kinds(self) -> list[str]:
        """The kinds of the events so far, without the minutes' own."""
        return [event.kind for event in self.events if event.kind != "source.alive"]

    def agent_rows(self) -> list[AgentRow]:
        """What the store holds of agents now."""
        rows: Any = self._store.read(ReadAgents("", 1_000))
        return list(rows)

    def spool_rows(self) -> list[SpoolRow]:
        """What the store holds of spools now."""
        rows: Any = self._store.read(ReadSpools("", "", 1_000))
        return list(rows)


def answer_frames(answer: Any) -> list[bytes]:
    """An answer in the short form that tests compare: reply and body, or error, code and message."""
    if isinstance(answer, RequestReply):
        return [b"reply", answer.body]
    return [b"error", b"%d" % answer.code, answer.message.encode()]


def report(sequence: int, name: str = "load", spool: str = "s1", n: int | None = None, **fields: Any) -> Report:
    """A report; `n` is the sequence unless it says otherwise."""
    body = {"state": "ok", "message": "fine", "spool": spool, "n": sequence if n is None else n, **fields}
    return Report(sequence, name, msgspec.json.encode(body))

"""A Helen without sockets: the real machine, the in-memory store, a real journal, and a clock that tests move.

A turn is that of the runner: promises are delivered only after their commit, and a crash loses what is not committed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from scale0.config import CheckDefinition, ClientConfig
from scale0.history.events.columns import EventMetric
from scale0.history.events.journal import Journal, JournalRow, read
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, Readers, StoreQuery
from scale0.kernel.errors import Refusal
from scale0.kernel.machine import Sent
from scale0.kernel.turn import Turn
from scale0.monitoring.helen.core.check_rules import CompiledCheck
from scale0.monitoring.helen.core.evaluation import Evaluation, IncomingResult
from scale0.monitoring.helen.core.helen import Helen
from scale0.monitoring.helen.core.notifications import DeliverNotification, OtherQueue, SubmitNotification
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
from scale0.monitoring.helen.edge.composition import read_agents, read_checks, read_spools
from scale0.monitoring.protocol.encoder import encode
from scale0.monitoring.protocol.messages import Accepted, Hello, Report, Schedule, ToHelen
from scale0.monitoring.protocol.parser import Parser
from scale0.monitoring.protocol.results import CheckFinding
from scale0.storage.check_rows import AgentRow, PutAgent, PutSpool, SpoolRow
from scale0.storage.memory.store import MemoryStore
from tests.fakes.turns import UNLIMITED_BYTES

WALL = 1_900_000_000.0


class FakeEvaluation:
    """Records what Helen passes on, and returns what the test has set."""

    alive_checks = ()
    decides: Any = None

    def __init__(self) -> None:
        self.results: list[tuple[str, Any]] = []
        self.labels: list[dict[str, str]] = []
        self.plans: dict[str, list[dict[str, Any]]] = {}
        """By the label `role`; blank: all others."""
        self.parts: list[Any] = []
        self.forgotten: list[str] = []
        self.configured = True
        self.fails_at = ""
        self.slice = 500

    def configure(self, part: Any, now: Now, effects: Effects) -> None:
        self.parts.append(part)
        self.configured = True

    def process_result(self, agent: str, labels: dict[str, str], answered: Any, now: Now, effects: Effects) -> None:
        if answered.check == self.fails_at:
            raise RuntimeError("planted")
        self.results.append((agent, answered))
        self.labels.append(labels)

    def schedule_for(self, agent: str, labels: dict[str, str]) -> bytes:
        return msgspec.json.encode({"version": 1, "checks": self.plans.get(labels.get("role", ""), [])})

    def selects(self, agent: str, labels: dict[str, str], check: str) -> CompiledCheck | None:
        plans = self.plans.get(labels.get("role", ""), [])
        found = [msgspec.convert(plan, CheckDefinition) for plan in plans if plan["name"] == check]
        return CompiledCheck(found[0]) if found else None

    def find_incidents(self, query: Any, then: Any, effects: Effects) -> None:
        then(self.incidents(query), None, effects)

    def checks(self, query: Any, now: Now) -> Any:
        return {"items": [], "next": None, "query": query}

    def incidents(self, query: Any) -> Any:
        return {"items": [], "next": None, "query": query}

    def forget(self, agent: str, now: Now, effects: Effects) -> None:
        self.forgotten.append(agent)

    def deadline(self) -> float | None:
        return None

    def doubtful_agents(self) -> list[str]:
        return []

    def doubted_helens(self, agent: str) -> set[str]:
        return set()

    def end_doubt(self, agent: str, helens: Any, now: Now, effects: Effects) -> None: ...
    def tick(self, now: Now, effects: Effects) -> None: ...
    def settle(self, effects: Effects) -> None: ...
    def hand_over(self, agent: str, now: Now, effects: Effects) -> None: ...
    def take_over(self, agent: str, labels: dict[str, str], unpacked: Any, now: Now, effects: Effects) -> None: ...


class FakeTaskQueue:
    """The broker's queue, as Helen's notifications see it: a task for each key."""

    def __init__(self) -> None:
        self.tasks: list[SubmitNotification] = []
        self.submits: list[SubmitNotification] = []
        self.is_up = True
        self.owner = "a"
        """Whose queue Helen is connected to."""
        self.answers = True
        """False: no submission gets an answer."""
        self.answer_instead: Refusal | None = None

    def submit(self, ask: SubmitNotification) -> str | Refusal | OtherQueue:
        if self.is_up and ask.owner != self.owner:
            return OtherQueue(self.owner)
        self.submits.append(ask)
        if self.answer_instead is not None:
            return self.answer_instead
        if not self.is_up:
            return Refusal(503, "not now")
        keys = [task.options["key"] for task in self.tasks]
        if ask.options["key"] not in keys:
            self.tasks.append(ask)
            keys.append(ask.options["key"])
        return f"t-{keys.index(ask.options['key'])}"

    def notices(self) -> list[dict[str, Any]]:
        """The notifications inside the tasks that deliver them."""
        return [json.loads(task.params)["notice"] for task in self.tasks if task.method == "helen.notify"]

    def sent(self) -> list[tuple[str, str]]:
        """Handler and state of each notification."""
        return [(notice["handler"], notice["state"]) for notice in self.notices()]


class SimulatedHelen:
    """One Helen, over restarts, and the host of her turns. Commits are done at the end of a turn."""

    def __init__(
        self,
        agents: Sequence[AgentRow] = (),
        spools: Sequence[SpoolRow] = (),
        name: str = "helen-1",
        evaluates: bool = False,
        **settings: Any,
    ) -> None:
        """With a fake evaluation, unless she `evaluates`."""
        self.name = name
        self.settings = HelenSettings(identity=name, **settings)
        self.mono, self.wall = 1_000.0, WALL
        self.store = MemoryStore()
        self.seq = self.store.open().next_seq
        self.store.commit([PutAgent(row.identity, row.body) for row in agents])
        self.store.commit([PutSpool(row.agent, row.spool, row.seen, row.heard_us) for row in spools])
        self.boot = 0
        self.events: list[Any] = []
        self.journal_events: list[dict[str, Any]] = []
        """Events that are on disk, as the pipeline reads them."""
        self.writes: list[Any] = []
        self.asks: list[Any] = []
        """Asks that the test answers itself."""
        self.closed: set[bytes] = set()
        self.holds_commits = False
        """What a turn writes and promises waits for `commit_all`; without it, a crash would lose it."""
        self.queue = FakeTaskQueue()
        self.deliveries: list[DeliverNotification] = []
        self.outcomes: list[Refusal | None] = []
        """Of the next direct deliveries; None: it never ends. Without one, a delivery succeeds."""
        self.labels: dict[str, dict[str, str]] = {}
        self._pending: list[tuple[list[Any], Callable[[], None] | None, StoreQuery | None]] = []
        self._bytes: dict[bytes, bytes] = {}
        self._replies: dict[bytes, list[list[bytes]]] = {}
        self._parsers: dict[bytes, Parser] = {}
        self._connections = 0
        self._evaluates = evaluates
        self.evaluation: Any = FakeEvaluation()
        self.start()

    # Her process.

    def start(self) -> None:
        """From what is committed."""
        self.boot += 1
        if self._evaluates:
            self.evaluation = Evaluation(read_checks(self.store))
        self._journal = Journal(self.name, self.boot, self.seq, 0)
        self.machine = Helen(self.settings, self.evaluation)
        self._turn = Turn(self.machine, self, UNLIMITED_BYTES)
        agents, spools = list(read_agents(self.store)), list(read_spools(self.store))
        self.do(lambda now, effects: self.machine.start(agents, spools, now, effects))

    def restart(self) -> None:
        """Killed, and started again."""
        self._pending.clear()
        self.start()

    @property
    def now(self) -> Now:
        return Now(self.mono, self.wall)

    def pass_time(self, seconds: float, wall: float | None = None) -> None:
        """Let time pass, with a turn at each deadline; the wall clock may move by something else."""
        end = self.mono + seconds
        self.wall += 0.0 if wall is None else wall - seconds
        while (due := self.machine.deadline()) is not None and due <= end:
            self.wall += max(0.0, due - self.mono)
            self.mono = max(self.mono, due)
            self.end(Effects())
        self.wall += end - self.mono
        self.mono = end

    def turn(self, routing_id: bytes, event: Any, socket: str = "agents") -> None:
        self.do(partial(self.machine.receive, socket, routing_id, [event]))

    def do(self, act: Callable[[Now, Effects], Any]) -> Any:
        """A turn of something else than a message."""
        effects = Effects()
        try:
            return act(self.now, effects)
        finally:
            self.end(effects)

    def end(self, effects: Effects) -> None:
        """The end of a turn."""
        self._turn.finish(effects, self.now)
        if not self.holds_commits:
            self.commit_all()

    def commit_all(self) -> None:
        """All that was held is on disk now."""
        while self._pending:
            self._commit_next()

    def _commit_next(self) -> None:
        writes, release, query = self._pending.pop(0)
        self.store.commit(writes)
        for row in writes:
            if isinstance(row, JournalRow):
                self.journal_events += read(row.body)
                self.seq = self.journal_events[-1]["seq"] + 1
        if release is not None:
            release()
        if query is not None:
            self.answer(query, self.store.read(query.ask))

    # The host of a turn: see kernel.turn.TurnHost.

    def read_clock(self) -> Now:
        return self.now

    def commit(self, writes: list[Any], events: list[Any], release: Callable[[], None] | None, now: Now) -> None:
        self.writes += writes
        self.events += events
        row = self._journal.append(events, now) if events else None
        self._add_pending([*writes, *([] if row is None else [row])], release, None)

    def _add_pending(self, writes: list[Any], release: Callable[[], None] | None, query: StoreQuery | None) -> None:
        self._pending.append((writes, release, query))

    def ask(self, ask: Any) -> None:
        match ask:
            case StoreQuery():
                self._add_pending([], None, ask)
            case SubmitNotification():
                self._add_pending([], lambda: self._submit(ask), None)
            case DeliverNotification():
                self._add_pending([], lambda: self._deliver(ask), None)
            case _:
                self.asks.append(ask)

    def _submit(self, ask: SubmitNotification) -> None:
        answer = self.queue.submit(ask)
        if self.queue.answers or isinstance(answer, OtherQueue):
            self.answer(ask, answer)

    def _deliver(self, ask: DeliverNotification) -> None:
        self.deliveries.append(ask)
        outcome = self.outcomes.pop(0) if self.outcomes else "204"
        if outcome is not None:
            self.answer(ask, outcome)

    def send(self, peer: Any, frames: list[Any]) -> Sent:
        if peer.socket == "agents":
            self._send_to_agent(peer.routing_id, b"".join(frames))
        else:
            self._send_reply(peer.routing_id, frames[0])
        return "sent"

    def _send_to_agent(self, connection: bytes, data: bytes) -> None:
        if connection not in self.closed:
            self._bytes[connection] = self._bytes.get(connection, b"") + data

    def _send_reply(self, name: bytes, reply: Any) -> None:
        """In the short form that tests compare: reply and body, or error, code and message."""
        is_reply = isinstance(reply, RequestReply)
        short = [b"reply", reply.body] if is_reply else [b"error", b"%d" % reply.code, reply.message.encode()]
        self._replies.setdefault(name, []).append(short)

    def close(self, peer: Any) -> None:
        self.closed.add(peer.routing_id)

    def drop(self, peer: Any) -> None:
        self.close(peer)

    def note_backlog(self, peer: Any, size: int) -> None: ...

    def pack(self, peer: Any, messages: Sequence[Any]) -> list[list[Any]]:
        packed: list[list[Any]] = peer.pack(messages)
        return packed

    def publish(self, socket: str, frames: list[bytes], readers: Readers | None) -> None: ...
    def dial(self, endpoint: str) -> None: ...
    def disconnect(self, endpoint: str) -> None: ...

    def failed(self, where: str, error: Exception) -> None:
        raise error

    # Agents, clients and the network.

    def connect(self, name: str = "web-1", serial: str = "a1", address: str = "10.0.0.1") -> bytes:
        """A connection that has sent nothing yet."""
        self._connections += 1
        routing_id = b"c%d" % self._connections
        self.turn(routing_id, ConnectionOpened(name, serial, 1_800_000_000, address))
        return routing_id

    def agent(self, name: str = "web-1", version: int = 2, software: str = "0.1.0", **where: str) -> bytes:
        """An accepted connection; what it received is read already."""
        connection = self.connect(name, **where)
        received = self.receive(connection, Hello(version, software))
        kinds = [type(message) for message in received]
        assert kinds == ([Accepted, Schedule] if version > 1 else []), received
        return connection

    def receive(self, connection: bytes, *messages: ToHelen) -> list[Any]:
        """Messages of an agent in one piece; what it is sent at once."""
        return self.receive_bytes(connection, b"".join(map(encode, messages)))

    def receive_bytes(self, connection: bytes, data: bytes) -> list[Any]:
        self.turn(connection, BytesReceived(data))
        return self.sent(connection)

    def disconnect_agent(self, connection: bytes, orderly: bool = True) -> None:
        self.turn(connection, ConnectionClosed("gone", orderly))

    def sent(self, connection: bytes) -> list[Any]:
        """The messages that this agent was sent since the last call."""
        parser = self._parsers.setdefault(connection, Parser(to_helen=False))
        return list(parser.feed(self._bytes.pop(connection, b"")))

    def request(self, service: str, body: Any = None, timeout: float = 30.0, name: bytes = b"r1") -> list[list[bytes]]:
        """A request of the network; what is answered at once."""
        raw = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        self.turn(name, NetworkRequest(service, timeout, raw), socket="network")
        return self.replies(name)

    def call(self, service: str, body: Any = None) -> Any:
        """A request that is answered at once: the JSON of its reply."""
        [[kind, found]] = self.request(service, body)
        assert kind == b"reply"
        return msgspec.json.decode(found)

    def replies(self, name: bytes = b"r1") -> list[list[bytes]]:
        return self._replies.pop(name, [])

    def error_code(self, name: bytes = b"r1") -> int:
        """The code of the one error that answered a request."""
        [[kind, code, _]] = self.replies(name)
        assert kind == b"error"
        return int(code)

    def refuses(self, service: str, body: Any = None) -> int:
        """A request that is refused at once: the code."""
        self._replies[b"r1"] = self.request(service, body)
        return self.error_code()

    def task(self, name: bytes, method: str, params: bytes) -> None:
        """A task of the network."""
        self.turn(name, NetworkTask("task-9", method, params), socket="network")

    def configure(self, body: bytes = b"{}") -> None:
        """Her part of the network configuration, as the network delivers it."""
        self.turn(b"n", read_config(body), socket="network")

    def learn_replicas(self, *names: str) -> None:
        self.do(partial(self.machine.learn_replicas, names))

    def answer(self, ask: object, value: object) -> None:
        self.do(partial(self.machine.answer, ask, value))

    # Her evaluation.

    def define(self, **sections: Any) -> None:
        """These are the checks, handlers, downtimes and silences now."""
        self.do(partial(self.evaluation.configure, ClientConfig(**sections)))
        self.pass_time(0.0)

    def result(self, state: str, agent: str = "web-1", check: str = "disk", **more: Any) -> None:
        """A turn with one result, and those that are due because of it."""
        effects = Effects()
        self.add_result(effects, state, agent, check, **more)
        self.end(effects)
        self.pass_time(0.0)

    def add_result(
        self,
        effects: Effects,
        state: str,
        agent: str = "web-1",
        check: str = "disk",
        age: float = 0.0,
        message: str = "m",
        metrics: tuple[EventMetric, ...] = (),
        scheduled: bool = True,
        seconds: float | None = 0.5,
    ) -> None:
        """A result in a turn that goes on."""
        labels = self.labels.setdefault(agent, {})
        finding = CheckFinding(state, message, metrics, None, seconds)  # type: ignore[arg-type]
        incoming = IncomingResult(check, finding, "s:1", self.wall - age, scheduled)
        self.evaluation.process_result(agent, labels, incoming, self.now, effects)

    def recorded(self, *kinds: str) -> list[dict[str, Any]]:
        """The journal's events of these kinds, `data` read; of all but her own, if none is named."""
        return [
            {**event, "data": json.loads(event["data"]) if event["data"] else {}}
            for event in self.journal_events
            if event["kind"] in kinds or not (kinds or event["kind"].startswith("source."))
        ]

    def kinds(self) -> list[str]:
        """The kinds of the events so far, without the minutes' own."""
        return [event.kind for event in self.events if event.kind != "source.alive"]

    def check(self, agent: str = "web-1", check: str = "disk") -> Any:
        """The view of a check; None if she has none."""
        items = self.evaluation.checks({"agent": agent, "check": check}, self.now)["items"]
        return items[0] if items else None

    def incidents(self, **query: Any) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.evaluation.incidents(query)["items"]
        return items

    def agent_rows(self) -> list[AgentRow]:
        return list(read_agents(self.store))

    def spool_rows(self) -> list[SpoolRow]:
        return list(read_spools(self.store))


def configured_helen(**sections: Any) -> SimulatedHelen:
    """A Helen who evaluates these checks, with these handlers, downtimes and silences."""
    helen = SimulatedHelen(evaluates=True)
    helen.define(**sections)
    return helen


def report(sequence: int, name: str = "load", spool: str = "s1", n: int | None = None, **fields: Any) -> Report:
    """A report; `n` is the sequence unless it says otherwise."""
    body = {"state": "ok", "message": "fine", "spool": spool, "n": sequence if n is None else n, **fields}
    return Report(sequence, name, msgspec.json.encode(body))

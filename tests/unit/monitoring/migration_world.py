"""Several Helens and their agents on one clock: real machines, connected by a network with delays and losses.

A crash loses what is not committed, and a promise is delivered only after its commit.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from scale0.config import ClientConfig
from scale0.history.events.journal import Journal, JournalRow, read
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, StoreQuery
from scale0.kernel.errors import Refusal
from scale0.kernel.machine import Sent
from scale0.kernel.turn import Turn
from scale0.monitoring.agent.core.effects import AgentEffects, Delivered, SessionAccepted, TakeSchedule
from scale0.monitoring.agent.core.session import AgentSession
from scale0.monitoring.helen.core.evaluation import Evaluation
from scale0.monitoring.helen.core.helen import Helen
from scale0.monitoring.helen.core.notifications import SubmitNotification
from scale0.monitoring.helen.core.pending_requests import ForwardRequest
from scale0.monitoring.helen.core.socket_events import (
    BytesReceived,
    ConfigReceived,
    ConnectionClosed,
    ConnectionOpened,
    NetworkRequest,
    RequestReply,
)
from scale0.monitoring.helen.core.state import HelenSettings
from scale0.monitoring.helen.edge.composition import read_agents, read_checks, read_spools
from scale0.storage.memory.store import MemoryStore
from tests.fakes.turns import UNLIMITED_BYTES

WALL = 1_900_000_000.0
LEARN_SECONDS = 10.0

TOKEN = "secret"
"""In every Helen's folder."""


class World:
    """Time, the wire, and the queue of tasks."""

    def __init__(self, *names: str, seed: int = 0, part: ClientConfig | None = None, **settings: Any) -> None:
        self.mono = 1_000.0
        self.chance = random.Random(seed)
        self.agenda: list[tuple[float, int, Callable[[], None]]] = []
        self.count = 0
        self.loss = 0.0
        """Of requests between Helens, and of their answers."""
        self.delay = 0.005
        self.wires: dict[tuple[bytes, str], float] = {}
        self.cut: set[tuple[str, str]] = set()
        """Pairs of Helens between which nothing passes."""
        self.tasks: dict[str, SubmitNotification] = {}
        self.requests: Counter[str] = Counter()
        self.part = part or ClientConfig()
        self.nodes = {name: Node(self, name, settings) for name in names}
        self.agents: dict[str, SimAgent] = {}
        for node in self.nodes.values():
            node.start()
        self._learn()

    @property
    def now(self) -> Now:
        return Now(self.mono, WALL + self.mono)

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.agenda, (self.mono + seconds, self.count, do))

    def on_wire(self, wire: tuple[bytes, str], do: Callable[[], None]) -> None:
        """One way of a connection: slow, but in order."""
        when = max(self.mono + self.delay, self.wires.get(wire, 0.0))
        self.wires[wire] = when
        self.after(when - self.mono, do)

    def run(self, seconds: float) -> None:
        """Let time pass."""
        end = self.mono + seconds
        while self.agenda and self.agenda[0][0] <= end:
            when, _, do = heapq.heappop(self.agenda)
            self.mono = max(self.mono, when)
            do()
        self.mono = end

    def until(self, what: Callable[[], object], seconds: float = 60.0) -> None:
        end = self.mono + seconds
        while not what():
            assert self.mono < end, "it does not come"
            self.run(0.05)

    def _learn(self) -> None:
        up = [name for name, node in self.nodes.items() if node.up]
        for name in up:
            known = [other for other in up if not self.is_cut(name, other)]
            self.nodes[name].do(partial(self.nodes[name].helen.learn_replicas, known))
        self.after(LEARN_SECONDS, self._learn)

    def learn_now(self) -> None:
        for node in self.nodes.values():
            if node.up:
                node.do(partial(node.helen.learn_replicas, list(self.nodes)))
        self.run(1.0)

    def is_cut(self, one: str, other: str) -> bool:
        return (one, other) in self.cut or (other, one) in self.cut

    def agent(self, name: str, *places: str) -> SimAgent:
        found = self.agents[name] = SimAgent(self, name, places or tuple(self.nodes))
        return found

    def forward(self, source: Node, ask: ForwardRequest) -> None:
        """A request of one Helen to another, over a network that may lose it."""
        boot, done = source.boot, [False]

        def answer(value: Any) -> None:
            if not done[0] and source.up and source.boot == boot:
                done[0] = True
                source.do(lambda now, effects: source.helen.answer(ask, value, now, effects))

        _, name, _service = ask.service.split(".", 2)
        self.requests[ask.service.rpartition(".")[2]] += 1
        self.after(ask.timeout, lambda: answer(Refusal(504, "no answer")))
        if self.chance.random() < self.loss or self.is_cut(source.name, name):
            return

        def arrive() -> None:
            node = self.nodes.get(name)
            if node is None or not node.up:
                answer(Refusal(404, "no such service"))
            else:
                node.request(ask.service, ask.body, lambda value: self._go_back(answer, value))

        self.after(self.chance.uniform(0.2, 1.8) * self.delay, arrive)

    def _go_back(self, answer: Callable[[Any], None], value: Any) -> None:
        if self.chance.random() >= self.loss:
            self.after(self.chance.uniform(0.2, 1.8) * self.delay, lambda: answer(value))

    def call(self, name: str, service: str, body: Any = None) -> Any:
        """Ask a Helen something, as any frontend can; the answer, or a Refusal."""
        found: list[Any] = []
        self.nodes[name].request(service, msgspec.json.encode(body or {}), found.append)
        self.until(lambda: found)
        return found[0] if isinstance(found[0], Refusal) else msgspec.json.decode(found[0])

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        """Of all journals."""
        return [event for node in self.nodes.values() for event in node.journal_events if event["kind"] in kinds]

    def counted(self) -> Counter[tuple[str, str]]:
        """How often each report is in the journals."""
        return Counter((event["identity"], event["ref"]) for event in self.events("check.answered"))

    def notices(self) -> list[tuple[str, str, str]]:
        """What people were told: agent, check, state."""
        said = [msgspec.json.decode(task.params)["notice"] for task in self.tasks.values()]
        return [(one["agent"], one["check"], one["state"]) for one in said]


class Node:
    """One Helen's process."""

    def __init__(self, world: World, name: str, settings: dict[str, Any]) -> None:
        self.world = world
        self.name = name
        self.settings = HelenSettings(identity=name, advertise=f"{name}:1", token=TOKEN, **settings)
        self.store = MemoryStore()
        self.seq = self.store.open().next_seq
        self.up = False
        self.asleep = False
        self.boot = 0
        self.commit_seconds = 0.002
        self.journal_events: list[dict[str, Any]] = []
        self.lines: dict[bytes, SimAgent] = {}
        self.askers: dict[bytes, Callable[[Any], None]] = {}
        self.numbers = 0
        self.pending: list[tuple[list[Any], Callable[[], None] | None, StoreQuery | None]] = []
        self.wake_at: float | None = None

    def start(self) -> None:
        self.boot += 1
        self.up, self.asleep = True, False
        self.journal = Journal(self.name, self.boot, self.seq, 0)
        self.helen = Helen(self.settings, Evaluation(read_checks(self.store)))
        self._turn = Turn(self.helen, self, UNLIMITED_BYTES)
        effects = Effects()
        self.helen.start(list(read_agents(self.store)), list(read_spools(self.store)), self.world.now, effects)
        self.finish(effects)
        self.turn("network", b"", ConfigReceived(self.world.part))

    def crash(self) -> None:
        """kill -9."""
        self.up = False
        self.pending, self.askers = [], {}
        lines, self.lines = self.lines, {}
        for connection, agent in lines.items():
            agent.connection_lost(connection)

    def stop(self) -> None:
        """In order."""
        effects = Effects()
        self.helen.stop(self.world.now, effects)
        self.finish(effects)
        self.world.run(0.1)
        self.crash()

    def do(self, act: Callable[[Now, Effects], Any]) -> None:
        if self.asleep:
            self.world.after(0.1, lambda: self.do(act))
            return
        effects = Effects()
        act(self.world.now, effects)
        self.finish(effects)

    def turn(self, socket: str, routing_id: bytes, event: Any) -> None:
        if self.up:
            self.do(lambda now, effects: self.helen.receive(socket, routing_id, [event], now, effects))

    def request(self, service: str, body: bytes, answer: Callable[[Any], None]) -> None:
        self.numbers += 1
        name = b"r%d.%d" % (self.boot, self.numbers)
        self.askers[name] = answer
        self.turn("network", name, NetworkRequest(service, 30.0, body))

    def finish(self, effects: Effects) -> None:
        self._turn.finish(effects, self.world.now)
        self._arm()

    # The host of a turn: see kernel.turn.TurnHost.

    def read_clock(self) -> Now:
        return self.world.now

    def commit(self, writes: list[Any], events: list[Any], release: Callable[[], None] | None, now: Now) -> None:
        row = self.journal.append(events, now) if events else None
        self._later([*writes, *([] if row is None else [row])], release, None)

    def _later(self, writes: list[Any], release: Callable[[], None] | None, query: StoreQuery | None) -> None:
        boot = self.boot
        self.pending.append((writes, release, query))
        self.world.after(self.commit_seconds, lambda: self._commit(boot))

    def ask(self, ask: Any) -> None:
        if isinstance(ask, StoreQuery):
            self._later([], None, ask)
        elif isinstance(ask, ForwardRequest):
            self.world.forward(self, ask)
        elif isinstance(ask, SubmitNotification):
            self._submit(ask)

    def close(self, peer: Any) -> None:
        agent = self.lines.pop(peer.routing_id, None)
        if agent is not None:
            name = peer.routing_id
            self.world.on_wire((name, "down"), partial(agent.connection_lost, name))

    def pack(self, peer: Any, messages: Sequence[Any]) -> list[list[Any]]:
        packed: list[list[Any]] = peer.pack(messages)
        return packed

    def publish(self, socket: str, frames: list[bytes]) -> None: ...
    def dial(self, endpoint: str) -> None: ...
    def hang_up(self, endpoint: str) -> None: ...

    def failed(self, where: str, error: Exception) -> None:
        raise error

    def _submit(self, ask: SubmitNotification) -> None:
        known = list(self.world.tasks)
        self.world.tasks.setdefault(ask.options["key"], ask)
        boot = self.boot

        def answer() -> None:
            if self.up and self.boot == boot:
                self.do(lambda now, effects: self.helen.answer(ask, f"t-{len(known)}", now, effects))

        self.world.after(self.world.delay, answer)

    def _commit(self, boot: int) -> None:
        if boot != self.boot or not self.up or not self.pending:
            return
        writes, release, query = self.pending.pop(0)
        self.store.commit(writes)
        for row in writes:
            if isinstance(row, JournalRow):
                self.journal_events += read(row.body)
                self.seq = self.journal_events[-1]["seq"] + 1
        if release is not None:
            release()
            self._arm()
        if query is not None:
            self.do(partial(self.helen.answer, query, self.store.read(query.ask)))

    def send(self, peer: Any, frames: list[Any]) -> Sent:
        if peer.door == "agents":
            agent = self.lines.get(peer.routing_id)
            if agent is not None:
                data, name = b"".join(frames), peer.routing_id
                self.world.on_wire((name, "down"), partial(agent.data, name, data))
            return "sent"
        answer = self.askers.pop(peer.routing_id, None)
        if answer is not None:
            found = frames[0]
            answer(found.body if isinstance(found, RequestReply) else Refusal(found.code, found.message))
        return "sent"

    def _arm(self) -> None:
        due = self.helen.deadline()
        if due is None:
            return
        when = max(due, self.world.mono)
        if self.wake_at is None or when < self.wake_at or self.wake_at <= self.world.mono:
            self.wake_at = when
            boot = self.boot
            self.world.after(when - self.world.mono, lambda: self._ring(boot))

    def _ring(self, boot: int) -> None:
        if self.up and boot == self.boot:
            self.wake_at = None
            self.do(lambda now, effects: None)

    def check(self, agent: str, check: str) -> dict[str, Any] | None:
        page = self.helen.state.evaluation.checks({"agent": agent, "check": check}, self.world.now)
        return page["items"][0] if page["items"] else None

    def incidents(self, **query: Any) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.helen.state.evaluation.incidents(query)["items"]
        return items

    def knows(self, agent: str) -> bool:
        return self.helen.state.agents.get(agent) is not None

    def holds(self, agent: str) -> bool:
        found = self.helen.state.agents.get(agent)
        return found is not None and found.connection is not None


class SimAgent:
    """A real session of an agent, with a spool in a list."""

    def __init__(self, world: World, name: str, places: tuple[str, ...]) -> None:
        self.world = world
        self.name = name
        chance = random.Random(f"{name}{world.chance.random()}")
        self.session = AgentSession([(place, 1) for place in places], "0.1.0", chance)
        self.spool: dict[int, tuple[str, dict[str, Any], float]] = {}
        self.number = 0
        self.reported: set[str] = set()
        """The refs of all results."""
        self.states: list[str] = []
        """Theirs, in order."""
        self.offered: set[int] = set()
        self.connection: bytes | None = None
        self.node: Node | None = None
        self.connections = 0
        self.schedules: list[bytes] = []
        self.labels: dict[str, str] = {}
        self.mute = False
        """It stops answering, and nobody is told."""
        self._step(self.session.start)

    @property
    def at(self) -> str:
        """The Helen who accepted it; blank: none."""
        return self.node.name if self.session.state == "accepted" and self.node is not None else ""

    def report(self, state: str = "ok", check: str = "disk") -> int:
        """A check ended: its result is spooled, and sent when it can be."""
        self.number += 1
        body = {"state": state, "message": "m", "spool": f"s-{self.name}", "n": self.number, "seconds": 0.1}
        self.spool[self.number] = (check, body, self.world.mono)
        self.reported.add(f"s-{self.name}:{self.number}")
        self.states.append(state)
        self._step(lambda now, out: None)
        return self.number

    def connection_lost(self, connection: bytes) -> None:
        if connection == self.connection:
            self.connection = None
            self._step(lambda now, out: self.session.lost("gone", now, out))

    def break_off(self, half_open: bool = False) -> None:
        """The connection breaks; half open: Helen does not notice."""
        connection, node = self.connection, self.node
        if connection is None or node is None:
            return
        if node.lines.pop(connection, None) is not None and not half_open:
            node.turn("agents", connection, ConnectionClosed("reset"))
        self.connection_lost(connection)

    def data(self, connection: bytes, data: bytes) -> None:
        if connection == self.connection and not self.mute:
            self._step(lambda now, out: self.session.received(data, now, out))

    def _step(self, act: Callable[[Now, AgentEffects], Any]) -> None:
        out = AgentEffects()
        act(self.world.now, out)
        self._offer(out)
        self._do(out)

    def _offer(self, out: AgentEffects) -> None:
        for news in out.updates:
            if isinstance(news, SessionAccepted):
                self.offered.clear()
                self.number += 1
                about = {"state": "ok", "labels": self.labels, "checks": [], "spool": f"s-{self.name}"}
                self.spool[self.number] = ("equus.agent", {**about, "n": self.number}, self.world.mono)
            elif isinstance(news, Delivered):
                for token in news.tokens:
                    self.spool.pop(token, None)
            elif isinstance(news, TakeSchedule):
                self.schedules.append(news.body)
        if self.session.state == "accepted":
            for number, (check, body, ended) in list(self.spool.items()):
                if number not in self.offered and self.session.room:
                    self.offered.add(number)
                    aged = {**body, "age": self.world.mono - ended}
                    self.session.offer(check, msgspec.json.encode(aged), number, self.world.now, out)

    def _do(self, out: AgentEffects) -> None:
        if out.close:
            connection, node = self.connection, self.node
            self.connection = None
            if connection is not None and node is not None and node.lines.pop(connection, None) is not None:
                node.turn("agents", connection, ConnectionClosed("closed", orderly=True))
        if out.open is not None:
            self.world.after(self.world.delay, partial(self._connect, out.open[0]))
        for data in out.sends:
            if self.connection is not None and self.node is not None:
                node, name = self.node, self.connection
                self.world.on_wire((name, "up"), partial(self._arrive, node, name, data))
        due = self.session.deadline()
        if due is not None:
            self.world.after(max(0.0, due - self.world.mono), self._tick)

    def _tick(self) -> None:
        due = self.session.deadline()
        if due is not None and due <= self.world.mono and not self.mute:
            self._step(self.session.tick)

    def _arrive(self, node: Node, connection: bytes, data: bytes) -> None:
        if connection in node.lines and not self.mute:
            node.turn("agents", connection, BytesReceived(data))

    def _connect(self, place: str) -> None:
        node = self.world.nodes[place]
        if not node.up:
            self._step(lambda now, out: self.session.lost("refused", now, out))
            return
        self.connections += 1
        self.connection, self.node = b"%b-%d" % (self.name.encode(), self.connections), node
        node.lines[self.connection] = self
        node.turn("agents", self.connection, ConnectionOpened(self.name, "a1", 1_800_000_000, "10.0.0.1:99"))
        self._step(self.session.opened)

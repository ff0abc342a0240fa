"""Several Helens and their agents on one clock: real machines, connected by a network with delays and losses."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from scale0.config import ClientConfig
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, StoreQuery
from scale0.kernel.errors import Refusal
from scale0.monitoring.agent.core.effects import Address, AgentEffects, Delivered, SessionAccepted, TakeSchedule
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
from tests.fakes.simulated_agent import SimulatedAgent
from tests.fakes.simulated_helen import WALL, FakeTaskQueue, SimulatedHelen

LEARN_SECONDS = 10.0
TOKEN = "secret"
"""In every Helen's folder."""


class SimulatedNetwork:
    """Time, connections, and the queue of tasks."""

    def __init__(self, *names: str, seed: int = 0, part: ClientConfig | None = None, **settings: Any) -> None:
        self.mono = 1_000.0
        self.random = random.Random(seed)
        self._agenda: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0
        self.loss = 0.0
        """Of requests between Helens, and of their answers."""
        self.delay = 0.005
        self.splits_bytes = False
        """What an agent sends arrives in pieces."""
        self._free_at: dict[tuple[bytes, str], float] = {}
        self.partitions: set[tuple[str, str]] = set()
        """Pairs of Helens between which nothing passes."""
        self.queue = FakeTaskQueue()
        self.requests: Counter[str] = Counter()
        self.part = part or ClientConfig()
        self.agents: dict[str, NetworkAgent] = {}
        self.helens: dict[str, NetworkHelen] = {}
        for name in names:
            self.helens[name] = NetworkHelen(self, name, settings)
        self._learn()

    @property
    def now(self) -> Now:
        return Now(self.mono, WALL + self.mono)

    def after(self, seconds: float, do: Callable[[], object]) -> None:
        self._count += 1
        heapq.heappush(self._agenda, (self.mono + seconds, self._count, do))

    def deliver(self, direction: tuple[bytes, str], do: Callable[[], None]) -> None:
        """One direction of a connection: slow, but in order."""
        when = max(self.mono + self.delay, self._free_at.get(direction, 0.0))
        self._free_at[direction] = when
        self.after(when - self.mono, do)

    def run(self, seconds: float) -> None:
        """Let time pass."""
        end = self.mono + seconds
        while self._agenda and self._agenda[0][0] <= end:
            when, _, do = heapq.heappop(self._agenda)
            self.mono = max(self.mono, when)
            do()
        self.mono = end

    def until(self, what: Callable[[], object], seconds: float = 60.0) -> None:
        end = self.mono + seconds
        while not what():
            assert self.mono < end, "it does not come"
            self.run(0.05)

    def _learn(self) -> None:
        up = [name for name, helen in self.helens.items() if helen.up]
        for name in up:
            self.helens[name].learn_replicas(*(other for other in up if not self.is_cut(name, other)))
        self.after(LEARN_SECONDS, self._learn)

    def learn_now(self) -> None:
        for helen in self.helens.values():
            if helen.up:
                helen.learn_replicas(*self.helens)
        self.run(1.0)

    def is_cut(self, one: str, other: str) -> bool:
        return (one, other) in self.partitions or (other, one) in self.partitions

    def agent(self, name: str, *addresses: str) -> NetworkAgent:
        """A new agent that knows these Helens, or all."""
        found = self.agents[name] = NetworkAgent(self, name, addresses or tuple(self.helens))
        return found

    def forward(self, source: NetworkHelen, ask: ForwardRequest) -> None:
        """A request of one Helen to another, over a network that may lose it."""
        boot, done = source.boot, [False]

        def answer(value: Any) -> None:
            if not done[0]:
                done[0] = source.answer_in(boot, ask, value)

        _, name, _service = ask.service.split(".", 2)
        self.requests[ask.service.rpartition(".")[2]] += 1
        self.after(ask.timeout, lambda: answer(Refusal(504, "no answer")))
        if self.random.random() < self.loss or self.is_cut(source.name, name):
            return

        def arrive() -> None:
            helen = self.helens.get(name)
            if helen is None or not helen.up:
                answer(Refusal(404, "no such service"))
            else:
                helen.request_later(ask.service, ask.body, lambda value: self._return(answer, value))

        self.after(self.random.uniform(0.2, 1.8) * self.delay, arrive)

    def _return(self, answer: Callable[[Any], None], value: Any) -> None:
        if self.random.random() >= self.loss:
            self.after(self.random.uniform(0.2, 1.8) * self.delay, lambda: answer(value))

    def call(self, name: str, service: str, body: Any = None) -> Any:
        """Ask a Helen something, as any frontend can; the answer, or a Refusal."""
        found: list[Any] = []
        self.helens[name].request_later(service, msgspec.json.encode(body or {}), found.append)
        self.until(lambda: found)
        return found[0] if isinstance(found[0], Refusal) else msgspec.json.decode(found[0])

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        """Of all journals."""
        return [event for helen in self.helens.values() for event in helen.journal_events if event["kind"] in kinds]

    def counted(self) -> Counter[tuple[str, str]]:
        """How often each report is in the journals."""
        return Counter((event["identity"], event["ref"]) for event in self.events("check.answered"))

    def notices(self) -> list[tuple[str, str, str]]:
        """Agent, check and state of each notification."""
        return [(one["agent"], one["check"], one["state"]) for one in self.queue.notices()]


class NetworkHelen(SimulatedHelen):
    """One Helen's process: it takes time to commit, can be killed, and sleeps."""

    def __init__(self, network: SimulatedNetwork, name: str, settings: dict[str, Any]) -> None:
        self.network = network
        self.up = self.asleep = False
        self.commit_seconds = 0.002
        self.wall_offset = 0.0
        """By how much her wall clock is wrong."""
        self.connections: dict[bytes, NetworkAgent] = {}
        self.callers: dict[bytes, Callable[[Any], None]] = {}
        self._requests = 0
        self._wake_at: float | None = None
        super().__init__(name=name, evaluates=True, advertise=f"{name}:1", token=TOKEN, **settings)

    @property
    def now(self) -> Now:
        now = self.network.now
        return Now(now.mono, now.wall + self.wall_offset)

    def start(self) -> None:
        self.up, self.asleep = True, False
        super().start()
        self.do(lambda now, _effects: self.machine.expect_replicas(now))
        self.turn(b"", ConfigReceived(self.network.part), "network")

    def crash(self) -> None:
        """kill -9."""
        self.up = False
        self._pending, self.callers = [], {}
        connections, self.connections = self.connections, {}
        for connection, agent in connections.items():
            agent.connection_lost(connection)

    def stop(self) -> None:
        """In order."""
        self.do(self.machine.stop)
        self.network.run(0.1)
        self.crash()

    def do(self, act: Callable[[Now, Effects], Any]) -> Any:
        if self.asleep:
            self.network.after(0.1, lambda: self.do(act))
            return None
        return super().do(act)

    def turn(self, routing_id: bytes, event: Any, socket: str = "agents") -> None:
        if self.up:
            super().turn(routing_id, event, socket)

    def request_later(self, service: str, body: bytes, answer: Callable[[Any], None]) -> None:
        self._requests += 1
        name = b"r%d.%d" % (self.boot, self._requests)
        self.callers[name] = answer
        self.turn(name, NetworkRequest(service, 30.0, body), "network")

    def answer_in(self, boot: int, ask: Any, value: Any) -> bool:
        """False: the process that asked is gone."""
        if not self.up or self.boot != boot:
            return False
        self.answer(ask, value)
        return True

    def end(self, effects: Effects) -> None:
        self._turn.finish(effects, self.now)
        self._set_timer()

    def _add_pending(self, writes: list[Any], release: Callable[[], None] | None, query: StoreQuery | None) -> None:
        super()._add_pending(writes, release, query)
        self.network.after(self.commit_seconds, partial(self._commit_in, self.boot))

    def _commit_in(self, boot: int) -> None:
        if boot == self.boot and self.up and self._pending:
            self._commit_next()
            self._set_timer()

    def ask(self, ask: Any) -> None:
        match ask:
            case ForwardRequest():
                self.network.forward(self, ask)
            case SubmitNotification():
                task = self.network.queue.submit(ask)
                self.network.after(self.network.delay, partial(self.answer_in, self.boot, ask, task))
            case _:
                super().ask(ask)

    def close(self, peer: Any) -> None:
        connection = peer.routing_id
        agent = self.connections.pop(connection, None)
        if agent is not None:
            self.network.deliver((connection, "down"), partial(agent.connection_lost, connection))

    def _send_to_agent(self, connection: bytes, data: bytes) -> None:
        agent = self.connections.get(connection)
        if agent is not None:
            self.network.deliver((connection, "down"), partial(agent.data, connection, data))

    def _send_reply(self, name: bytes, reply: Any) -> None:
        answer = self.callers.pop(name, None)
        if answer is not None:
            answer(reply.body if isinstance(reply, RequestReply) else Refusal(reply.code, reply.message))

    def _set_timer(self) -> None:
        due = self.machine.deadline()
        if due is None:
            return
        when = max(due, self.network.mono)
        if self._wake_at is None or when < self._wake_at or self._wake_at <= self.network.mono:
            self._wake_at = when
            self.network.after(when - self.network.mono, partial(self._wake, self.boot))

    def _wake(self, boot: int) -> None:
        if self.up and boot == self.boot:
            self._wake_at = None
            self.do(lambda now, effects: None)

    def knows(self, agent: str) -> bool:
        return self.machine.state.agents.get(agent) is not None

    def holds(self, agent: str) -> bool:
        found = self.machine.state.agents.get(agent)
        return found is not None and found.connection is not None


class NetworkAgent(SimulatedAgent):
    """An agent with a spool in memory, whose session connects to Helens of the network."""

    def __init__(self, network: SimulatedNetwork, name: str, addresses: tuple[str, ...]) -> None:
        self.network = network
        self.name = name
        self.spool: dict[int, tuple[str, dict[str, Any], float]] = {}
        self.number = 0
        self.reported: set[str] = set()
        """The refs of all results."""
        self.states: list[str] = []
        """Theirs, in order."""
        self.offered: set[int] = set()
        self.connection: bytes | None = None
        self.helen: NetworkHelen | None = None
        self.connections = 0
        self.schedules: list[bytes] = []
        self.labels: dict[str, str] = {}
        self.mute = False
        """It stops answering, and nobody is told."""
        super().__init__(*((address, 1) for address in addresses), seed=f"{name}{network.random.random()}")

    @property
    def now(self) -> Now:
        return Now(self.network.mono, 1_000.0)  # its wall clock is far off, and that changes nothing

    @property
    def at(self) -> str:
        """The Helen who accepted it; blank: none."""
        return self.helen.name if self.session.state == "accepted" and self.helen is not None else ""

    def report(self, state: str = "ok", check: str = "disk") -> int:
        """A check ended: its result is spooled, and sent when it can be."""
        self.number += 1
        body = {"state": state, "message": "m", "spool": f"s-{self.name}", "n": self.number, "seconds": 0.1}
        self.spool[self.number] = (check, body, self.network.mono)
        self.reported.add(f"s-{self.name}:{self.number}")
        self.states.append(state)
        self.perform(lambda now, out: None)
        return self.number

    def switch_off(self) -> None:
        """Nothing more comes from its machine, and its connection stays open."""
        self.mute = True

    def switch_on(self) -> None:
        self.mute = False
        self.connection_lost(self.connection)

    def connection_lost(self, connection: bytes | None) -> None:
        if connection == self.connection:
            self.connection = None
            self.step("lost", "gone")

    def break_off(self, half_open: bool = False) -> None:
        """The connection breaks; half open: Helen does not notice."""
        connection, helen = self.connection, self.helen
        if connection is None or helen is None:
            return
        if helen.connections.pop(connection, None) is not None and not half_open:
            helen.turn(connection, ConnectionClosed("reset"))
        self.connection_lost(connection)

    def data(self, connection: bytes, data: bytes) -> None:
        if connection == self.connection and not self.mute:
            self.step("received", data)

    def perform(self, act: Callable[[Now, AgentEffects], Any]) -> list[Any]:
        updates = super().perform(act)
        due = self.session.deadline()
        if due is not None:
            self.network.after(max(0.0, due - self.network.mono), self._tick)
        return updates

    def _update(self, out: AgentEffects) -> None:
        super()._update(out)
        for update in out.updates:
            if isinstance(update, SessionAccepted):
                self.offered.clear()
                self.number += 1
                about = {"state": "ok", "labels": self.labels, "checks": [], "spool": f"s-{self.name}"}
                self.spool[self.number] = ("equus.agent", {**about, "n": self.number}, self.network.mono)
            elif isinstance(update, Delivered):
                for token in update.tokens:
                    self.spool.pop(token, None)
            elif isinstance(update, TakeSchedule):
                self.schedules.append(update.body)
        if self.session.state == "accepted":
            for number, (check, body, ended) in list(self.spool.items()):
                if number not in self.offered and self.session.room:
                    self.offered.add(number)
                    aged = {**body, "age": self.network.mono - ended}
                    self.session.offer(check, msgspec.json.encode(aged), number, self.now, out)

    def _close(self) -> None:
        connection, helen = self.connection, self.helen
        self.connection = None
        if connection is not None and helen is not None and helen.connections.pop(connection, None) is not None:
            helen.turn(connection, ConnectionClosed("closed", orderly=True))

    def _open(self, address: Address) -> None:
        self.network.after(self.network.delay, partial(self._connect, address[0]))

    def _send(self, data: bytes) -> None:
        if self.connection is None or self.helen is None:
            return
        while data:
            length = self.network.random.randint(1, len(data)) if self.network.splits_bytes else len(data)
            arrive = partial(self._arrive, self.helen, self.connection, data[:length])
            self.network.deliver((self.connection, "up"), arrive)
            data = data[length:]

    def _tick(self) -> None:
        due = self.session.deadline()
        if due is not None and due <= self.network.mono and not self.mute:
            self.step("tick")

    def _arrive(self, helen: NetworkHelen, connection: bytes, data: bytes) -> None:
        if connection in helen.connections and not self.mute:
            helen.turn(connection, BytesReceived(data))

    def _connect(self, address: str) -> None:
        helen = self.network.helens[address]
        if not helen.up:
            self.step("lost", "refused")
            return
        self.connections += 1
        self.connection, self.helen = b"%b-%d" % (self.name.encode(), self.connections), helen
        helen.connections[self.connection] = self
        helen.turn(self.connection, ConnectionOpened(self.name, "a1", 1_800_000_000, "10.0.0.1:99"))
        self.step("opened")

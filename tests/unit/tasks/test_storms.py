"""Storms: everybody does anything in any order, with windows so small that all spills over; in the end all is in order.

A seed is a storm that can be seen again. At its end everybody is honest: then nothing may be stuck, no slot leaked,
nothing left in memory, and every count right. What raises ends the storm at once.
"""

# Promise: TASK-10
# Promise: TASK-13
from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from scale0.tasks.core import delayed_tasks, dependencies, method_queues
from tests.fakes.broker import TOKEN
from tests.fakes.messages import RPC, Message
from tests.unit.tasks.harness import ADMIN, CLIENT, FRONT, TaskBroker

pytestmark = pytest.mark.slow

SEEDS = 9
"""Of each mix."""
STEPS = 220
METHODS = ("m", "n")
WORKERS = ("w0", "w1")
NODE = "j"
PATIENCE = 400
"""Turns that the honest end may take."""

MIXES: dict[str, frozenset[str]] = {
    "requests": frozenset({"request", "node", "byid", "cancel"}),
    "times": frozenset({"delay", "backoff", "timeout", "node", "ttl"}),
    "chains": frozenset({"after", "cancel", "retry", "key", "delay"}),
    "comings": frozenset({"reconnect", "ready", "request", "node", "drain", "full"}),
    "held": frozenset({"race", "delay", "after", "cancel", "retry", "key", "node", "byid"}),
    "restarts": frozenset({"race", "restart", "delay", "after", "retry", "reconnect", "node", "timeout"}),
    "all": frozenset(
        {
            *("race", "delay", "backoff", "after", "retry", "cancel", "reconnect", "request", "node", "byid"),
            *("timeout", "key", "ttl", "ready", "drain", "full", "restart"),
        }
    ),
}


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(method_queues, "WINDOW_TASKS", 6)
    monkeypatch.setattr(delayed_tasks, "SCHEDULE_TASKS", 4)
    monkeypatch.setattr(dependencies, "PAGE_TASKS", 3)
    monkeypatch.setattr(dependencies, "ROUND_TASKS", 2)


class Storm:
    """One storm: who is there, and what each believes to have in hand."""

    def __init__(self, seed: int, mix: frozenset[str]) -> None:
        self.rng = random.Random(seed)
        self.mix = mix
        self.broker = TaskBroker(error_client_limit=0)
        self.ids: list[str] = []
        self.made = 0
        self.connections: dict[str, str] = {}
        self.hands: dict[str, dict[str, int]] = {name: {} for name in WORKERS}
        self.pulled: dict[str, int] = {}
        self.requests: list[tuple[str, str]] = []
        self.acts = self.choose()
        self.meet()

    def meet(self) -> None:
        for name in WORKERS:
            self.connect(name)
        self.broker.ask(self.connection(NODE), "node_connect", NODE, ["m"])

    def connection(self, name: str) -> str:
        """A new connection."""
        self.made += 1
        self.connections[name] = f"backend-{name}-{self.made}"
        return self.connections[name]

    def choose(self) -> list[Callable[[], None]]:
        """What may happen, the usual more often."""
        usual: list[Callable[[], None]] = [self.submit] * 17 + [self.report] * 12 + [self.wait] + [self.pass_time] * 5
        rare: dict[str, list[Callable[[], None]]] = {
            "cancel": [self.cancel] * 3,
            "retry": [self.retry] * 2,
            "node": [self.pull] * 2 + [self.report_pulled] * 2,
            "reconnect": [self.reconnect, self.leave],
            "ready": [self.ready_again],
            "request": [self.request],
            "drain": [self.drain],
            "full": [self.fill],
            "restart": [self.restart],
        }
        return usual + [act for name, acts in rare.items() if name in self.mix for act in acts]

    def maybe(self, name: str, probability: float) -> bool:
        return name in self.mix and self.rng.random() < probability

    def some_id(self) -> str:
        return self.rng.choice(self.ids[-15:]) if self.ids else "nothing"

    # The client.

    def submit(self) -> None:
        for _ in range(self.rng.choice([1, 1, 3, 12])):
            self.made += 1
            id_ = f"s.{self.made:012x}" if self.rng.random() < 0.7 else f"x{self.made}"
            said = (CLIENT, self.rng.choice(METHODS), [1], id_, self.options())
            self.broker.ask(FRONT, "client_new_task", *said)
            self.ids.append(id_)

    def options(self) -> dict[str, Any]:
        choice = self.rng.choice
        options: dict[str, Any] = {"priority": choice([3, 4, 4, 4, 5]), "notify": self.rng.random() < 0.2}
        if self.maybe("delay", 0.3):
            options["delay"] = choice([0.05, 0.3, 1, 2])
        if self.maybe("backoff", 0.2):
            options["backoff"] = 0.2
        if self.maybe("timeout", 0.2):
            options["timeout"] = choice([0.3, 1])
        if self.maybe("key", 0.1):
            options["key"] = choice("abc")
        if self.ids and self.maybe("after", 0.3):
            recent = self.ids[-6:]
            options["after"] = self.rng.sample(recent, min(len(recent), choice([1, 2])))
        if self.maybe("ttl", 0.2):
            options["result_ttl"] = choice([0, 1])
        return options

    def cancel(self) -> None:
        self.broker.ask(FRONT, "client_task_cancel", CLIENT, self.some_id())

    def wait(self) -> None:
        self.broker.ask(FRONT, "client_task_wait", CLIENT, self.ids[-3:], 1)

    def retry(self) -> None:
        said = {"command": "retry_task", "id": "m", "auth_token": TOKEN, "task_id": self.some_id()}
        self.broker.send(ADMIN, "MANAGEMENTREQ", said)

    def request(self) -> None:
        self.made += 1
        said = {"service": self.rng.choice(METHODS), "id": f"r{self.made}", "timeout": 2}
        self.broker.send(f"frontend-{self.made}", "REQUEST", said, "hello")

    # Backends.

    def connect(self, name: str, holds: bool = True) -> None:
        self.broker.send(self.connection(name), "CHECKCONFIG", {"identity": name})
        self.ready(name, holds)

    def ready(self, name: str, holds: bool = True) -> None:
        said = {"services": METHODS, "config_version": self.broker.version, "time": self.broker.wall}
        more = {"slots": self.rng.choice([1, 2]), "prefetch": self.rng.choice([0, 3])}
        leases = list(self.hands[name].items()) if holds else []
        self.broker.send(self.connections[name], "READY", {**said, **more, "holds": leases})

    def ready_again(self) -> None:
        self.ready(self.rng.choice(WORKERS))

    def reconnect(self) -> None:
        self.connect(self.rng.choice(WORKERS), holds=self.rng.random() < 0.7)

    def leave(self) -> None:
        name = self.rng.choice(WORKERS)
        if self.rng.random() < 0.5:
            self.hands[name].clear()
        self.broker.send(self.connections[name], "DISCONNECT")
        self.connect(name)

    def report(self) -> None:
        name = self.rng.choice(WORKERS)
        if not self.hands[name]:
            return
        id_ = self.rng.choice(list(self.hands[name]))
        attempt, how = self.hands[name][id_], self.rng.random()
        if how < 0.3:
            self.broker.running(self.connections[name], id_, attempt=attempt)
        elif how < 0.8:
            self.broker.done(self.connections[name], id_, attempt=attempt)
        else:
            self.broker.fail(self.connections[name], id_, attempt, retry=self.rng.random() < 0.7)

    # The node.

    def pull(self) -> None:
        if self.maybe("byid", 0.5):
            self.broker.ask(self.connections[NODE], "node_task_request", NODE, self.some_id())
        else:
            self.broker.ask(self.connections[NODE], "node_tasks_request", NODE, self.rng.choice([1, 3]))

    def report_pulled(self) -> None:
        if not self.pulled:
            return
        id_ = self.rng.choice(list(self.pulled))
        attempt = self.pulled.pop(id_)
        if self.rng.random() < 0.7:
            self.broker.ask(self.connections[NODE], "node_task_finished", NODE, id_, 1, attempt)
        else:
            error = {"code": 1, "message": "", "retry": True}
            self.broker.ask(self.connections[NODE], "node_task_failed", NODE, id_, error, attempt)

    # The broker, its clock and its disk.

    def drain(self) -> None:
        self.broker.machine.state.draining = True

    def fill(self) -> None:
        self.broker.machine.state.full = True

    def open_again(self) -> None:
        self.broker.machine.state.draining = self.broker.machine.state.full = False

    def restart(self) -> None:
        if self.rng.random() < 0.3:
            self.broker.crash(stored=self.rng.random() < 0.5)
            self.pulled.clear()
            self.requests.clear()
            self.meet()

    def pass_time(self) -> None:
        self.broker.pass_time(self.rng.choice([0.01, 0.1, 0.5]))

    def beat(self) -> None:
        for name in WORKERS:
            self.broker.send(self.connections[name], "HEARTBEAT", {"config_version": self.broker.version})
        self.broker.ask(self.connections[NODE], "node_heartbeat", NODE)

    # What is message.

    def receive_all(self) -> None:
        back: dict[str, None] = {}
        while self.broker.sent:
            who, message = self.broker.sent.popleft()
            name = next((name for name, connection in self.connections.items() if connection == who), "")
            if name == NODE and message.command == RPC:
                self.take(message.body.get("result"))
            elif name:
                self.receive(name, message, back)
        for name in back:
            self.connect(name)

    def receive(self, name: str, message: Message, back: dict[str, None]) -> None:
        hand = self.hands.get(name, {})
        if message.command == "TASKS":
            hand.update((task["id"], task["attempt"]) for task in message.body)
        elif message.command in ("TASKSOK", "TASKSCANCEL"):
            for id_, attempt, *_ in message.body:
                if hand.get(id_) == attempt:
                    del hand[id_]
        elif message.command == "REQUEST":
            self.requests.append((name, message.options["id"]))
        elif message.command in ("FORCENEGOTIATE", "DISCONNECTERROR"):
            back[name] = None

    def take(self, result: Any) -> None:
        for task in result if isinstance(result, list) else [result]:
            if isinstance(task, dict) and "attempt" in task:
                self.pulled[task["id"]] = task["attempt"]

    def reply(self, probability: float) -> None:
        while self.requests and self.rng.random() < probability:
            name, id_ = self.requests.pop()
            self.broker.send(self.connections[name], "REPLY", {"id": id_}, "hello")

    # The storm, and its end.

    def blow(self) -> None:
        for effects in range(STEPS):
            self.broker.host.blocked = "race" in self.mix
            self.rng.choice(self.acts)()
            if self.broker.host.blocked and self.rng.random() < 0.4:
                self.broker.host.end_one()
            self.receive_all()
            self.reply(0.5)
            if self.rng.random() < 0.2:
                self.open_again()
            if effects % 8 == 0:
                self.beat()

    def calm(self) -> None:
        """Everybody is honest, and does what there is to do."""
        broker = self.broker
        broker.let_go()
        self.open_again()
        self.receive_all()
        for name in WORKERS:
            broker.send(self.connections[name], "DISCONNECT")
            self.hands[name].clear()
            self.connect(name)
        broker.ask(self.connections[NODE], "node_disconnect", NODE)
        for _ in range(PATIENCE):
            self.receive_all()
            self.reply(1.0)
            for name in WORKERS:
                for id_, attempt in list(self.hands[name].items()):
                    self.broker.running(self.connections[name], id_, attempt=attempt)
                    self.broker.done(self.connections[name], id_, attempt=attempt)
            self.beat()
            self.broker.pass_time(0.25)
            if not self.broker.open and not any(self.hands.values()):
                break
        for _ in range(10):  # whoever waits has waited long enough
            self.beat()
            self.broker.pass_time(0.5)
            self.receive_all()
            self.reply(1.0)

    def check(self) -> None:
        machine, stored = self.broker.machine, self.broker.store.snapshot().tasks
        stuck = [(task.id, task.status, task.shelved, task.waits) for task in stored.open.values()]
        assert not stuck, f"{len(stuck)} are stuck, the first ones: {stuck[:4]}"
        counts = machine.tasks.counts()
        assert {name: counts[name] for name in ("open", "leased", "in_memory", "waits")} == {
            "open": 0,
            "leased": 0,
            "in_memory": 0,
            "waits": 0,
        }
        assert len(machine.scheduler.backends) == len(WORKERS)
        for backend in machine.scheduler.backends:
            held = (backend.busy, backend.slotted, len(backend.tasks), len(backend.held))
            assert held == (0, 0, 0, 0), f"{backend.identity} has {held}"
        for method in METHODS:
            method_queue = machine.tasks.queue.method_queues.find(method)
            assert method_queue is None or method_queue.leased == 0, f"{method}: {method_queue.leased}"
        connection = machine.connections.find("frontend", FRONT.encode())
        assert connection is None or connection.waits == 0, f"the client waits for {connection.waits} things"
        assert not stored.dependencies, "somebody still waits for somebody"


@pytest.mark.parametrize("mix", MIXES)
def test_after_any_storm_all_is_in_order(mix):
    for seed in range(SEEDS):
        storm = Storm(seed, MIXES[mix])
        try:
            storm.blow()
            storm.calm()
            storm.check()
        except Exception as error:
            raise AssertionError(f"{mix}, seed {seed}: {type(error).__name__} {error}") from error

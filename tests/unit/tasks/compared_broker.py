"""A broker with clients, backends and nodes, compared with the model of its queue: every message, event and row."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from scale0.broker.core.audit_limit import MAX_SINGLE, WINDOW_SECONDS
from scale0.history.events.tasks import TaskAttemptEnded, TaskCompleted, TaskRefused
from scale0.storage.task_queries import FindTasks
from scale0.storage.task_rows import STATUS_NAMES, EndedTask, OpenTask
from simulator.invariants.task_memory import usage_of
from tests.fakes.broker import FakeBroker
from tests.fakes.messages import RPC, Message
from tests.unit.tasks.queue_model import INTERVAL, LATE, LEASED, LIVENESS, OPEN, Naive, Task, Worker

CLIENTS = ("ann", "bob")
METHODS = ("a", "b")
NATIVES = ("w0", "w1", "w2")
NODES = ("n0", "n1")


def choose(things: list[Any], number: int) -> Any:
    return things[number % len(things)]


class ComparedBroker:
    """One broker, two clients, three backends, two nodes."""

    def __init__(self) -> None:
        self.broker = FakeBroker(default_heartbeat_interval=INTERVAL, heartbeat_liveness=LIVENESS, error_client_limit=0)
        self.model = Naive()
        for name in (*NATIVES, *NODES):
            self.model.workers[name] = Worker(name, name in NATIVES)
        self.answers: dict[int, dict[str, Any]] = {}
        self.oks: list[tuple[str, str, int, int]] = []
        """Worker, task, attempt and code that TASKSOK must say."""
        self.refused: list[tuple[str, int, str]] = []
        """Late results that must be recorded."""
        self.recorded: defaultdict[str, list[float]] = defaultdict(list)
        """By node: when its refused results were recorded by themselves."""
        self.unrecorded: Counter[str] = Counter()
        """By node: refused results that one event counts later."""
        self.refused_while_full: set[str] = set()
        """Connections whose results came while the disk was full."""
        self.waits: dict[int, tuple[list[str], float]] = {}
        self.connections = 0
        self.made = 0
        self.meet()

    # Words.

    @property
    def now(self) -> float:
        return self.broker.mono

    @property
    def full(self) -> bool:
        return self.broker.machine.state.full

    def connection(self, role: str, name: str) -> str:
        self.connections += 1
        return f"{role}-{name}-{self.connections}"

    def meet(self) -> None:
        """The clients say who they are, on new connections."""
        self.fronts = {name: self.connection("frontend", name) for name in CLIENTS}
        for name, connection in self.fronts.items():
            assert self.call(connection, "client_connect", name)["result"] == name

    def call(self, connection: str, method: str, *params: Any) -> dict[str, Any]:
        """One request and its answer."""
        number = self.broker.ask(connection, method, *params)
        self.compare()
        assert number in self.answers, f"{method} was not answered"
        return self.answers.pop(number)

    def send(self, worker: Worker, command: str, options: dict[str, Any] | None = None, *bodies: Any) -> None:
        worker.spoke = self.now
        self.broker.send(worker.connection, command, options, *bodies)

    def leased(self, number: int, names: tuple[str, ...]) -> tuple[Worker, str, int] | None:
        """Something that a worker who is well has, or once had."""
        own = [w for w in self.model.workers.values() if w.name in names and w.up and not w.silent]
        leases = [(w, id_, attempt) for w in own for id_, attempt in w.seen]
        fresh = [lease for lease in leases if lease[0].hand.get(lease[1]) == lease[2]]
        pool = fresh if fresh and number % 4 else leases
        return choose(pool, number // 4) if pool else None

    def is_unsure(self, task: Task) -> bool:
        """Its time comes about now."""
        return task.status == "scheduled" and not task.waits and task.soonest <= self.now

    # What is message.

    def compare(self) -> None:
        """Everything that the broker recorded and said is put before the model."""
        model, broker = self.model, self.broker
        before = [task for task in model.runnable(self.now) if task.id not in model.changed]
        while broker.events:
            self.happened(broker.events.popleft())
        before += [model.tasks[id_] for id_ in model.changed if model.tasks[id_].status == "queued"]
        handed: list[Task] = []
        while broker.sent:
            handed += self.receive(*broker.sent.popleft())
        model.check_order(handed, before)
        for id_ in [id_ for id_ in self.waits if id_ in self.answers]:
            self.check_wait(*self.waits.pop(id_), self.answers.pop(id_)["result"])

    def happened(self, event: Any) -> None:
        match event:
            case TaskAttemptEnded():
                self.model.attempt_ended(event.task_id, event.attempt, event.node, event.state, self.now)
            case TaskCompleted():
                self.model.completed(event.task_id, event.state, event.code, self.now)
            case TaskRefused():
                self.refusal_recorded(event)
            case _:
                pass  # what members do is not the queue's business

    def receive(self, who: str, message: Message) -> list[Task]:
        worker = next((w for w in self.model.workers.values() if w.connection == who), None)
        if message.command == RPC:
            self.receive_rpc(who, message.body)
        elif worker is not None and message.command == "TASKS":
            handed = [self.model.hand(worker, row["id"], row["attempt"], self.now) for row in message.body]
            for method in METHODS:
                ranks = [(task.rank, task.client) for task in handed if task.method == method]
                assert ranks == sorted(ranks, key=lambda one: one[0][0]), f"{worker.name} got {ranks}"
                for client in {client for _, client in ranks}:
                    own = [rank for rank, whose in ranks if whose == client]
                    assert own == sorted(own), f"{worker.name} got {own} of {client}"
            return handed
        elif worker is not None and message.command == "TASKSOK":
            for id_, attempt, code in message.body:
                self.oks.remove((worker.name, id_, attempt, code))
                if worker.hand.get(id_) == attempt:
                    del worker.hand[id_]
        elif worker is not None and message.command == "TASKSCANCEL":
            for id_, attempt in message.body:
                assert not self.model.is_lease(worker, id_, attempt), f"{id_} was called back, and is a lease"
                if worker.hand.get(id_) == attempt:
                    del worker.hand[id_]
        else:
            asked_again = message.command == "FORCENEGOTIATE" and who in self.refused_while_full
            assert asked_again or message.command in ("CONFIG", "READYOK", "HEARTBEAT", "DISCONNECTERROR"), message
        return []

    def receive_rpc(self, who: str, document: dict[str, Any]) -> None:
        if "method" not in document:
            self.answers[document["id"]] = document
            return
        assert document["method"] == "zerotask.client.task_complete"
        end = document["params"]
        assert self.model.notes.pop(end["task_id"], None) == who, "told twice, or to another"
        self.check_outcome(end)

    def check_outcome(self, told: dict[str, Any]) -> None:
        """What a client hears of an end."""
        task = self.model.tasks[told["task_id"]]
        assert told["status"] == task.status
        if task.status == "finished":
            assert told["result"] == task.outcome
        else:
            assert told["error"]["code"] == task.outcome

    def check_wait(self, ids: list[str], due: float, told: list[dict[str, Any]]) -> None:
        """As soon as one is complete; others may follow in the same moment."""
        named = [row["task_id"] for row in told]
        assert len(named) == len(set(named))
        assert set(named) <= {id_ for id_ in ids if self.model.tasks[id_].status not in OPEN}
        assert told or self.now >= due
        for row in told:
            self.check_outcome(row)

    def well(self, *names: str) -> list[Worker]:
        return [w for w in self.model.workers.values() if w.up and not w.silent and w.name in names]

    def report(self, worker: Worker, id_: str, attempt: int, how: str) -> tuple[dict[str, Any], int]:
        """What is reported, and what must come of it."""
        self.made += 1
        value = f"{worker.name} {id_} {attempt}" + (" otherwise" if self.made % 3 == 0 else "")
        end = ("finished", value) if how == "result" else ("failed", 7)
        code = self.model.verdict(worker, id_, attempt, end)
        if not self.full and self.model.is_lease(worker, id_, attempt):
            task = self.model.tasks[id_]
            if how == "result":
                self.model.result(task, value)
            else:
                self.model.failure(task, 7, how == "retry")
        if how == "result":
            return {"result": value}, code
        return {"error": {"code": 7, "message": "no", "retry": how == "retry"}}, code

    def refusal_recorded(self, event: TaskRefused) -> None:
        if event.more:
            assert event.more <= self.unrecorded[event.node], event
            self.unrecorded[event.node] -= event.more
        else:
            self.refused.remove((event.task_id, event.attempt, event.node))
            self.recorded[event.node].append(self.now)

    # What must be true after every step.

    def stored(self, id_: str) -> Any:
        rows: Any = self.broker.store.read(FindTasks((id_,)))
        return rows[0]

    def check(self) -> None:
        model = self.model
        model.check_turn(self.now, [name for role, name in self.broker.machine.members.by_name if role == "backend"])
        assert not self.oks, f"not answered: {self.oks}"
        for _, _, node in self.refused:
            recent = [at for at in self.recorded[node] if self.now - at <= WINDOW_SECONDS]
            assert len(recent) >= MAX_SINGLE, f"not recorded: {self.refused}"
            self.unrecorded[node] += 1
        self.refused.clear()
        for ids, due in self.waits.values():
            assert all(model.tasks[id_].status in OPEN for id_ in ids), f"nobody was told of {ids}"
            assert self.now <= due + LATE
        self.check_store()
        self.check_slots()

    def check_store(self) -> None:
        """Each acknowledged task is there once, as it is."""
        snapshot = self.broker.store.snapshot().tasks
        rows: list[OpenTask | EndedTask] = [*snapshot.open.values(), *snapshot.ended.values()]
        assert sorted(row.id for row in rows) == sorted(self.model.tasks)
        assert self.broker.machine.tasks.queue.open == len(snapshot.open)
        assert snapshot.usage == usage_of(snapshot)
        for row in rows:
            task = self.model.tasks[row.id]
            assert isinstance(row, EndedTask) == (task.status not in OPEN)
            assert (row.attempt, row.starts) == (task.attempt, task.starts) or task.start_reported, (row, task)
            assert row.attempt == task.attempt
            name = STATUS_NAMES[row.status]
            lazy = (name, task.status) in (("assigned", "running"), ("queued", "scheduled"), ("scheduled", "queued"))
            assert name == task.status or lazy, (row, task)
            assert row.node == task.node or task.status not in LEASED

    def check_slots(self) -> None:
        """A slot is held by each task, and by nothing else."""
        machine = self.broker.machine
        held = 0
        for backend in machine.scheduler.backends:
            held += len(backend.tasks)
            assert backend.busy == backend.slotted, (
                f"{backend.identity}: {backend.busy} busy, {backend.slotted} by tasks"
            )
            if backend.pushes and backend.services:
                assert backend.slotted >= min(len(backend.tasks), backend.slots)
            assert backend.slotted <= len(backend.tasks)
            worker = self.model.workers[backend.identity]
            assert set(backend.tasks) == {task.id for task in self.model.leases(worker)}
        assert machine.tasks.leases.leased == held

"""The network around simulated Helens: configuration, clients, other Helens and the task queue.

It is a minimal broker, as a Helen sees it. A key makes one task, however often it is submitted. Requests to a Helen
that crashed end with an error.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from scale0.kernel import codes
from scale0.kernel.errors import Refusal
from scale0.monitoring.helen.core.notifications import (
    NOTIFY_METHOD,
    RECHECK_METHOD,
    DeliverNotification,
    OtherQueue,
    SubmitNotification,
)
from scale0.monitoring.helen.core.pending_requests import ForwardRequest
from scale0.monitoring.helen.core.socket_events import (
    NetworkEvent,
    NetworkRequest,
    NetworkTask,
    RequestError,
    RequestReply,
    read_config,
)
from simulator.monitoring.check_findings import Health
from simulator.monitoring.helen import HelenNode
from simulator.virtual_time import Agenda, Diary

HEAL_METHOD: Final = "heal"
"""The task that a handler of the configuration submits."""
RETRY_SECONDS: Final = 3.0
MAX_TRIES: Final = 8
MAX_DELAY: Final = 0.02
SUBMIT_SECONDS: Final = 30.0
"""How long a Helen waits for the acknowledgement of a submission."""
QUEUE: Final = "broker-1"
OTHER_QUEUE: Final = "broker-2"
MAX_FAILURES: Final = 2
"""Failed direct deliveries of one notification: fewer than its handler's attempts."""

Answer = RequestReply | RequestError


class Question(msgspec.Struct):
    """A `helen.check` request."""

    nonce: str
    helen: str
    agent: str
    check: str
    due: float
    """When it must have ended."""
    ends: int = 0
    code: int = 0
    runs: int = 0


class Task(msgspec.Struct):
    id: str
    key: str
    method: str
    params: bytes
    after: tuple[str, ...]
    queue: str
    """Which broker has it."""
    submissions: int = 1
    done: bool = False
    tries: int = 0


class Observer(Protocol):
    """The observer: see `simulator/invariants/agents.py`."""

    def question_ended(self, question: Question, node: HelenNode, answer: Answer) -> None: ...
    def submitted(self, node: HelenNode, ask: SubmitNotification, known: Task | None) -> None: ...
    def delivering(self, node: HelenNode, ask: DeliverNotification) -> None: ...


class AgentNetwork:
    def __init__(self, agenda: Agenda, diary: Diary, rng: random.Random, health: Health, observer: Observer) -> None:
        self._agenda = agenda
        self._diary = diary
        self._rng = rng
        self._health = health
        self._observer = observer
        self.helens: list[HelenNode] = []
        self.part = b"{}"
        """The current configuration."""
        self.queue_away = False
        self.separated: set[str] = set()
        """Helens whom no other Helen reaches; one of them does not reach the queue either."""
        self.queue = QUEUE
        """The broker that the Helens are connected to; brokers do not know each other's keys."""
        self.queue_mute = False
        """The queue accepts tasks, and its acknowledgements are lost."""
        self.failures: dict[str, int] = {}
        """Failed direct deliveries, by notification."""
        self.closing = False
        """Nothing new is started any more."""
        self.questions: dict[str, Question] = {}
        self.tasks: dict[tuple[str, str], Task] = {}
        """By Helen and key: the queue knows a key of the client that submitted it."""
        self._by_id: dict[str, Task] = {}
        self._waits: dict[bytes, tuple[int, Callable[[Answer], None]]] = {}
        """The callback of each pending request, and the process of the Helen that it was sent to."""
        self._serial = 0
        self.revoked_serials: dict[str, float] = {}
        """Revoked certificates, and since when."""

    def revoked(self, name: str, serial: str, issued: float) -> bool:
        return serial in self.revoked_serials

    def revoke(self, serial: str) -> None:
        """Each Helen notices it within half a second."""
        self.revoked_serials[serial] = self._agenda.now
        for node in self.helens:
            self._agenda.after(self._rng.random() * 0.5, self._publish_revoked, node)

    def _publish_revoked(self, node: HelenNode) -> None:
        if node.up:
            node.take(lambda now, effects: node.helen.revoke(self.revoked, now, effects))

    def configure(self, part: bytes) -> None:
        """A new configuration: each Helen gets it after her own delay."""
        self.part = part
        for node in self.helens:
            self._agenda.after(self._delay(), self._deliver, node, node.life)

    def started(self, node: HelenNode) -> None:
        self._agenda.after(self._rng.uniform(0.05, 1.5), self._deliver, node, node.life)

    def _deliver(self, node: HelenNode, life: int) -> None:
        if node.life == life:
            node.request(b"config", read_config(self.part))

    def introduce_helens(self) -> None:
        """The list of Helens; every ten seconds."""
        up = [node.name for node in self.helens if node.up]
        for node in self.helens:
            names = [name for name in up if name == node.name or not self._cut(node.name, name)]
            node.take(lambda now, effects, node=node, names=names: node.helen.learn_replicas(names, now, effects))  # type: ignore[misc]

    def _cut(self, one: str, other: str) -> bool:
        return one != other and (one in self.separated or other in self.separated)

    def ask(self, node: HelenNode, agent: str, check: str, timeout: float) -> None:
        """Request a check."""
        nonce = f"ask-{len(self.questions) + 1}"
        question = Question(nonce, node.name, agent, check, self._agenda.now + timeout)
        self.questions[nonce] = question
        body = msgspec.json.encode({"agent": agent, "check": check, "args": {"nonce": nonce}, "timeout": timeout})
        event = NetworkRequest("helen.check", timeout, body)
        self._request(node, nonce.encode(), event, lambda answer: self._observer.question_ended(question, node, answer))

    def reload(self, node: HelenNode, agent: str) -> None:
        """Request the reload of an agent."""
        self._serial += 1
        event = NetworkRequest("helen.reload", 5.0, msgspec.json.encode({"agent": agent}))
        self._request(node, b"reload-%d" % self._serial, event, lambda _: None)

    def ended(self, node: HelenNode) -> None:
        """A Helen crashed: the broker answers her pending requests."""
        for routing_id, (life, _) in list(self._waits.items()):
            if routing_id.startswith(node.name.encode() + b"/") and life != node.life:
                self._end(routing_id, RequestError(codes.BACKEND_DIED, "Helen died"))

    def _request(self, node: HelenNode, name: bytes, event: NetworkEvent, then: Callable[[Answer], None]) -> None:
        routing_id = node.name.encode() + b"/" + name
        if not node.up:
            self._agenda.after(self._delay(), then, RequestError(codes.NO_SUCH_SERVICE, "no such service"))
            return
        self._waits[routing_id] = (node.life, then)
        node.request(routing_id, event)

    def reply(self, node: HelenNode, routing_id: bytes, answer: Answer) -> None:
        self._diary.message(node.name, "network", [routing_id, msgspec.json.encode(answer)])
        self._agenda.after(self._delay(), self._end, routing_id, answer)

    def _end(self, routing_id: bytes, answer: Answer) -> None:
        waits = self._waits.pop(routing_id, None)
        if waits is not None:
            waits[1](answer)

    def answer(self, node: HelenNode, ask: Any) -> None:
        """Answer an ask of a Helen."""
        if isinstance(ask, ForwardRequest):
            self._forward(node, ask)
        elif isinstance(ask, SubmitNotification):
            self._agenda.after(self._delay(), self._submit, node, ask, node.life)
        elif isinstance(ask, DeliverNotification):
            self._deliver_directly(node, ask)
        else:
            raise TypeError(f"nobody answers {ask!r}")

    def _forward(self, node: HelenNode, ask: ForwardRequest) -> None:
        life = node.life
        delivered: list[bool] = []

        def deliver(value: Any) -> None:
            if not delivered:
                delivered.append(True)
                node.answer_ask(ask, value, life)

        def answered(answer: Answer) -> None:
            deliver(answer.body if isinstance(answer, RequestReply) else Refusal(answer.code, answer.message))

        _, name, _ = ask.service.split(".", 2)
        sibling = next(one for one in self.helens if one.name == name)
        self._serial += 1
        self._agenda.after(ask.timeout + 1.0, deliver, Refusal(codes.NO_ANSWER, "no answer"))
        if self._cut(node.name, name):
            return
        # The other Helen records the request's id as the ref: the client knows the result by it.
        event = NetworkRequest(ask.service, ask.timeout, bytes(ask.body))
        self._request(sibling, b"forward-%d" % self._serial, event, answered)

    def _submit(self, node: HelenNode, ask: SubmitNotification, life: int) -> None:
        if self.queue_away or node.name in self.separated:
            node.answer_ask(ask, Refusal(codes.NOT_SERVING, "the queue is away"), life)
            return
        # A Helen reaches a queue again that may have her task, unless its broker is away.
        if ask.owner != self.queue and (self.queue == OTHER_QUEUE or not ask.bound):
            node.answer_ask(ask, OtherQueue(self.queue), life)
            return
        key = str(ask.options["key"])
        task = self.tasks.get((node.name, key))
        self._observer.submitted(node, ask, task)
        if task is None:
            after = tuple(ask.options.get("after", ()))
            task = Task(f"t-{len(self.tasks) + 1}", key, ask.method, ask.params, after, ask.owner)
            self.tasks[node.name, key] = self._by_id[task.id] = task
            self._agenda.after(self._rng.random(), self._perform, task)
        else:
            task.submissions += 1
        if self.queue_mute:
            self._agenda.after(SUBMIT_SECONDS, node.answer_ask, ask, Refusal(codes.NO_ANSWER, "no answer"), life)
        else:
            self._agenda.after(self._delay(), node.answer_ask, ask, task.id, life)

    def _deliver_directly(self, node: HelenNode, ask: DeliverNotification) -> None:
        """A webhook that may be slow, or fail a few times."""
        self._observer.delivering(node, ask)
        name = ask.notice["id"]
        failures = self.failures.get(name, 0)
        outcome: str | Refusal = "204"
        if failures < MAX_FAILURES and self._rng.random() < 0.3:
            self.failures[name] = failures + 1
            outcome = Refusal(codes.FAILED, "it answered 500")
        self._agenda.after(
            self._rng.choice((0.01, 1.0, 10.0)) * self._rng.random(), node.answer_ask, ask, outcome, node.life
        )

    def _perform(self, task: Task) -> None:
        """Run a task; one with unfinished dependencies is tried again later."""
        if any(not self._by_id[name].done for name in task.after):
            self._agenda.after(RETRY_SECONDS, self._perform, task)
        elif task.method == RECHECK_METHOD:
            self._recheck(task)
        else:
            if task.method == HEAL_METHOD and self._rng.random() < 0.7:
                (problem,) = msgspec.json.decode(task.params, type=tuple[dict[str, Any]])
                self._health.heal(problem["agent"], problem["check"], self._agenda.now)
            elif task.method not in (HEAL_METHOD, NOTIFY_METHOD):
                raise AssertionError(f"nobody performs {task.method}")
            task.done = True

    def _recheck(self, task: Task) -> None:
        if task.tries >= MAX_TRIES or self.closing:
            task.done = True
            return
        task.tries += 1
        node = self._rng.choice(self.helens)
        name = b"%b.%d" % (task.id.encode(), task.tries)
        event = NetworkTask(task.id, RECHECK_METHOD, task.params)

        def answered(answer: Answer) -> None:
            if isinstance(answer, RequestReply):
                task.done = True
            else:
                self._agenda.after(RETRY_SECONDS, self._perform, task)

        self._request(node, name, event, answered)

    def _delay(self) -> float:
        return self._rng.random() * MAX_DELAY

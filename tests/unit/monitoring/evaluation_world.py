"""An evaluation with a clock that tests move, a real journal and the in-memory store."""

from __future__ import annotations

import json
from typing import Any

from scale0.config import CheckDefinition, ClientConfig, Downtime, Reaction, Silence
from scale0.history.events.columns import EventMetric
from scale0.history.events.journal import Journal, read
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, StoreQuery
from scale0.kernel.errors import Refusal
from scale0.monitoring.helen.core.evaluation import Evaluation, IncomingResult, StoredChecks
from scale0.monitoring.helen.core.notifications import SubmitNotification
from scale0.monitoring.protocol.results import CheckFinding
from scale0.storage.check_rows import ReadCheckStates, ReadIncidents, ReadNotices
from scale0.storage.memory.store import MemoryStore

START = 1_000_000_000.0
PAGE = 7


class World:
    """One Helen's Watch, from turn to turn and over restarts."""

    def __init__(self, **config: Any) -> None:
        self.store = MemoryStore()
        opened = self.store.open()
        self.journal = Journal("helen-1", 1, opened.next_seq, 0)
        self.mono = 100.0
        self.wall = START
        self.labels: dict[str, dict[str, str]] = {}
        self.events: list[dict[str, Any]] = []
        self.submits: list[SubmitNotification] = []
        self.tasks: list[SubmitNotification] = []
        """What the queue took."""
        self.queue_is_up = True
        self.evaluation = Evaluation(StoredChecks())
        if config:
            self.configure(**config)

    @property
    def now(self) -> Now:
        return Now(self.mono, self.wall)

    def configure(
        self,
        checks: tuple[CheckDefinition, ...] = (),
        handlers: tuple[Reaction, ...] = (),
        downtimes: tuple[Downtime, ...] = (),
        silences: tuple[Silence, ...] = (),
    ) -> None:
        """A turn in which the configuration comes."""
        part = ClientConfig(checks=checks, handlers=handlers, downtimes=downtimes, silences=silences)
        effects = Effects()
        self.evaluation.configure(part, self.now, effects)
        self.finish(effects)

    def result(self, state: str, agent: str = "web-1", check: str = "disk", **more: Any) -> None:
        """A turn with one result."""
        effects = Effects()
        self.take(effects, state, agent, check, **more)
        self.finish(effects)

    def take(
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
        answered = IncomingResult(check, finding, "s:1", self.wall - age, scheduled)
        self.evaluation.process_result(agent, labels, answered, self.now, effects)

    def finish(self, effects: Effects) -> None:
        """The end of a turn as the runner does it: tick if it is time, settle, commit, and what was asked for."""
        due = self.evaluation.deadline()
        if due is not None and due <= self.mono:
            self.evaluation.tick(self.now, effects)
        self.evaluation.settle(effects)
        row = self.journal.append(effects.events, self.now)
        if row is not None:
            self.events += read(row.body)
        self.store.commit([*effects.writes, *([] if row is None else [row])])
        later = Effects()
        for then in effects.deferred:
            then(self.now, later)
        for ask in effects.asks:
            self._answer(ask, later)
        if effects.deferred or effects.asks:
            self.finish(later)

    def _answer(self, ask: Any, effects: Effects) -> None:
        if isinstance(ask, StoreQuery):
            ask.then(self.store.read(ask.ask), self.now, effects)
            return
        assert isinstance(ask, SubmitNotification)
        self.submits.append(ask)
        if not self.queue_is_up:
            ask.then(Refusal(503, "not now"), self.now, effects)
            return
        keys = [task.options["key"] for task in self.tasks]
        if ask.options["key"] not in keys:
            self.tasks.append(ask)
            keys.append(ask.options["key"])
        ask.then(f"t-{keys.index(ask.options['key'])}", self.now, effects)

    def wait(self, seconds: float, wall: float | None = None) -> None:
        """Time passes; Watch wakes up whenever it wants to."""
        ends = self.mono + seconds
        drift = (seconds if wall is None else wall) - seconds
        self.wall += drift
        for _ in range(1_000):
            due = self.evaluation.deadline()
            when = ends if due is None else min(ends, max(self.mono, due))
            self.wall += when - self.mono
            self.mono = when
            self.finish(Effects())
            due = self.evaluation.deadline()
            if when >= ends and (due is None or due > ends):
                return
        raise AssertionError("Watch never rests")

    def restart(self) -> None:
        """Killed, and started again from what was committed."""
        states: list[Any] = []
        while True:
            agent, check = (states[-1].agent, states[-1].check) if states else ("", "")
            page: Any = self.store.read(ReadCheckStates(agent, check, PAGE))
            states += page
            if len(page) < PAGE:
                break
        incidents: Any = self.store.read(ReadIncidents(False, None, "", 1_000))
        notices: Any = self.store.read(ReadNotices("", 1_000))
        self.evaluation = Evaluation(StoredChecks(tuple(states), tuple(incidents), tuple(notices)))
        self.finish(Effects())

    def kinds(self, *kinds: str) -> list[dict[str, Any]]:
        """The recorded events of these kinds, `data` read."""
        return [
            {**event, "data": json.loads(event["data"]) if event["data"] else {}}
            for event in self.events
            if event["kind"] in kinds
        ]

    def told(self) -> list[tuple[str, str]]:
        """What handlers were told: each task's handler and state."""
        return [(said["handler"], said["state"]) for said in self.notices()]

    def notices(self) -> list[dict[str, Any]]:
        """The notices inside the tasks that perform them."""
        params = [json.loads(task.params) for task in self.tasks if task.method == "helen.notify"]
        return [one["notice"] for one in params]

    def check(self, agent: str = "web-1", check: str = "disk") -> dict[str, Any]:
        """How a check stands in the view."""
        (item,) = self.evaluation.checks({"agent": agent, "check": check})["items"]
        found: dict[str, Any] = item
        return found

"""Records the inputs of a simulated Helen's evaluation, so that an oracle can compute what must follow.

The evaluation gets exactly the calls that it would get without a recorder. Each call that may change a state is
recorded before it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import msgspec

from scale0.config import ClientConfig
from scale0.history.events.journal import JournalRow
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.monitoring.helen.core.agent_bundles import OpenedEvaluation
from scale0.monitoring.helen.core.evaluation import Evaluation, IncomingResult


class Configured(msgspec.Struct, frozen=True):
    part: ClientConfig


class Known(msgspec.Struct, frozen=True):
    """The schedule of an agent with these labels was requested."""

    agent: str
    labels: dict[str, str]


class Taken(msgspec.Struct, frozen=True):
    """A result was evaluated."""

    agent: str
    labels: dict[str, str]
    answered: IncomingResult


class Ticked(msgspec.Struct, frozen=True):
    """A timer was due."""

    undecided: frozenset[str]
    """Agents that another Helen may have."""
    unknown: frozenset[str] = frozenset()
    """Agents of which she decides nothing, because she has just started and they are not connected to her."""


class HandedOver(msgspec.Struct, frozen=True):
    """An agent moved to another Helen."""

    agent: str


class TakenOver(msgspec.Struct, frozen=True):
    """Another Helen's bundle of an agent was merged."""

    agent: str
    labels: dict[str, str]


class DoubtEnded(msgspec.Struct, frozen=True):
    """These Helens answered for an agent; None: no other Helen is waited for any more."""

    agent: str
    helens: frozenset[str] | None


Note = Configured | Known | Taken | Ticked | HandedOver | TakenOver | DoubtEnded


class StoredTurn(msgspec.Struct, frozen=True):
    """The inputs and the outputs of one turn, which is stored as a whole or not at all."""

    virtual: float
    wall: float
    notes: tuple[Note, ...]
    events: tuple[Any, ...]
    writes: tuple[Any, ...]
    row: JournalRow | None


class EvaluationRecorder:
    """The evaluation, with each call recorded."""

    def __init__(self, evaluation: Evaluation, notes: list[Note], is_unknown: Callable[[str], bool]) -> None:
        self.evaluation = evaluation
        self.notes = notes
        self._is_unknown = is_unknown
        """True: this agent is not connected, and the process has just started."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.evaluation, name)

    def configure(self, part: ClientConfig, now: Now, effects: Effects) -> None:
        self.notes.append(Configured(part))
        self.evaluation.configure(part, now, effects)

    def schedule_for(self, agent: str, labels: dict[str, str]) -> bytes:
        self.notes.append(Known(agent, labels))
        return self.evaluation.schedule_for(agent, labels)

    def process_result(
        self, agent: str, labels: dict[str, str], answered: IncomingResult, now: Now, effects: Effects
    ) -> None:
        self.notes.append(Taken(agent, labels, answered))
        self.evaluation.process_result(agent, labels, answered, now, effects)

    def tick(self, now: Now, effects: Effects) -> None:
        decides = self.evaluation.decides
        undecided = frozenset(agent for agent in self.evaluation.agent_names if not decides(agent, now))
        self.notes.append(Ticked(undecided, frozenset(filter(self._is_unknown, self.evaluation.agent_names))))
        self.evaluation.tick(now, effects)

    def selects(self, agent: str, labels: dict[str, str], check: str) -> Any:
        self.notes.append(Known(agent, labels))
        return self.evaluation.selects(agent, labels, check)

    def end_doubt(self, agent: str, helens: Collection[str] | None, now: Now, effects: Effects) -> None:
        self.notes.append(DoubtEnded(agent, None if helens is None else frozenset(helens)))
        self.evaluation.end_doubt(agent, helens, now, effects)

    def hand_over(self, agent: str, now: Now, effects: Effects) -> Any:
        self.notes.append(HandedOver(agent))
        return self.evaluation.hand_over(agent, now, effects)

    def take_over(
        self, agent: str, labels: dict[str, str], unpacked: OpenedEvaluation, now: Now, effects: Effects
    ) -> None:
        self.notes.append(TakenOver(agent, labels))
        self.evaluation.take_over(agent, labels, unpacked, now, effects)

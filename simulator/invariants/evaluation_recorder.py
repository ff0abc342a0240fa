"""What a simulated Helen's Watch is told, written down, so that an oracle can work out what must follow.

Lives here: a note of each kind of call, and `WatchSpy`, which takes them. Never here: a turn, or a judgement.
Invariant: Watch hears exactly what it would hear without a spy, and each call that may move a state is noted before it
is made.
"""

from __future__ import annotations

from typing import Any

import msgspec

from scale0.config import ClientConfig
from scale0.history.events.journal import JournalRow
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.monitoring.helen.core.agent_bundles import OpenedEvaluation
from scale0.monitoring.helen.core.evaluation import Evaluation, IncomingResult


class Configured(msgspec.Struct, frozen=True):
    """Watch was given a configuration."""

    part: ClientConfig


class Known(msgspec.Struct, frozen=True):
    """Watch was asked for the schedule of an agent with these labels."""

    agent: str
    labels: dict[str, str]


class Taken(msgspec.Struct, frozen=True):
    """Watch was given a result."""

    agent: str
    labels: dict[str, str]
    answered: IncomingResult


class Ticked(msgspec.Struct, frozen=True):
    """Watch was told the time."""


class HandedOver(msgspec.Struct, frozen=True):
    """Watch has let go of an agent: another Helen has it."""

    agent: str


class TakenOver(msgspec.Struct, frozen=True):
    """Watch was given what another Helen had of an agent."""

    agent: str
    labels: dict[str, str]


Note = Configured | Known | Taken | Ticked | HandedOver | TakenOver


class StoredTurn(msgspec.Struct, frozen=True):
    """What Watch was told in one turn, and what was decided: stored as a whole, or not at all."""

    virtual: float
    wall: float
    notes: tuple[Note, ...]
    events: tuple[Any, ...]
    writes: tuple[Any, ...]
    row: JournalRow | None


class WatchSpy:
    """Watch, with somebody who writes down what it is told."""

    def __init__(self, watch: Evaluation, notes: list[Note]) -> None:
        self.watch = watch
        self.notes = notes

    def __getattr__(self, name: str) -> Any:
        return getattr(self.watch, name)

    def configure(self, part: ClientConfig, now: Now, effects: Effects) -> None:
        """Noted."""
        self.notes.append(Configured(part))
        self.watch.configure(part, now, effects)

    def schedule_for(self, agent: str, labels: dict[str, str]) -> bytes:
        """Noted."""
        self.notes.append(Known(agent, labels))
        return self.watch.schedule_for(agent, labels)

    def process_result(
        self, agent: str, labels: dict[str, str], answered: IncomingResult, now: Now, effects: Effects
    ) -> None:
        """Noted."""
        self.notes.append(Taken(agent, labels, answered))
        self.watch.process_result(agent, labels, answered, now, effects)

    def tick(self, now: Now, effects: Effects) -> None:
        """Noted."""
        self.notes.append(Ticked())
        self.watch.tick(now, effects)

    def selects(self, agent: str, labels: dict[str, str], check: str) -> Any:
        """Noted."""
        self.notes.append(Known(agent, labels))
        return self.watch.selects(agent, labels, check)

    def hand_over(self, agent: str, now: Now, effects: Effects) -> Any:
        """Noted."""
        self.notes.append(HandedOver(agent))
        return self.watch.hand_over(agent, now, effects)

    def take_over(
        self, agent: str, labels: dict[str, str], unpacked: OpenedEvaluation, now: Now, effects: Effects
    ) -> None:
        """Noted."""
        self.notes.append(TakenOver(agent, labels))
        self.watch.take_over(agent, labels, unpacked, now, effects)

"""Agents that moved: what was handed to another Helen, and what another Helen handed over.

A bundle that went is kept until the other Helen confirms it, and is taken back if she does not. A bundle counts once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from scale0.history.events.checks import AgentMoved
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.errors import StoreError
from scale0.monitoring.helen.core.agent_bundles import AgentBundle, OpenedBundle, bundle_of, open_bundle
from scale0.monitoring.helen.core.agents import Agent
from scale0.monitoring.helen.core.schedules import Schedules
from scale0.monitoring.helen.core.state import HelenState
from scale0.storage.check_rows import DropAgent, PutAgent

RETURN_SECONDS: Final = 120.0
"""What nobody confirmed for so long is ours again: several times as long as it takes to offer it."""
KEPT_SECONDS: Final = 3_600.0
"""How long a bundle is kept after it was handed over: should the other Helen be gone, it is better than nothing."""
MAX_MOVED: Final = 20_000
"""Bundles that are kept; more, and those that were confirmed first go."""

Received = tuple[str, AgentBundle]
"""From whom, and what."""


class MigratedAgent(msgspec.Struct):
    """An agent that another Helen has."""

    to: str
    at: float
    """When it went, by the wall clock."""
    bundle: AgentBundle
    confirmed: bool = False
    """She has said that she has it."""


class _Row(msgspec.Struct, frozen=True):
    moved: MigratedAgent


_to_json: Final = msgspec.json.Encoder().encode
_from_json: Final = msgspec.json.Decoder(MigratedAgent).decode


class MigratedAgents:
    """All that went."""

    __slots__ = ("_all", "_confirmed")

    def __init__(self) -> None:
        self._all: dict[str, MigratedAgent] = {}
        self._confirmed: dict[str, None] = {}
        """In the order in which they were."""

    def __len__(self) -> int:
        return len(self._all)

    def load(self, rows: Mapping[str, bytes]) -> Iterable[str]:
        """What the store remembers; who they are."""
        for identity, body in rows.items():
            try:
                self._all[identity] = _from_json(body)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise StoreError(f"the row of agent {identity}, who moved, is damaged: {error}") from error
        self._confirmed = {identity: None for identity, moved in self._all.items() if moved.confirmed}
        return self._all

    def get(self, identity: str) -> MigratedAgent | None:
        """What went, if it did."""
        return self._all.get(identity)

    def offered(self) -> list[str]:
        """Who went, and nobody has said that they arrived."""
        return [identity for identity, moved in self._all.items() if not moved.confirmed]

    def put(self, identity: str, moved: MigratedAgent, effects: Effects) -> None:
        """It goes; its row is this from here on."""
        self._confirmed.pop(identity, None)
        self._all[identity] = moved
        self._write(identity, moved, effects)

    def confirm(self, identity: str, effects: Effects) -> None:
        """It has arrived."""
        moved = self._all[identity]
        if moved.confirmed:
            return
        moved.confirmed = True
        self._confirmed[identity] = None
        self._write(identity, moved, effects)
        if len(self._all) > MAX_MOVED:
            self.drop(next(iter(self._confirmed)), effects)

    def pop(self, identity: str) -> MigratedAgent | None:
        """It is here again: whoever takes it writes its row."""
        self._confirmed.pop(identity, None)
        return self._all.pop(identity, None)

    def drop(self, identity: str, effects: Effects) -> None:
        """Nobody needs it any more."""
        if self.pop(identity) is not None:
            effects.write(DropAgent(identity))

    def _write(self, identity: str, moved: MigratedAgent, effects: Effects) -> None:
        effects.write(PutAgent(identity, _to_json(_Row(moved))))


class AgentBundles:
    """Gives away, takes in, and remembers what it gave."""

    __slots__ = ("_number", "_schedules", "_state", "_suspected_duplicates", "moved")

    def __init__(self, state: HelenState, schedules: Schedules) -> None:
        self._state = state
        self._schedules = schedules
        self._number = 0
        self._suspected_duplicates: dict[str, Agent] = {}
        """Agents that were pushed out by a connection elsewhere: perhaps they are on two machines."""
        self.moved = MigratedAgents()

    def start(self, moved: dict[str, bytes], now: Now) -> None:
        """What the store remembers of those who went."""
        for identity in self.moved.load(moved):
            self._arm_confirmation(identity, now)

    def export(self, identity: str, to: str, now: Now, effects: Effects) -> AgentBundle | None:
        """An agent is another Helen's from here on: all that is known of it, or what she was given before."""
        state = self._state
        agent = state.agents.get(identity)
        if agent is None:
            moved = self.moved.get(identity)
            return None if moved is None else moved.bundle
        self.import_all(identity, (), now, effects)
        state.agents.release(agent)
        evaluation, spools = state.evaluation.hand_over(identity, now, effects), state.spools.hand_over(identity, now)
        if not agent.protocol and evaluation is None and not spools:
            return None
        id_ = f"{state.settings.identity}@{round(now.wall * 1_000_000)}.{self._number}"
        self._number += 1
        bundle = bundle_of(agent, id_, spools, evaluation)
        self.moved.put(identity, MigratedAgent(to, now.wall, bundle), effects)
        self._arm_confirmation(identity, now)
        state.count("handovers_given")
        return bundle

    def note_possible_duplicate(self, agent: Agent, to: str, now: Now, effects: Effects) -> None:
        """An agent that is connected here came to another Helen: if that happens again and again, there are two."""
        if agent.take_over(to, now, effects):
            self._state.count("agents_doubled")
        self._suspected_duplicates[agent.identity] = agent

    def import_all(self, identity: str, received: Sequence[Received], now: Now, effects: Effects) -> bool:
        """Take in what others had, and what went from here itself; True: something of it was new."""
        own = self.moved.pop(identity)
        if own is not None:
            received = [*received, (self._state.settings.identity, own.bundle)]
        opened: list[tuple[str, OpenedBundle]] = []
        for name, bundle in received:
            try:
                opened.append((name, open_bundle(bundle, identity)))
            except ValueError:
                self._state.count("handovers_not_understood")
        # What somebody has gone on from is older than what she made of it; of the rest the newest counts first, so that
        # an older one can open nothing that is over.
        passed = {id_ for _, each in opened for id_ in each.stored.merged}
        opened.sort(key=lambda item: item[1].newest, reverse=True)
        # A list, not any(): each of them counts.
        new = [self._take(identity, each, name, now, effects) for name, each in opened if each.id not in passed]
        agent = self._state.agents.get(identity)
        if agent is not None and (new or own is not None):
            agent.inherit(self._suspected_duplicates.pop(identity, None))
            self._state.agents.change(agent)
        return any(new) or own is not None

    def _take(self, identity: str, opened: OpenedBundle, name: str, now: Now, effects: Effects) -> bool:
        """Join what a Helen had of an agent to what is known here."""
        state = self._state
        agent = state.agents.enter(identity)
        if agent is None or opened.id in agent.merged:
            return False
        labels = agent.labels
        agent.absorb(opened.stored, opened.id, now)
        state.spools.take_over(identity, opened.spools, now)
        state.evaluation.take_over(identity, agent.labels, opened.evaluation, now, effects)
        if name != state.settings.identity:
            state.count("handovers_taken")
            effects.record(AgentMoved(identity, name, len(opened.evaluation.states), len(opened.evaluation.incidents)))
        if agent.connection is not None and agent.labels != labels:
            self._schedules.push(agent.connection, now, effects)
        return True

    def _arm_confirmation(self, identity: str, now: Now) -> None:
        self._state.timers.add((self._check_confirmation, identity), now.mono + RETURN_SECONDS)

    def _check_confirmation(self, identity: str, now: Now, effects: Effects) -> None:
        """Did somebody say that it arrived? Then it is forgotten in its time; if not, it is ours."""
        moved = self.moved.get(identity)
        age_seconds = 0.0 if moved is None else max(0.0, now.wall - moved.at)
        if moved is None:
            self._suspected_duplicates.pop(identity, None)
        elif moved.confirmed and age_seconds >= KEPT_SECONDS:
            self.moved.drop(identity, effects)
            self._suspected_duplicates.pop(identity, None)
        elif not moved.confirmed and age_seconds >= RETURN_SECONDS:
            self._state.count("handovers_returned")
            self.import_all(identity, (), now, effects)
        else:
            self._arm_confirmation(identity, now)

    def forget(self, identity: str, effects: Effects) -> bool:
        """An agent is no more; True: something was kept of it."""
        stored = self.moved.get(identity) is not None
        self.moved.drop(identity, effects)
        return stored

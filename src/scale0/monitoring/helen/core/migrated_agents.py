"""Agents that moved to another Helen, and the import and export of their bundles.

An exported bundle is kept until the other Helen confirms it, and is imported again if she does not. A bundle counts
once.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from scale0.history.events.checks import AgentMoved
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.errors import StoreError
from scale0.monitoring.helen.core.agent_bundles import AgentBundle, OpenedBundle, bundle_of, open_bundle
from scale0.monitoring.helen.core.agents import Agent
from scale0.monitoring.helen.core.schedule_push import Schedules
from scale0.monitoring.helen.core.state import HelenState
from scale0.storage.check_rows import DropAgent, PutAgent

RETURN_SECONDS: Final = 120.0
"""An exported bundle that nobody confirmed for so long is imported again."""
DOUBT_SECONDS: Final = 600.0
"""How long a Helen waits for another one before she closes an incident that both may have, and notifies of its end."""
KEPT_SECONDS: Final = 3_600.0
"""How long a confirmed bundle is kept, in case the other Helen is lost."""
MAX_MOVED: Final = 20_000
"""Bundles that are kept; beyond it, the oldest confirmed ones are dropped."""

Received = tuple[str, AgentBundle]
"""The Helen who sent it, and the bundle."""


class MigratedAgent(msgspec.Struct):
    """An agent that moved to another Helen."""

    to: str
    at: float
    """When it moved, wall time."""
    bundle: AgentBundle
    confirmed: bool = False
    """The other Helen has confirmed that she has it."""


class _Row(msgspec.Struct, frozen=True):
    moved: MigratedAgent


_to_json: Final = msgspec.json.Encoder().encode
_from_json: Final = msgspec.json.Decoder(MigratedAgent).decode


class MigratedAgents:
    def __init__(self) -> None:
        self._all: dict[str, MigratedAgent] = {}
        self._confirmed: dict[str, None] = {}
        """In order of confirmation."""

    def __len__(self) -> int:
        return len(self._all)

    def load(self, rows: Mapping[str, bytes]) -> Iterable[str]:
        """Load the store's rows; returns the identities."""
        for identity, body in rows.items():
            try:
                self._all[identity] = _from_json(body)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise StoreError(f"the row of migrated agent {identity} is damaged: {error}") from error
        self._confirmed = {identity: None for identity, moved in self._all.items() if moved.confirmed}
        return self._all

    def get(self, identity: str) -> MigratedAgent | None:
        return self._all.get(identity)

    def offered(self) -> list[str]:
        """Agents that moved and that nobody has confirmed."""
        return [identity for identity, moved in self._all.items() if not moved.confirmed]

    def put(self, identity: str, moved: MigratedAgent, effects: Effects) -> None:
        """Keep a bundle; it replaces the agent's row."""
        self._confirmed.pop(identity, None)
        self._all[identity] = moved
        self._write(identity, moved, effects)

    def confirm(self, identity: str, effects: Effects) -> None:
        moved = self._all[identity]
        if moved.confirmed:
            return
        moved.confirmed = True
        self._confirmed[identity] = None
        self._write(identity, moved, effects)
        if len(self._all) > MAX_MOVED:
            self.drop(next(iter(self._confirmed)), effects)

    def pop(self, identity: str) -> MigratedAgent | None:
        """Remove a bundle; the caller writes the agent's row."""
        self._confirmed.pop(identity, None)
        return self._all.pop(identity, None)

    def drop(self, identity: str, effects: Effects) -> None:
        if self.pop(identity) is not None:
            effects.write(DropAgent(identity))

    def _write(self, identity: str, moved: MigratedAgent, effects: Effects) -> None:
        effects.write(PutAgent(identity, _to_json(_Row(moved))))


class AgentBundles:
    """Imports and exports the bundles of agents."""

    def __init__(self, state: HelenState, schedules: Schedules) -> None:
        self._state = state
        self._schedules = schedules
        self._number = 0
        self._suspected_duplicates: dict[str, Agent] = {}
        """Agents that were disconnected because they connected to another Helen: two hosts may use one certificate."""
        self.moved = MigratedAgents()
        self._doubts: dict[str, float] = {}
        """Until when the recoveries of an agent are in doubt, monotonic time."""

    def start(self, moved: dict[str, bytes], now: Now) -> None:
        for identity in self.moved.load(moved):
            self._arm_confirmation(identity, now)
        for identity in self._state.evaluation.doubtful_agents():
            self._arm_doubt(identity, now)

    def export(self, identity: str, to: str, now: Now, effects: Effects) -> AgentBundle | None:
        """The agent moves to another Helen: everything that is known of it, or the bundle that was exported before."""
        state = self._state
        agent = state.agents.get(identity)
        if agent is None:
            moved = self.moved.get(identity)
            return None if moved is None else moved.bundle
        self.import_all(identity, (), (), now, effects)
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
        """An agent of ours connected to another Helen: if that repeats, two hosts use one certificate."""
        if agent.take_over(to, now, effects):
            self._state.count("agents_doubled")
        self._suspected_duplicates[agent.identity] = agent

    def import_late(self, identity: str, received: Sequence[Received], name: str, now: Now, effects: Effects) -> None:
        """The answer of a Helen for whom an agent did not wait; the bundle that was exported to her stays exported if
        she has nothing."""
        if received:
            self.import_all(identity, received, (name,), now, effects)
        else:
            self._state.evaluation.end_doubt(identity, (name,), now, effects)

    def import_all(
        self, identity: str, received: Sequence[Received], answered: Collection[str], now: Now, effects: Effects
    ) -> bool:
        """Import the bundles of other Helens and a bundle that was exported from here; True: something was new.

        If the Helen it was exported to has not answered, she may have closed its incidents and notified of their end:
        that is in doubt until she answers, or for DOUBT_SECONDS.
        """
        own = self.moved.pop(identity)
        if own is not None:
            received = [*received, (self._state.settings.identity, own.bundle)]
        opened: list[tuple[str, OpenedBundle]] = []
        for name, bundle in received:
            try:
                opened.append((name, open_bundle(bundle, identity)))
            except ValueError:
                self._state.count("handovers_not_understood")
        # A bundle that another one was made from is outdated. Of the rest the newest is imported first, so that an
        # older one cannot reopen a closed incident.
        if own is not None and own.to not in answered:
            for _, each in opened:
                if each.id == own.bundle.id:
                    each.evaluation.doubt(own.to)
        passed = {id_ for _, each in opened for id_ in each.stored.merged}
        opened.sort(key=lambda item: item[1].newest, reverse=True)
        # A list, not any(): all of them must be imported.
        new = [self._take(identity, each, name, now, effects) for name, each in opened if each.id not in passed]
        self._state.evaluation.end_doubt(identity, answered, now, effects)
        agent = self._state.agents.get(identity)
        if agent is not None and (new or own is not None):
            agent.inherit(self._suspected_duplicates.pop(identity, None))
            self._state.agents.change(agent)
        return any(new) or own is not None

    def _take(self, identity: str, opened: OpenedBundle, name: str, now: Now, effects: Effects) -> bool:
        """Merge one bundle into what is known here."""
        state = self._state
        agent = state.agents.enter(identity)
        if agent is None or opened.id in agent.merged:
            return False
        labels = agent.labels
        opened.evaluation.trust(state.settings.identity)
        agent.absorb(opened.stored, opened.id, now)
        state.spools.take_over(identity, opened.spools, now)
        state.evaluation.take_over(identity, agent.labels, opened.evaluation, now, effects)
        if any(one.doubtful for one in opened.evaluation.states.values()):
            self._arm_doubt(identity, now)
        if name != state.settings.identity:
            state.count("handovers_taken")
            effects.record(AgentMoved(identity, name, len(opened.evaluation.states), len(opened.evaluation.incidents)))
        if agent.connection is not None and agent.labels != labels:
            self._schedules.push(agent.connection, now, effects)
        return True

    def _arm_doubt(self, identity: str, now: Now) -> None:
        self._doubts[identity] = now.mono + DOUBT_SECONDS
        self._state.timers.add((self._end_doubt, identity), now.mono + DOUBT_SECONDS)

    def doubts(self) -> list[tuple[str, set[str]]]:
        """Agents whose recoveries are in doubt, and the Helens who can tell."""
        found = [(identity, self._state.evaluation.doubted_helens(identity)) for identity in self._doubts]
        self._doubts = {identity: self._doubts[identity] for identity, helens in found if helens}
        return found

    def _end_doubt(self, identity: str, now: Now, effects: Effects) -> None:
        if now.mono >= self._doubts.get(identity, math.inf):
            del self._doubts[identity]
            self._state.evaluation.end_doubt(identity, None, now, effects)

    def _arm_confirmation(self, identity: str, now: Now) -> None:
        self._state.timers.add((self._check_confirmation, identity), now.mono + RETURN_SECONDS)

    def _check_confirmation(self, identity: str, now: Now, effects: Effects) -> None:
        """A confirmed bundle is dropped in time; one that nobody confirmed is imported again."""
        moved = self.moved.get(identity)
        age_seconds = 0.0 if moved is None else max(0.0, now.wall - moved.at)
        if moved is None:
            self._suspected_duplicates.pop(identity, None)
        elif moved.confirmed and age_seconds >= KEPT_SECONDS:
            self.moved.drop(identity, effects)
            self._suspected_duplicates.pop(identity, None)
        elif not moved.confirmed and age_seconds >= RETURN_SECONDS:
            self._state.count("handovers_returned")
            self.import_all(identity, (), (), now, effects)
        else:
            self._arm_confirmation(identity, now)

    def forget(self, identity: str, effects: Effects) -> bool:
        """Drop what is kept of an agent; True: there was something."""
        stored = self.moved.get(identity) is not None
        self.moved.drop(identity, effects)
        return stored

"""What one Helen has of an agent, given away whole and taken in whole.

Lives here: `AgentBundles`: making a bundle of an agent, joining one to what is known, and the bundles that went. Never
here: asking, or answering, another Helen (`helen_handover`). Invariants: what is given away is kept until somebody says
that it arrived, and is ours again if nobody does; a bundle counts once, and not at all where what was made of it is
known.
"""

from __future__ import annotations

from collections.abc import Sequence

from scale0.history.events.checks import AgentMoved
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.monitoring.helen.core.agents import Agent
from scale0.monitoring.helen.core.migrated_agents import (
    KEPT_SECONDS,
    RETURN_SECONDS,
    AgentBundle,
    MigratedAgent,
    MigratedAgents,
    OpenedBundle,
    bundle_of,
    open_bundle,
)
from scale0.monitoring.helen.core.schedules import Schedules
from scale0.monitoring.helen.core.state import HelenState

Received = tuple[str, AgentBundle]
"""From whom, and what."""


class AgentBundles:
    """Gives away, takes in, and remembers what it gave."""

    __slots__ = ("_doubted", "_number", "_schedules", "_state", "moved")

    def __init__(self, state: HelenState, schedules: Schedules) -> None:
        self._state = state
        self._schedules = schedules
        self._number = 0
        self._doubted: dict[str, Agent] = {}
        """Agents that were pushed out by a connection elsewhere: perhaps they are on two machines."""
        self.moved = MigratedAgents()

    def start(self, moved: dict[str, bytes], now: Now) -> None:
        """What the store remembers of those who went."""
        for identity in self.moved.load(moved):
            self._watch_over(identity, now)

    def give(self, identity: str, to: str, now: Now, step: Effects) -> AgentBundle | None:
        """An agent is another Helen's from here on: all that is known of it, or what she was given before."""
        state = self._state
        agent = state.agents.get(identity)
        if agent is None:
            moved = self.moved.get(identity)
            return None if moved is None else moved.bundle
        self.take_all(identity, (), now, step)
        state.agents.release(agent)
        watch, spools = state.watch.hand_over(identity, now, step), state.spools.hand_over(identity, now)
        if not agent.protocol and watch is None and not spools:
            return None
        id_ = f"{state.settings.identity}@{round(now.wall * 1_000_000)}.{self._number}"
        self._number += 1
        bundle = bundle_of(agent, id_, spools, watch)
        self.moved.put(identity, MigratedAgent(to, now.wall, bundle), step)
        self._watch_over(identity, now)
        state.count("handovers_given")
        return bundle

    def doubt(self, agent: Agent, to: str, now: Now, step: Effects) -> None:
        """An agent that is connected here came to another Helen: if that happens again and again, there are two."""
        if agent.take_over(to, now, step):
            self._state.count("agents_doubled")
        self._doubted[agent.identity] = agent

    def take_all(self, identity: str, received: Sequence[Received], now: Now, step: Effects) -> bool:
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
        passed = {id_ for _, each in opened for id_ in each.kept.merged}
        opened.sort(key=lambda item: item[1].newest, reverse=True)
        # A list, not any(): each of them counts.
        new = [self._take(identity, each, name, now, step) for name, each in opened if each.id not in passed]
        agent = self._state.agents.get(identity)
        if agent is not None and (new or own is not None):
            agent.inherit(self._doubted.pop(identity, None))
            self._state.agents.change(agent)
        return any(new) or own is not None

    def _take(self, identity: str, opened: OpenedBundle, name: str, now: Now, step: Effects) -> bool:
        """Join what a Helen had of an agent to what is known here."""
        state = self._state
        agent = state.agents.enter(identity)
        if agent is None or opened.id in agent.merged:
            return False
        labels = agent.labels
        agent.absorb(opened.kept, opened.id, now)
        state.spools.take_over(identity, opened.spools, now)
        state.watch.take_over(identity, agent.labels, opened.watch, now, step)
        if name != state.settings.identity:
            state.count("handovers_taken")
            step.record(AgentMoved(identity, name, len(opened.watch.states), len(opened.watch.incidents)))
        if agent.line is not None and agent.labels != labels:
            self._schedules.push(agent.line, now, step)
        return True

    def _watch_over(self, identity: str, now: Now) -> None:
        self._state.timers.add((self._look_after, identity), now.mono + RETURN_SECONDS)

    def _look_after(self, identity: str, now: Now, step: Effects) -> None:
        """Did somebody say that it arrived? Then it is forgotten in its time; if not, it is ours."""
        moved = self.moved.get(identity)
        age_seconds = 0.0 if moved is None else max(0.0, now.wall - moved.at)
        if moved is None:
            self._doubted.pop(identity, None)
        elif moved.confirmed and age_seconds >= KEPT_SECONDS:
            self.moved.drop(identity, step)
            self._doubted.pop(identity, None)
        elif not moved.confirmed and age_seconds >= RETURN_SECONDS:
            self._state.count("handovers_returned")
            self.take_all(identity, (), now, step)
        else:
            self._watch_over(identity, now)

    def forget(self, identity: str, step: Effects) -> bool:
        """An agent is no more; True: something was kept of it."""
        kept = self.moved.get(identity) is not None
        self.moved.drop(identity, step)
        return kept

"""How well the simulated machines are: what their checks find.

Lives here: the weather of each check on each machine. Never here: what anybody makes of it. Invariant: what one check
finds changes no throw of another.
"""

from __future__ import annotations

import random
from typing import Final, Literal

from scale0.monitoring.protocol.results import State

Mood = Literal["well", "ill", "torn"]
MOODS: Final[tuple[tuple[Mood, float], ...]] = (("well", 60.0), ("ill", 25.0), ("torn", 40.0))
"""What a check may be like for a while, and how many seconds that lasts on average."""
WORSE: Final[tuple[State, ...]] = ("critical", "critical", "warning", "unknown")


class _Check:
    """One check on one machine."""

    __slots__ = ("dice", "mood", "until")

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.mood: Mood = "well"
        self.until = dice.expovariate(1 / 60.0)

    def look(self, now: float) -> Mood:
        while self.until <= now:
            self.mood, seconds = self.dice.choice(MOODS)
            self.until += self.dice.expovariate(1 / seconds)
        return self.mood


class Health:
    """All checks of one world."""

    __slots__ = ("_checks", "_seed", "healed")

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._checks: dict[tuple[str, str], _Check] = {}
        self.healed = 0
        """How often a task made something well."""

    def _find(self, agent: str, check: str) -> _Check:
        found = self._checks.get((agent, check))
        if found is None:
            dice = random.Random(f"scale0 {self._seed} health {agent} {check}")
            self._checks[agent, check] = found = _Check(dice)
        return found

    def find(self, agent: str, check: str, now: float) -> tuple[State, float]:
        """What it finds now: the agent's own word, and a metric that may say otherwise."""
        one = self._find(agent, check)
        mood = one.look(now)
        bad = mood == "ill" or (mood == "torn" and one.dice.random() < 0.5)
        value = one.dice.uniform(50.0, 100.0) if bad else one.dice.uniform(0.0, 55.0)
        return (one.dice.choice(WORSE) if bad else "ok"), round(value, 3)

    def heal(self, agent: str, check: str, now: float) -> None:
        """A task has done something about it."""
        one = self._find(agent, check)
        one.look(now)
        one.mood = "well"
        self.healed += 1

    @staticmethod
    def seconds(chance: random.Random) -> float:
        """How long a run takes; some take longer than anybody waits."""
        return chance.expovariate(20.0) if chance.random() < 0.97 else chance.uniform(1.0, 40.0)

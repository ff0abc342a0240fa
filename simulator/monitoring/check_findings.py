"""The health of simulated machines: what their checks find.

Each check has its own random numbers: what one finds changes no other.
"""

from __future__ import annotations

import random
from typing import Final, Literal

from scale0.monitoring.protocol.results import State

Mood = Literal["well", "ill", "torn"]
MOODS: Final[tuple[tuple[Mood, float], ...]] = (("well", 60.0), ("ill", 25.0), ("torn", 40.0))
"""The health of a check, and its mean duration in seconds."""
WORSE: Final[tuple[State, ...]] = ("critical", "critical", "warning", "unknown")


class _Check:
    __slots__ = ("mood", "rng_of", "until")

    def __init__(self, rng: random.Random) -> None:
        self.rng_of = rng
        self.mood: Mood = "well"
        self.until = rng.expovariate(1 / 60.0)

    def update(self, now: float) -> Mood:
        while self.until <= now:
            self.mood, seconds = self.rng_of.choice(MOODS)
            self.until += self.rng_of.expovariate(1 / seconds)
        return self.mood


class Health:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._checks: dict[tuple[str, str], _Check] = {}
        self.healed = 0
        """How often a task repaired something."""

    def _find(self, agent: str, check: str) -> _Check:
        found = self._checks.get((agent, check))
        if found is None:
            rng = random.Random(f"scale0 {self._seed} health {agent} {check}")
            self._checks[agent, check] = found = _Check(rng)
        return found

    def find(self, agent: str, check: str, now: float) -> tuple[State, float]:
        """The current finding: the agent's state, and a metric whose thresholds may give another state."""
        one = self._find(agent, check)
        mood = one.update(now)
        bad = mood == "ill" or (mood == "torn" and one.rng_of.random() < 0.5)
        value = one.rng_of.uniform(50.0, 100.0) if bad else one.rng_of.uniform(0.0, 55.0)
        return (one.rng_of.choice(WORSE) if bad else "ok"), round(value, 3)

    def heal(self, agent: str, check: str, now: float) -> None:
        """A task repaired it."""
        one = self._find(agent, check)
        one.update(now)
        one.mood = "well"
        self.healed += 1

    @staticmethod
    def seconds(rng: random.Random) -> float:
        """The duration of a run; some take longer than their timeout."""
        return rng.expovariate(20.0) if rng.random() < 0.97 else rng.uniform(1.0, 40.0)

"""Several brokers on one store, each a scene of its own, and a clock for all of them.

Lives here: who is up, who sleeps, and time that passes for all. Never here: what should come of it. Invariant: the
database's clock is that of the group, and stands still for nobody.
"""

from __future__ import annotations

from scale0.store.shared_memory import SharedMemory, SharedMemoryStore
from tests.zerotask.harness import BEAT, Scene

TICK = 0.05
"""Seconds that pass at once: brokers take turns."""


class Group:
    """Brokers by name."""

    def __init__(self, *names: str) -> None:
        self.time = 100.0
        self.database = SharedMemory(lambda: int(self.time * 1_000_000))
        self.scenes: dict[str, Scene] = {}
        self.away: set[str] = set()
        """Those whose time stands still: they are dead, or sleep."""
        for number, name in enumerate(names):
            store = SharedMemoryStore(self.database, name)
            self.scenes[name] = Scene(seed=number, store=store, identity=name, group="g")
        self._beat = 0.0
        self.run(1.0)

    def __getitem__(self, name: str) -> Scene:
        return self.scenes[name]

    def run(self, seconds: float) -> None:
        """Time passes for whoever is there; those who joined them live on."""
        for _ in range(round(seconds / TICK)):
            self.time += TICK
            self._beat += TICK
            for name, scene in self.scenes.items():
                if name not in self.away:
                    if self._beat >= BEAT:
                        scene.beat()
                    scene.wait(TICK)
            self._beat = 0.0 if self._beat >= BEAT else self._beat

    def kill(self, name: str) -> None:
        """kill -9: it says nothing any more, and its clients hear nothing."""
        self.away.add(name)

    def start(self, name: str) -> None:
        """It starts again."""
        self.away.discard(name)
        scene = self.scenes[name]
        scene.workers.clear()
        scene.nodes.clear()
        scene.world.disk.held = False
        scene.world.crash()

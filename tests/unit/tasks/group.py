"""Several brokers on one store, each a scene of its own, and a clock for all of them.

Lives here: who is up, who sleeps, and time that passes for all. Never here: what should come of it. Invariant: the
database's clock is that of the group, and stands still for nobody.
"""

from __future__ import annotations

from typing import Any

from simulator.fake_postgres.store import FakeDatabase, FakePostgresStore, StoreUnreachable
from tests.unit.tasks.harness import BEAT, Scene
from tests.unit.tasks.world import Disk, World

TICK = 0.05
"""Seconds that pass at once: brokers take turns."""


class FarDisk(Disk):
    """Commits to a database that may be away: what cannot be done now is done later."""

    store: Any

    def _end(self) -> None:
        try:
            super()._end()
        except StoreUnreachable:
            self.waits = True

    waits = False

    def go_on(self) -> None:
        if self.waits:
            if self.store.unreachable:
                return
            self.waits = False
            if self.in_flight is not None and not self.held:
                self._end()
                if self.waits:
                    return
        super().go_on()


class FarWorld(World):
    """A broker whose store is far away."""

    disk_class = FarDisk

    @property
    def far(self) -> FakePostgresStore:
        """Its store."""
        store: Any = self.store
        assert isinstance(store, FakePostgresStore)
        return store


class Group:
    """Brokers by name."""

    def __init__(self, *names: str) -> None:
        self.time = 100.0
        self.database = FakeDatabase(lambda: int(self.time * 1_000_000))
        self.scenes: dict[str, Scene] = {}
        self.away: set[str] = set()
        """Those whose time stands still: they are dead, or sleep."""
        for number, name in enumerate(names):
            store = FakePostgresStore(self.database, name)
            self.scenes[name] = Scene(FarWorld, seed=number, store=store, identity=name, group="g")
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
                    scene.world.disk.go_on()
            self._beat = 0.0 if self._beat >= BEAT else self._beat

    def cut(self, name: str, on: bool = True) -> None:
        """The database cannot be reached from there; or it can again."""
        store: Any = self.scenes[name].world.store
        store.unreachable = on

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

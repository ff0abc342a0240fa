"""What a broker reports of backends and connections to the tasks that it holds.

`tasks.core.tasks.BrokerTasks` implements it, and `compat.titanic`, which adds stored requests to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from scale0.broker.core.connections import Connection
from scale0.broker.core.scheduler import Backend
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects


class Workload(Protocol):
    """Tasks, as backends and connections concern them."""

    def offer(self, backend: Backend, now: Now, effects: Effects) -> None:
        """It offers its services from now on."""
        ...

    def feed(self, backend: Backend, now: Now, effects: Effects) -> None:
        """It has room, perhaps."""
        ...

    def claim(self, backend: Backend, holds: Mapping[str, int], now: Now, effects: Effects) -> None:
        """It says which attempts it has in hand."""
        ...

    def lose(self, backend: Backend, keep: Mapping[str, int], now: Now, effects: Effects) -> None:
        """It no longer has what it held, except `keep`."""
        ...

    def unsent(self, backend: Backend, body: bytes, now: Now, effects: Effects) -> None:
        """A TASKS message never left for it."""
        ...

    def waits(self, service: str) -> bool:
        """True while a task of this service waits for somebody."""
        ...

    def forget(self, line: Connection) -> None:
        """A connection is gone."""
        ...

    def tick(self, now: Now, effects: Effects) -> None:
        """Do what its time has come for."""
        ...

    def deadline(self) -> float | None:
        """When `tick` has something to do."""
        ...

    def settle(self, now: Now, effects: Effects) -> None:
        """The turn ends."""
        ...

"""The interface by which a broker reports backends and connections to its tasks.

`tasks.core.tasks.BrokerTasks` implements it, and so does `compat.titanic`, which adds stored requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from scale0.broker.core.connections import Connection
from scale0.broker.core.scheduler import Backend
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects


class Workload(Protocol):
    def offer(self, backend: Backend, now: Now, effects: Effects) -> None:
        """The backend's services are available from now on."""
        ...

    def feed(self, backend: Backend, service: str | None, now: Now, effects: Effects) -> None:
        """The backend may have free slots of this service; None: of any."""
        ...

    def claim(self, backend: Backend, holds: Mapping[str, int], now: Now, effects: Effects) -> None:
        """The backend reports its attempts in flight."""
        ...

    def lose(self, backend: Backend, keep: Mapping[str, int], now: Now, effects: Effects) -> None:
        """The backend lost its work, except `keep`."""
        ...

    def unsent(self, backend: Backend, body: bytes, now: Now, effects: Effects) -> None:
        """A TASKS message was never sent to the backend."""
        ...

    def waits(self, service: str) -> bool:
        """True while a task of this service waits for a worker."""
        ...

    def forget(self, connection: Connection) -> None: ...

    def tick(self, now: Now, effects: Effects) -> None: ...

    def deadline(self) -> float | None: ...

    def settle(self, now: Now, effects: Effects) -> None: ...

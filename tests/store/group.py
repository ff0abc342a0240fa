"""The stores of several brokers on one database, whose clock a test moves."""

from __future__ import annotations

from typing import Any

from scale0.store.interface import SLOT_BITS, Opened, Store
from scale0.store.shared_memory import SharedMemory, SharedMemoryStore
from scale0.store.tasks import FindNew, PutTask


class MemoryGroup:
    """Brokers on a SharedMemory."""

    def __init__(self) -> None:
        self.now_us = 1_000_000_000
        self.database = SharedMemory(lambda: self.now_us)

    def store(self, identity: str, failpoint: Any = None) -> Store:
        return SharedMemoryStore(self.database, identity, failpoint)

    def pass_us(self, span_us: int) -> None:
        self.now_us += span_us

    def kill(self, store: Any) -> None:
        """Its process ends, and tells nobody."""
        store.crash()

    def close(self) -> None:
        """Nothing to let go of."""


class Seat:
    """A broker at its store: what tests want of it, in few words."""

    def __init__(self, group: Any, identity: str) -> None:
        self.group = group
        self.identity = identity
        self.store: Any = group.store(identity)
        self.opened: Opened = self.store.open()

    def seq(self, counter: int) -> int:
        assert self.opened.shared is not None
        return (counter << SLOT_BITS) | self.opened.shared.slot

    def commit(self, *writes: Any) -> None:
        """Store these; ids and keys of what is put are reserved first."""
        for write in writes:
            if isinstance(write, PutTask):
                found = self.store.read(FindNew(write.client, (write.id,), write.key, None, write.id))
                assert not found.busy
        self.store.commit(list(writes))

    def read(self, ask: Any) -> Any:
        return self.store.read(ask)

    def die(self) -> None:
        self.group.kill(self.store)

    def again(self) -> Seat:
        """Its next life."""
        return Seat(self.group, self.identity)

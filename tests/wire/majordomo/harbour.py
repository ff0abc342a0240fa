"""A broker with a store and without sockets: for stories about requests that are kept.

Lives here: turns as the runner makes them (settle, commit, answer, send), a crash, and what Titanic's clients say.
Never here: an expectation. What a peer hears is exactly what would lie on the wire for it, its routing id taken off;
what was promised is heard only once it is committed, so a crash before the commit is a crash before the answer.
"""

from __future__ import annotations

import random
from typing import Any

from scale0.broker.core.broker import Broker
from scale0.broker.main.composition import compose_broker, start_broker
from scale0.config import BrokerConfig, Endpoints
from scale0.kernel.effects import Effects, StoreQuery
from scale0.storage.interface import Store
from scale0.storage.memory.store import MemoryStore
from tests.wire.majordomo.town import (
    C02,
    CLIENT_FINAL_02,
    CLIENT_REQUEST_02,
    EMPTY,
    FINAL_02,
    READY,
    REQUEST,
    W02,
    Town,
)

SOCKETS = {"frontend", "backend", "peer"}


class Harbour(Town):
    """A town whose broker stores, and is told what is stored."""

    def __init__(self, store: Store | None = None, **config: Any) -> None:
        self.mono = 1_000.0
        self.events = []
        self._mail = {}
        self._config = {"identity": "broker-1", "state": "active", **config}
        self.cut = False
        """The power is gone: nothing more is committed."""
        self.opens(store or MemoryStore())

    def opens(self, store: Store) -> None:
        """A broker's life begins."""
        self.store = store
        opened = store.open()
        self.broker: Broker = compose_broker(
            BrokerConfig(**self._config), Endpoints(), opened, opened.boots, random.Random(opened.boots), None
        )
        step = Effects()
        start_broker(self.broker, opened, self.now, step)
        self._take(step)

    def dies(self) -> None:
        """As by kill -9; the next one starts from what was committed."""
        assert isinstance(self.store, MemoryStore)
        self._mail.clear()
        self.cut = False
        self.opens(self.store.crash())

    def _take(self, step: Effects) -> None:
        """The rest of a turn, and the turns in which the store answers."""
        due = self.broker.deadline()
        if due is not None and due <= self.mono:
            self.broker.tick(self.now, step)
        self.broker.settle(self.now, step)
        while step.sends or step.promises or step.writes or step.asks or step.events:
            if self.cut:
                return
            self.events += step.events
            self.store.commit(step.writes)
            said, asks = [*step.sends.items(), *step.promises.items()], step.asks
            for peer, messages in said:
                assert peer.door in SOCKETS
                self._mail.setdefault(peer.routing_id.decode(), []).extend(peer.pack(messages))
            step = Effects()
            for ask in asks:
                assert isinstance(ask, StoreQuery)
                self.broker.answer(ask, self.store.read(ask.ask), self.now, step)
            self.broker.settle(self.now, step)

    # What is said, in 0.2.

    def asks(self, service: bytes, *frames: bytes, who: str = "client") -> list[bytes]:
        """A call of one of the three, and its answer."""
        self.says(who, C02, CLIENT_REQUEST_02, service, *frames)
        (answer,) = self.hears(who)
        assert answer[:3] == [C02, CLIENT_FINAL_02, service]
        return answer[3:]

    def stores(self, service: bytes, *frames: bytes) -> bytes:
        """A request that is taken; its UUID."""
        status, uuid = self.asks(b"titanic.request", service, *frames)
        assert status == b"200"
        return uuid

    def worker(self, who: str, service: bytes = b"echo") -> None:
        """A worker is on the list."""
        self.says(who, W02, READY, service)

    def work_of(self, who: str) -> list[tuple[bytes, list[bytes]]]:
        """The requests that a worker was given: addresses and bodies."""
        heard = [frames for frames in self.hears(who) if frames[1] == REQUEST]
        return [(frames[2], frames[4:]) for frames in heard]

    def answers(self, who: str, address: bytes, *frames: bytes) -> None:
        """A worker's FINAL."""
        self.says(who, W02, FINAL_02, address, EMPTY, *frames)

    def under_way(self) -> int:
        """How many leases there are."""
        leased: int = self.broker.tasks.leases.leased
        return leased

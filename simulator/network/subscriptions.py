"""Delivers or loses what a broker publishes, and keeps subscriptions across its restarts. Invariant: only subscribed
topics are delivered; no delivery is guaranteed."""

from __future__ import annotations

import random
from typing import Final, Protocol

from scale0.kernel.effects import Readers
from simulator.network.broker import BrokerNode
from simulator.network.connections import Route
from simulator.virtual_time import Agenda

TASK_PUB: Final = "task_pub"
AGAIN_SECONDS: Final = 0.5
"""Time until subscribers reconnect to a restarted broker."""


class Listener(Protocol):
    route: Route

    @property
    def up(self) -> bool: ...
    def announced(self, frames: list[bytes]) -> None: ...


class Announcements:
    """All subscriptions of a world."""

    def __init__(self, agenda: Agenda, broker: BrokerNode, rng: random.Random, lost: float) -> None:
        self._agenda = agenda
        self._broker = broker
        self._rng = rng
        self._lost = lost
        self._topics: dict[bytes, list[Listener]] = {}
        self._known: set[bytes] = set()
        """Topics that the current broker process knows."""
        self.carried = 0
        broker.publish = self.publish
        broker.on_start = self._broker_started

    def join(self, listener: Listener, topic: bytes) -> None:
        listeners = self._topics.setdefault(topic, [])
        if listener not in listeners:
            listeners.append(listener)
        self._agenda.after(listener.route.delay(), self._announce)

    def leave(self, listener: Listener) -> None:
        for listeners in self._topics.values():
            if listener in listeners:
                listeners.remove(listener)
        self._agenda.after(listener.route.delay(), self._announce)

    def publish(self, socket: str, frames: list[bytes], _readers: Readers | None) -> None:
        if socket != TASK_PUB:
            return
        for topic, listeners in self._topics.items():
            if topic in self._known and frames[0].startswith(topic):
                for listener in listeners:
                    if listener.route.free and self._rng.random() >= self._lost:
                        self.carried += 1
                        self._agenda.after(listener.route.delay(), self._arrive, listener, frames)

    def _arrive(self, listener: Listener, frames: list[bytes]) -> None:
        if listener.up:
            listener.announced(frames)

    def _broker_started(self) -> None:
        self._known = set()
        self._agenda.after(AGAIN_SECONDS, self._announce)

    def _announce(self) -> None:
        """Updates the broker's subscriptions."""
        if not self._broker.up:
            return
        if self._broker.asleep:
            self._agenda.after(AGAIN_SECONDS, self._announce)
            return
        for topic, listeners in self._topics.items():
            if bool(listeners) != (topic in self._known):
                (self._known.add if listeners else self._known.discard)(topic)
                self._broker.subscribe((b"\x01" if listeners else b"\x00") + topic)

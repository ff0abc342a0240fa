"""A simulated agent of version 1, written from the protocol alone: hello, check, result, reload, error, and
reconnecting.
"""

from __future__ import annotations

import random
from typing import Any, Final

from scale0.history.events.columns import EventMetric
from scale0.monitoring.protocol import messages
from scale0.monitoring.protocol.encoder import encode
from scale0.monitoring.protocol.parser import Parser
from scale0.monitoring.protocol.results import CheckFinding, write_result
from simulator.monitoring.agent import CHECK_TIMEOUT, Place, Surroundings
from simulator.monitoring.helen import cut
from simulator.network.connections import Parcel, Route, Wire

OPEN_SECONDS: Final = 15.0
WAIT_SECONDS: Final = 5.0


class OldAgentNode:
    version = 1

    def __init__(
        self, surroundings: Surroundings, name: str, route: Route, rng: random.Random, places: list[Place]
    ) -> None:
        self.surroundings = surroundings
        self.name = self.machine = name
        self.route = route
        self._rng = rng
        self.places = places
        self.address = f"{name}:1"
        self.serial = f"{name}-1"
        self.attempt = 0
        self.up = False
        self.wire: Wire | None = None
        self._parser = Parser(to_helen=False)

    @property
    def accepted(self) -> bool:
        """It is connected: version 1 has no acceptance."""
        return self.wire is not None

    def start(self) -> None:
        if not self.up:
            self.up = True
            self._again()

    def kill(self, silent: bool) -> None:
        self.up = False
        self._disconnect()

    def _disconnect(self) -> None:
        self.attempt += 1
        wire, self.wire = self.wire, None
        if wire is not None:
            wire.close(lossy=True)

    def _again(self) -> None:
        self._disconnect()
        self.surroundings.agenda.after(self._rng.random() * WAIT_SECONDS, self._open, self.attempt)

    def _open(self, attempt: int) -> None:
        if self.up and attempt == self.attempt:
            self.surroundings.connect(self, self._rng.choice(self.places), attempt)
            self.surroundings.agenda.after(OPEN_SECONDS, self.refused, attempt)

    def connected(self, wire: Wire) -> None:
        self.wire = wire
        self._parser = Parser(to_helen=False)
        self._send(messages.Hello(1, "1.0"))

    def refused(self, attempt: int) -> None:
        if self.up and attempt == self.attempt and self.wire is None:
            self._again()

    def arrive(self, wire: Wire, parcel: Parcel) -> None:
        if wire is not self.wire:
            return
        if parcel is None:
            self._again()
            return
        for message in self._parser.feed(parcel[0]):
            if isinstance(message, messages.Check):
                self.surroundings.observer.asked_ran(self.name, message.args)
                seconds = self.surroundings.health.seconds(self._rng)
                self.surroundings.agenda.after(min(seconds, CHECK_TIMEOUT), self._answer, message, wire, seconds)
            elif isinstance(message, messages.Error | messages.Reload):
                self._again()
                return

    def broke(self, wire: Wire) -> None:
        if wire is self.wire:
            self._again()

    def _answer(self, check: messages.Check, wire: Wire, seconds: float) -> None:
        if wire is self.wire:
            state, value = self.surroundings.health.find(self.name, check.name, self.surroundings.agenda.now)
            finding = CheckFinding(state, check.args.decode(), (EventMetric("value", value),), None, seconds)
            self._send(messages.Result(check.message_id, check.name, write_result(finding)))

    def _send(self, message: Any) -> None:
        if self.wire is not None:
            for piece in cut(encode(message), self._rng):
                self.wire.to_broker([piece])

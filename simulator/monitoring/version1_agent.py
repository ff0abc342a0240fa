"""An agent of version 1 in the simulated world, written from the protocol alone.

Lives here: hello, checks and results, and connecting again and again. Never here: anything of version 2, or the code of
our own agent. Invariant: what it does not know, it does not do.
"""

from __future__ import annotations

import random
from typing import Any, Final

from scale0.history.events.columns import EventMetric
from scale0.monitoring.protocol import messages
from scale0.monitoring.protocol.encoder import encode
from scale0.monitoring.protocol.parser import Parser
from scale0.monitoring.protocol.results import CheckFinding, write_result
from simulator.monitoring.agent import CHECK_TIMEOUT, Around, Place
from simulator.monitoring.helen import cut
from simulator.network.connections import Parcel, Route, Wire

OPEN_SECONDS: Final = 15.0
WAIT_SECONDS: Final = 5.0


class OldAgentNode:
    """It knows hello, check, result, reload and error."""

    version = 1

    def __init__(self, around: Around, name: str, route: Route, chance: random.Random, places: list[Place]) -> None:
        self.around = around
        self.name = self.machine = name
        self.route = route
        self._chance = chance
        self.places = places
        self.address = f"{name}:1"
        self.serial = f"{name}-1"
        self.attempt = 0
        self.up = False
        self.wire: Wire | None = None
        self._parser = Parser(to_helen=False)

    @property
    def accepted(self) -> bool:
        """It is connected; nobody says more to it."""
        return self.wire is not None

    def start(self) -> None:
        """It runs."""
        if not self.up:
            self.up = True
            self._again()

    def kill(self, silent: bool) -> None:
        """It ends."""
        self.up = False
        self._hang_up()

    def _hang_up(self) -> None:
        self.attempt += 1
        wire, self.wire = self.wire, None
        if wire is not None:
            wire.close(lossy=True)

    def _again(self) -> None:
        self._hang_up()
        self.around.agenda.after(self._chance.random() * WAIT_SECONDS, self._open, self.attempt)

    def _open(self, attempt: int) -> None:
        if self.up and attempt == self.attempt:
            self.around.connect(self, self._chance.choice(self.places), attempt)
            self.around.agenda.after(OPEN_SECONDS, self.refused, attempt)

    def connected(self, wire: Wire) -> None:
        """TLS is up: hello."""
        self.wire = wire
        self._parser = Parser(to_helen=False)
        self._say(messages.Hello(1, "1.0"))

    def refused(self, attempt: int) -> None:
        """It could not be done."""
        if self.up and attempt == self.attempt and self.wire is None:
            self._again()

    def arrive(self, wire: Wire, parcel: Parcel) -> None:
        """Bytes of Helen's."""
        if wire is not self.wire:
            return
        if parcel is None:
            self._again()
            return
        for word in self._parser.feed(parcel[0]):
            if isinstance(word, messages.Check):
                self.around.looker.asked_ran(self.name, word.args)
                seconds = self.around.health.seconds(self._chance)
                self.around.agenda.after(min(seconds, CHECK_TIMEOUT), self._answer, word, wire, seconds)
            elif isinstance(word, messages.Error | messages.Reload):
                self._again()
                return

    def broke(self, wire: Wire) -> None:
        """The connection is gone."""
        if wire is self.wire:
            self._again()

    def _answer(self, check: messages.Check, wire: Wire, seconds: float) -> None:
        if wire is self.wire:
            state, value = self.around.health.find(self.name, check.name, self.around.agenda.now)
            finding = CheckFinding(state, check.args.decode(), (EventMetric("value", value),), None, seconds)
            self._say(messages.Result(check.message_id, check.name, write_result(finding)))

    def _say(self, word: Any) -> None:
        if self.wire is not None:
            for piece in cut(encode(word), self._chance):
                self.wire.to_broker([piece])

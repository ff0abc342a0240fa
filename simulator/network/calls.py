"""Calls: what is asked for in the simulated world, what is done about it, and how it ends.

Lives here: one record per call, kept by the world, not by any party. Never here: a message. Invariant: a nonce names
one call for ever, so that whatever comes back can be held against what was asked.
"""

from __future__ import annotations

import random
from typing import Final

HANDLER_ERROR: Final = 422
"""The code of a handler's own error here: no part of Scale0 says it."""
LONG_TIMEOUT_SECONDS: Final = 30.0
LONG_PART_SECONDS: Final = 0.4
"""From one part of a long answer to the next: less than every heartbeat interval here."""


class Call:
    """One call."""

    __slots__ = (
        *("asked", "code", "ended", "error", "executions", "frontend", "nonce", "parts", "parts_from", "parts_seen"),
        *("pad", "retry", "seconds", "service", "timeout", "vanished"),
    )

    def __init__(self, nonce: int, frontend: str, service: str, timeout: float, retry: bool, asked: float) -> None:
        self.nonce = nonce
        self.frontend = frontend
        self.service = service
        self.timeout = timeout
        self.retry = retry
        self.asked = asked
        self.seconds = 0.0
        """How long a handler works on it."""
        self.parts = 0
        self.error = False
        self.pad = 0
        self.executions: list[tuple[float, str]] = []
        """When and where it was begun."""
        self.ended = 0
        self.code: int | None = None
        """How it ended: 200, or a failure's code."""
        self.vanished = False
        """Its frontend is gone: nobody waits for it."""
        self.parts_seen = 0
        self.parts_from = 0

    @property
    def body(self) -> bytes:
        """What is sent."""
        return b"%d" % self.nonce + b" " * self.pad

    @property
    def answered(self) -> bool:
        """True if it ended in an answer."""
        return self.code == 200


class Calls:
    """All calls of a world."""

    __slots__ = ("_rng", "by_nonce", "outcomes", "strain")

    def __init__(self, rng: random.Random, strain: bool) -> None:
        self._rng = rng
        self.strain = strain
        """Handlers may be slow, fail, or answer in parts."""
        self.by_nonce: dict[int, Call] = {}
        self.outcomes: dict[int, int] = {}

    def make(self, frontend: str, service: str, asked: float, short: bool) -> Call:
        """A new call, its handler's behaviour thrown by dice; `short`: one that must be answered soon."""
        dice = self._rng
        timeout = 20.0 if short else dice.choice((0.5, 2.0, 5.0, 10.0, 30.0)) if self.strain else 30.0
        call = Call(len(self.by_nonce) + 1, frontend, service, timeout, dice.random() < 0.5, asked)
        call.seconds = dice.expovariate(1 / 0.03)
        call.pad = dice.randrange(200)
        if self.strain:
            kind = dice.random()
            if kind < 0.10 and not short:
                call.seconds = dice.uniform(0.5, 8.0)
            elif kind < 0.14:
                call.error = True
        if dice.random() < 0.10:
            call.parts = dice.randrange(1, 5)
            call.seconds += 0.2
        self.by_nonce[call.nonce] = call
        return call

    def make_long(self, frontend: str, service: str, asked: float) -> Call:
        """A new call that is answered in many parts: its worker talks all the time, and hears little."""
        call = Call(len(self.by_nonce) + 1, frontend, service, LONG_TIMEOUT_SECONDS, False, asked)
        call.parts = self._rng.randrange(10, 30)
        call.seconds = LONG_PART_SECONDS * call.parts
        self.by_nonce[call.nonce] = call
        return call

    def end(self, call: Call, code: int) -> None:
        """It ended."""
        call.ended += 1
        call.code = code
        self.outcomes[code] = self.outcomes.get(code, 0) + 1

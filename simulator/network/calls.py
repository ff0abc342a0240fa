"""The calls of a simulation: one record for each, kept by the world and not by any participant. Invariant: a nonce
identifies one call forever, so that every reply can be compared with its request."""

from __future__ import annotations

import random
from typing import Final

HANDLER_ERROR: Final = 422
"""The code of a handler's error: no part of Scale0 uses it."""
LONG_TIMEOUT_SECONDS: Final = 30.0
LONG_PART_SECONDS: Final = 0.4
"""Interval between the parts of a long reply: shorter than every heartbeat interval here."""


class Call:
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
        """When and where it was started."""
        self.ended = 0
        self.code: int | None = None
        """200, or the code of the failure; None while it is open."""
        self.vanished = False
        """Its frontend is gone and no longer waits for it."""
        self.parts_seen = 0
        self.parts_from = 0

    @property
    def body(self) -> bytes:
        return b"%d" % self.nonce + b" " * self.pad

    @property
    def answered(self) -> bool:
        return self.code == 200


class Calls:
    def __init__(self, rng: random.Random, strain: bool) -> None:
        self._rng = rng
        self.strain = strain
        """If true, handlers may be slow, fail, or reply in parts."""
        self.by_nonce: dict[int, Call] = {}
        self.outcomes: dict[int, int] = {}

    def make(self, frontend: str, service: str, asked: float, short: bool) -> Call:
        """Makes a call with random handler behaviour; `short`: it must be answered soon."""
        rng = self._rng
        timeout = 20.0 if short else rng.choice((0.5, 2.0, 5.0, 10.0, 30.0)) if self.strain else 30.0
        call = Call(len(self.by_nonce) + 1, frontend, service, timeout, rng.random() < 0.5, asked)
        call.seconds = rng.expovariate(1 / 0.03)
        call.pad = rng.randrange(200)
        if self.strain:
            kind = rng.random()
            if kind < 0.10 and not short:
                call.seconds = rng.uniform(0.5, 8.0)
            elif kind < 0.14:
                call.error = True
        if rng.random() < 0.10:
            call.parts = rng.randrange(1, 5)
            call.seconds += 0.2
        self.by_nonce[call.nonce] = call
        return call

    def make_several(self, frontend: str, service: str, asked: float, short: bool, count: int) -> list[Call]:
        """Makes calls that may travel as one batch; most of them take as long as the first one."""
        first = self.make(frontend, service, asked, short)
        calls = [first]
        for _ in range(count - 1):
            call = self.make(frontend, service, asked, short)
            call.timeout, call.retry = first.timeout, first.retry
            if self._rng.random() < 0.8:
                call.seconds, call.parts, call.error = first.seconds, first.parts, first.error
            calls.append(call)
        return calls

    def make_long(self, frontend: str, service: str, asked: float) -> Call:
        """Makes a call with a reply in many parts: its worker sends continuously and receives little."""
        call = Call(len(self.by_nonce) + 1, frontend, service, LONG_TIMEOUT_SECONDS, False, asked)
        call.parts = self._rng.randrange(10, 30)
        call.seconds = LONG_PART_SECONDS * call.parts
        self.by_nonce[call.nonce] = call
        return call

    def end(self, call: Call, code: int) -> None:
        call.ended += 1
        call.code = code
        self.outcomes[code] = self.outcomes.get(code, 0) + 1

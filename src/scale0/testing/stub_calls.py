"""Calls of the stub network: one as it arrived, and one with its answer.

Lives here: the records that a test looks at. Never here: running a handler (`stub`). Invariant: what is shown went
through JSON and back, as on the wire.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from scale0.client import payload
from scale0.errors import CallError
from scale0.kernel.errors import Refusal


class StubCall(NamedTuple):
    """One call, as it arrived: what went through JSON and back."""

    service: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    bodies: tuple[bytes, ...]
    """What travelled; for raw calls `args` holds it too."""
    timeout: float
    retry: bool


class StubAnswer:
    """A call that was made: what `Client.start` returns, with its answer already here."""

    __slots__ = ("_bodies", "_error", "_parts", "_raw", "done", "service")

    def __init__(self, service: str, raw: bool, parts: Sequence[Sequence[bytes]], bodies: Sequence[bytes]) -> None:
        self.service = service
        self.done = True
        self._raw = raw
        self._parts = deque(parts)
        self._bodies = bodies
        self._error: CallError | None = None

    def result(self) -> Any:
        """The answer; raises `CallError`."""
        if self._error is not None:
            raise self._error
        return self._read(self._bodies)

    def parts(self) -> Iterator[Any]:
        """The parts of a streamed answer; the last one is what the handler returned, if anything."""
        while self._parts:
            yield self._read(self._parts.popleft())
        last = self.result()
        if last not in (None, []):
            yield last

    def _read(self, bodies: Sequence[bytes]) -> Any:
        if self._raw:
            return list(bodies)
        return payload.decode(bodies[0]) if bodies else None


def recorded(service: str, bodies: Sequence[bytes], timeout: float, retry: bool, raw: bool) -> StubCall:
    """A call as it is remembered; a raw body may hold anything, so it is not read."""
    args: Sequence[Any] = bodies
    kwargs: dict[str, Any] = {}
    if not raw:
        with contextlib.suppress(Refusal):  # nested too deep: the handler's answer will say so
            args, kwargs = payload.decode_arguments(bodies[0])
    return StubCall(service, tuple(args), kwargs, tuple(bodies), timeout, retry)

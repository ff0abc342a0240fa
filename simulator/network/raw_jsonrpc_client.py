"""An independent JSON-RPC client: a session for `client_connection` that shares no code with Scale0's own client, so
that two implementations test the protocol. Invariants: a call is repeated until it is answered, as long as its owner
wants it; nothing but the greeting is sent before the greeting was answered."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from scale0.kernel.clock import Now
from scale0.transport.core.session import SessionEffects

AGAIN_SECONDS: Final = 3.0
"""A call that is not answered for this long is repeated."""
GREET_SECONDS: Final = 0.6
"""Delay after a refusal: the broker may still consider the old connection alive."""
SILENCE_SECONDS: Final = 9.0
"""Reconnect if nothing arrives for this long while calls are unanswered."""
MAX_BACKOFF_SECONDS: Final = 8.0
NOT_KNOWN: Final = (-32010, -32030)
"""The broker does not know this client, or another client has its name."""
NOT_NOW: Final = -32080
HELLO: Final = 0

DOWN, GREETING, UP, ENDED = "down", "greeting", "up", "ended"


class Answer(NamedTuple):
    tag: Any
    result: Any
    code: int
    """0: no error."""
    tries: int


class Pushed(NamedTuple):
    """A message that is no answer."""

    method: str
    params: Any


class Call:
    __slots__ = ("again_at", "frame", "patience", "tag", "tries")

    def __init__(self, frame: bytes, tag: Any, patience: float) -> None:
        self.frame = frame
        self.tag = tag
        self.patience = patience
        """How long an answer may take before the call is repeated."""
        self.tries = 0
        self.again_at = 0.0


class RawSession:
    def __init__(self, endpoint: str, hello: tuple[str, list[Any]], rng: random.Random, delimiter: bool) -> None:
        self._endpoint = endpoint
        self._hello = hello
        self._rng = rng
        self._delimiter = delimiter
        self._next = HELLO
        self._failures = 0
        self._wake: float | None = None
        """When to connect or to greet again."""
        self._last_received = 0.0
        self.state = DOWN
        self.calls: dict[int, Call] = {}
        self.beat: tuple[str, list[Any]] | None = None
        self.beat_seconds = 1.0
        self._beat_at = 0.0

    def start(self, now: Now, out: SessionEffects) -> None:
        self.state = GREETING
        self._last_received = now.mono
        self._wake = now.mono + AGAIN_SECONDS
        out.open = self._endpoint
        self._greet(out)

    def end(self) -> None:
        self.state = ENDED

    def call(
        self, method: str, params: Any, tag: Any, now: Now, out: SessionEffects, patience: float = AGAIN_SECONDS
    ) -> None:
        """Calls a method; the answer is an event with this tag."""
        self._next += 1
        if not self.calls:
            self._last_received = now.mono
        call = Call(self._frame(method, params, self._next), tag, patience)
        self.calls[self._next] = call
        if self.state == UP:
            self._send(call, now, out)

    def receive(self, frames: list[bytes], now: Now, out: SessionEffects) -> None:
        self._last_received = now.mono
        if self.state in (DOWN, ENDED) or frames[-1][:1] not in (b"{", b"["):
            return
        message = json.loads(frames[-1])
        for each in message if isinstance(message, list) else [message]:
            if "method" in each:
                out.notifications.append(Pushed(each["method"], each["params"]))
            else:
                self._answered(each, now, out)

    def closed(self, reason: str, now: Now, out: SessionEffects) -> None:
        if self.state in (DOWN, ENDED):
            return
        self.state = DOWN
        out.close = True
        self._wake = now.mono + self._rng.random() * min(MAX_BACKOFF_SECONDS, 2.0**self._failures)
        self._failures += 1

    def unsent(self, messages: Sequence[Any]) -> None:
        """Does nothing: calls are repeated anyway."""

    @property
    def request_batches(self) -> bool:
        return False

    def never_connected(self) -> None:
        """Does nothing: calls are repeated anyway."""

    def tick(self, now: Now, out: SessionEffects) -> None:
        """Connects, greets and repeats calls."""
        if self._wake is not None and now.mono >= self._wake:
            self._wake = None
            if self.state == DOWN:
                self.start(now, out)
            elif self.state == GREETING:
                self._wake = now.mono + AGAIN_SECONDS
                self._greet(out)
        if self.state != DOWN and (self.calls or self.beat) and now.mono >= self._last_received + SILENCE_SECONDS:
            self.closed("silence", now, out)
        if self.state == UP:
            for call in self.calls.values():
                if now.mono >= call.again_at:
                    self._send(call, now, out)
            if self.beat is not None and now.mono >= self._beat_at:
                self._beat_at = now.mono + self.beat_seconds
                self._next += 1
                self._send_frame(self._frame(*self.beat, self._next), out)

    def deadline(self) -> float | None:
        times = [] if self._wake is None or self.state == ENDED else [self._wake]
        if self.state in (GREETING, UP) and (self.calls or self.beat):
            times.append(self._last_received + SILENCE_SECONDS)
        if self.state == UP:
            times.extend(call.again_at for call in self.calls.values())
            if self.beat is not None:
                times.append(self._beat_at)
        return min(times, default=None)

    def _answered(self, message: dict[str, Any], now: Now, out: SessionEffects) -> None:
        error = message.get("error")
        code = error["code"] if error else 0
        if message["id"] == HELLO:
            self._greeted(code, now, out)
            return
        call = self.calls.get(message["id"])
        if code in NOT_KNOWN and self.state == UP:
            self.state = GREETING
            self._wake = now.mono + GREET_SECONDS
        if call is None:
            return
        if code in NOT_KNOWN or code == NOT_NOW:
            call.again_at = now.mono + GREET_SECONDS
            return
        del self.calls[message["id"]]
        out.notifications.append(Answer(call.tag, message.get("result"), code, call.tries))

    def _greeted(self, code: int, now: Now, out: SessionEffects) -> None:
        if self.state != GREETING:
            return
        if code:
            self._wake = now.mono + GREET_SECONDS
            return
        self.state = UP
        self._wake = None
        self._failures = 0
        self._beat_at = now.mono
        for call in self.calls.values():
            self._send(call, now, out)

    def _greet(self, out: SessionEffects) -> None:
        self._send_frame(self._frame(*self._hello, HELLO), out)

    def _send(self, call: Call, now: Now, out: SessionEffects) -> None:
        call.tries += 1
        call.again_at = now.mono + call.patience
        self._send_frame(call.frame, out)

    def _send_frame(self, frame: bytes, out: SessionEffects) -> None:
        out.sends.append([b"", frame] if self._delimiter else [frame])

    def _frame(self, method: str, params: Any, number: int) -> bytes:
        message = {"jsonrpc": "2.0", "method": f"zerotask.broker.{method}", "params": params, "id": number}
        return json.dumps(message, separators=(",", ":")).encode()

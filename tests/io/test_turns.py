"""Turns of a runner, by a machine whose every message takes a while: who stands at one door keeps nobody at another."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import uvloop

from scale0.base.now import Now
from scale0.base.step import Message, Step
from scale0.events.journal import Journal
from scale0.io.commits import Commits
from scale0.io.door import Sent
from scale0.io.runner import TURN_SECONDS, Runner
from scale0.store.memory import MemoryStore

EACH_SECONDS = 0.6 * TURN_SECONDS
"""Two messages are a turn."""


class Pipe:
    """A door with what waits at it; readable, as sockets are, when somebody comes."""

    def __init__(self, name: str, waiting: list[str]) -> None:
        self.name = name
        self.waiting = waiting
        self._far, self._near = socket.socketpair()
        self._near.setblocking(False)

    @property
    def descriptor(self) -> int:
        return self._near.fileno()

    def come(self, message: str) -> None:
        self.waiting.append(message)
        self._far.send(b"!")

    def drain(self, most: int) -> Iterator[list[bytes]]:
        for _ in range(most):
            if not self.waiting:
                with contextlib.suppress(BlockingIOError):
                    self._near.recv(100)
                return
            yield [b"peer", self.waiting.pop(0).encode()]

    def pending(self) -> bool:
        return bool(self.waiting)

    def send(self, routing_id: bytes, frames: list[bytes]) -> Sent:
        raise NotImplementedError

    def close(self) -> None:
        self._far.close()
        self._near.close()


class Slow:
    """A machine that notes what it is told, and takes its time."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.time = 0.0
        self.then: dict[str, Callable[[], None]] = {}
        """What happens elsewhere while a message is decided."""

    def now(self) -> Now:
        return Now(self.time, 1e9 + self.time)

    def receive(self, door: str, routing_id: bytes, frames: list[bytes], now: Now, step: Step) -> None:
        word = frames[0].decode()
        self.heard.append(word)
        self.time += EACH_SECONDS
        self.then.get(word, lambda: None)()

    def tick(self, now: Now, step: Step) -> None: ...
    def deadline(self) -> float | None: ...
    def answer(self, ask: object, value: object, now: Now, step: Step) -> None: ...
    def undelivered(self, connection: Any, messages: Sequence[Message], now: Now, step: Step) -> None: ...
    def overflow(self, connection: Any, now: Now, step: Step) -> None: ...
    def settle(self, now: Now, step: Step) -> None: ...
    def hear_subscription(self, frames: list[bytes], now: Now, step: Step) -> None: ...


async def answers(_: object) -> None:
    """Nobody asks."""


# Promise: CURVE-18
@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_who_comes_to_another_door_is_next(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    flood, other, machine = Pipe("frontend", [f"f{n}" for n in range(9)]), Pipe("backend", []), Slow()
    done = asyncio.Event()
    machine.then = {"f3": lambda: other.come("reply"), "f8": done.set}

    async def turns() -> None:
        commits = Commits(MemoryStore(), asyncio.get_running_loop(), lambda error: None)
        runner = Runner(
            machine, [flood, other], [], commits, Journal("b", 1, 1, 0), machine.now, answers, max_client_bytes=1_000
        )
        runner.start(Step(), machine.now())
        async with asyncio.timeout(20):
            await done.wait()
        runner.stop(Step(), machine.now())

    with asyncio.Runner(loop_factory=loop) as runs:
        runs.run(turns())
    flood.close()
    other.close()
    assert machine.heard == ["f0", "f1", "f2", "f3", "reply", "f4", "f5", "f6", "f7", "f8"]

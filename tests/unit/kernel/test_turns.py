"""Turns of a runner, by a machine whose every message takes a while: who stands at one door keeps nobody at another."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import uvloop

from scale0.kernel.clock import Now
from scale0.kernel.edge.commits import Commits
from scale0.kernel.edge.runner import TURN_SECONDS, Runner
from scale0.kernel.effects import Effects, Message
from scale0.kernel.machine import Sent
from scale0.storage.interface import StoredJournal
from scale0.storage.memory.store import MemoryStore

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

    def receive(self, socket_name: str, routing_id: bytes, frames: list[bytes], now: Now, effects: Effects) -> None:
        word = frames[0].decode()
        self.heard.append(word)
        self.time += EACH_SECONDS
        self.then.get(word, lambda: None)()

    def tick(self, now: Now, effects: Effects) -> None: ...
    def deadline(self) -> float | None: ...
    def answer(self, ask: object, value: object, now: Now, effects: Effects) -> None: ...
    def undelivered(self, connection: Any, messages: Sequence[Message], now: Now, effects: Effects) -> None: ...
    def overflow(self, connection: Any, now: Now, effects: Effects) -> None: ...
    def settle(self, now: Now, effects: Effects) -> None: ...
    def receive_subscription(self, frames: list[bytes], now: Now, effects: Effects) -> None: ...


async def answers(_: object) -> None:
    """Nobody asks."""


def take_turns(
    loop: Callable[[], asyncio.AbstractEventLoop], machine: Slow, sockets: Sequence[Pipe], last: str
) -> list[str]:
    """What the machine hears at these doors, until the last word."""

    async def turns() -> None:
        done = asyncio.Event()
        machine.then[last] = done.set
        commits = Commits(MemoryStore(), asyncio.get_running_loop(), lambda error: None)
        runner = Runner(
            machine,
            sockets,
            [],
            commits,
            StoredJournal("b", 1, MemoryStore().open()).append,
            machine.now,
            answers,
            max_client_bytes=1_000,
        )
        runner.start(Effects(), machine.now())
        async with asyncio.timeout(20):
            await done.wait()
        runner.stop(Effects(), machine.now())

    try:
        with asyncio.Runner(loop_factory=loop) as runs:
            runs.run(turns())
    finally:
        for socket_name in sockets:
            socket_name.close()
    return machine.heard


LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])


# Promise: CURVE-18
@LOOPS
def test_who_comes_to_another_door_is_next(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    flood, other, machine = Pipe("frontend", [f"f{n}" for n in range(9)]), Pipe("backend", []), Slow()
    machine.then = {"f3": lambda: other.come("reply")}
    heard = take_turns(loop, machine, [flood, other], "f8")
    assert heard == ["f0", "f1", "f2", "f3", "reply", "f4", "f5", "f6", "f7", "f8"]


# Promise: CURVE-18
@LOOPS
def test_a_door_that_is_never_empty_has_one_turn_at_a_time(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    flood, other, machine = Pipe("frontend", []), Pipe("backend", []), Slow()
    flood.come("f0")  # and from then on its socket says that somebody is there, beside the turn that is due
    flood.waiting += [f"f{n}" for n in range(1, 500)]
    machine.then = {f"f{n}": functools.partial(other.come, f"r{n}") for n in range(50, 450, 50)}
    heard = take_turns(loop, machine, [flood, other], "f499")
    waited = [heard.index(f"r{n}") - heard.index(f"f{n}") for n in range(50, 450, 50)]
    assert max(waited) <= 2, waited

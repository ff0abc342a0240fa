"""Turns of a runner, by a machine whose every message takes a while: who stands at one door keeps nobody at another."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import uvloop

from scale0.kernel.clock import Now
from scale0.kernel.edge.aside_queries import AsideQueries
from scale0.kernel.edge.commits import Commits
from scale0.kernel.edge.runner import MAX_SENDER_ROWS, TURN_SECONDS, Runner
from scale0.kernel.effects import Effects, Message, StoreQuery
from scale0.kernel.errors import Refusal
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


class FairPipe(Pipe):
    """A socket with one message of each sender in turn; the sender is the first letter."""

    def __init__(self, name: str, waiting: list[str]) -> None:
        super().__init__(name, waiting)
        self.held: set[bytes] = set()

    def drain(self, most: int) -> Iterator[list[bytes]]:
        for _ in range(most):
            word = next((word for word in self.waiting if word[:1].encode() not in self.held), None)
            if word is None:
                return
            self.waiting.remove(word)
            yield [word[:1].encode(), word.encode()]

    def pending(self) -> bool:
        return any(word[:1].encode() not in self.held for word in self.waiting)

    def hold(self, routing_id: bytes) -> bytes:
        self.held.add(routing_id)
        return routing_id

    def release(self, sender: bytes) -> None:
        self.held.discard(sender)


class LargePipe(FairPipe):
    """A socket that reads its only message in pieces: most reads yield nothing, and no event announces the next one."""

    pieces = 50

    def drain(self, most: int) -> Iterator[list[bytes]]:
        self.pieces -= 1
        if self.pieces <= 0:
            yield from super().drain(most)


class Slow:
    """A machine that notes what it is told, and takes its time."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.time = 0.0
        self.then: dict[str, Callable[[], None]] = {}
        """What happens elsewhere while a message is decided."""
        self.asks: dict[str, list[str]] = {}
        """What a message asks the store."""

    def now(self) -> Now:
        return Now(self.time, 1e9 + self.time)

    def receive(self, socket_name: str, routing_id: bytes, frames: list[bytes], now: Now, effects: Effects) -> None:
        word = frames[0].decode()
        self.heard.append(word)
        self.time += EACH_SECONDS
        for query in self.asks.get(word, ()):
            effects.ask(StoreQuery(query, lambda *_: None))
        self.then.get(word, lambda: None)()

    def tick(self, now: Now, effects: Effects) -> None: ...
    def deadline(self) -> float | None: ...
    def answer(self, ask: Any, value: object, now: Now, effects: Effects) -> None:
        self.receive("store", b"", [ask.ask.encode()], now, effects)

    def undelivered(self, connection: Any, messages: Sequence[Message], now: Now, effects: Effects) -> None: ...
    def overflow(self, connection: Any, now: Now, effects: Effects) -> None: ...
    def settle(self, now: Now, effects: Effects) -> None: ...

    def receive_subscription(self, frames: list[bytes], now: Now, effects: Effects) -> None:
        self.heard.append(frames[0].decode())
        self.then.get(self.heard[-1], lambda: None)()


class EchoStore(MemoryStore):
    """A store that answers anything."""

    def read_all(self, asks: Sequence[Any]) -> list[Any]:
        return list(asks)


class SubscriptionPipe(Pipe):
    """A publisher with what subscribers said; it holds back what comes after `held`."""

    held = ""

    def subscriptions(self, most: int) -> Iterator[list[bytes]]:
        for _ in range(most):
            if not self.waiting:
                return
            word = self.waiting.pop(0)
            yield [word.encode()]
            if word == self.held:
                self.held = ""
                return

    def pending(self) -> float | None:  # type: ignore[override]
        return 0.01 if self.waiting else None

    def publish(self, frames: list[bytes], readers: object = None) -> None: ...


class EagerPipe(SubscriptionPipe):
    """A publisher that must be read again at once, and whose descriptor is always readable."""

    def subscriptions(self, most: int) -> Iterator[list[bytes]]:
        return super().subscriptions(10)

    def pending(self) -> float | None:  # type: ignore[override]
        return 0.0 if self.waiting else None


async def answers(_: object) -> None:
    """Nobody asks."""


def take_turns(
    loop: Callable[[], asyncio.AbstractEventLoop],
    machine: Slow,
    sockets: Sequence[Pipe],
    last: str,
    publishers: Sequence[SubscriptionPipe] = (),
) -> list[str]:
    """What the machine hears at these doors, until the last word."""

    faults: list[object] = []

    async def turns() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
        done = asyncio.Event()
        machine.then[last] = done.set
        commits = Commits(EchoStore(), asyncio.get_running_loop(), lambda error: None)
        runner = Runner(
            machine,
            sockets,
            publishers,
            commits,
            StoredJournal("b", 1, MemoryStore().open()).append,
            machine.now,
            answers,
            max_client_bytes=1_000,
            held=("fair",),
        )
        runner.start(Effects(), machine.now())
        async with asyncio.timeout(20):
            await done.wait()
        runner.stop(Effects(), machine.now())

    try:
        with asyncio.Runner(loop_factory=loop) as runs:
            runs.run(turns())
    finally:
        for socket_name in (*sockets, *publishers):
            socket_name.close()
    assert not faults
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


# Promise: FAIR-1
@LOOPS
def test_many_answers_of_the_store_are_several_turns(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    flood, other, machine = Pipe("frontend", ["f"]), Pipe("backend", []), Slow()
    machine.asks = {"f": [f"a{n}" for n in range(200)]}
    machine.then = {f"a{n}": functools.partial(other.come, f"r{n}") for n in range(0, 200, 50)}
    heard = take_turns(loop, machine, [flood, other], "a199")
    assert [word for word in heard if word[0] == "a"] == [f"a{n}" for n in range(200)]
    waited = [heard.index(f"r{n}") - heard.index(f"a{n}") for n in range(0, 200, 50)]
    assert max(waited) <= 4, waited


@LOOPS
def test_a_message_that_is_read_in_pieces_arrives_without_another_event(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    assert take_turns(loop, Slow(), [LargePipe("frontend", ["large"])], "large") == ["large"]


# Promise: FAIR-6
@LOOPS
def test_a_sender_waits_for_its_own_rows_and_nobody_else_does(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    each, count = MAX_SENDER_ROWS // 4, 40
    socket_, machine = FairPipe("fair", [f"f{n}" for n in range(count)]), Slow()
    socket_.waiting += [f"h{n}" for n in range(5)]
    machine.asks = {f"f{n}": [f"a{n}.{k}" for k in range(each)] for n in range(count)}
    heard = take_turns(loop, machine, [socket_], f"a{count - 1}.{each - 1}")
    assert [word for word in heard if word[0] == "f"] == [f"f{n}" for n in range(count)]
    unanswered = most = 0
    for word in heard:
        unanswered += {"f": each, "a": -1}.get(word[0], 0)
        most = max(most, unanswered)
    assert most <= MAX_SENDER_ROWS + 3 * each, most
    assert heard.index("h4") < heard.index(f"f{count // 2}"), "others do not wait for these rows"


# Promise: FAIR-6
@LOOPS
def test_a_sender_is_not_held_for_long_by_a_store_that_stands_still(
    loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = threading.Event()
    monkeypatch.setattr(EchoStore, "read_all", lambda self, asks: wait.wait(10) and list(asks))
    socket_, machine = FairPipe("fair", ["f0", "f1", "f2"]), Slow()
    machine.asks = {"f0": [f"a{k}" for k in range(2 * MAX_SENDER_ROWS)]}
    machine.then = {"f1": wait.set}
    assert take_turns(loop, machine, [socket_], f"a{2 * MAX_SENDER_ROWS - 1}")[:2] == ["f0", "f1"]


# Promise: FAIR-10
@LOOPS
def test_subscriptions_beyond_one_turn_are_read_without_another_one(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    words = [f"s{number}" for number in range(2_500)]
    publisher, machine = SubscriptionPipe("task_pub", list(words)), Slow()
    publisher.held = "s1200"
    assert take_turns(loop, machine, [], words[-1], [publisher]) == words


# Promise: FAIR-10, WIRE-3
@LOOPS
def test_a_publisher_that_is_read_again_at_once_may_be_read_twice(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    words = [f"s{number}" for number in range(100)]
    publisher = EagerPipe("task_pub", words[:-1])
    publisher.come(words[-1])
    assert take_turns(loop, Slow(), [], words[-1], [publisher]) == words


# Promise: FAIR-10
def test_aside_queries_are_read_one_at_a_time_and_in_turn_by_sender() -> None:
    reading: list[str] = []
    given: list[tuple[str, object]] = []

    async def read(query: StoreQuery) -> object:
        reading.append(query.ask)
        assert len(reading) - len(given) == 1, "one at a time"
        await asyncio.sleep(0)
        if query.ask == "a1":
            raise OSError("the disk")
        return query.ask.upper()

    async def work() -> None:
        answered = asyncio.Semaphore(0)

        def give(query: StoreQuery, value: object) -> None:
            given.append((query.ask, value))
            answered.release()

        queries = AsideQueries(read, give)
        for ask in ("a0", "a1", "a2", "b0", "c0", "b1"):
            queries.add(StoreQuery(ask, lambda *_: None, aside=True, sender=ask[0]))
        async with asyncio.timeout(20):
            for _ in range(6):
                await answered.acquire()
            queries.add(StoreQuery("d0", lambda *_: None, aside=True, sender="d"))
            await answered.acquire()

    asyncio.run(work())
    assert reading == ["a0", "b0", "c0", "a1", "b1", "a2", "d0"]
    answers = dict(given)
    assert isinstance(answers.pop("a1"), Refusal)
    assert answers == {ask: ask.upper() for ask in reading if ask != "a1"}

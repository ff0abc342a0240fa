"""The order of a turn is one: on asyncio, in the simulator and in test worlds a machine sees the same."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from socket import socketpair
from typing import Any, NamedTuple

import pytest

from scale0.config import BrokerConfig
from scale0.kernel.clock import Now
from scale0.kernel.edge.commits import Commits
from scale0.kernel.edge.runner import Runner
from scale0.kernel.effects import Effects, Message
from scale0.kernel.machine import Sent
from scale0.kernel.turn import BURST_FACTOR, STALL_SECONDS, SendBacklog, Turn
from scale0.storage.interface import StoredJournal
from scale0.storage.memory.store import MemoryStore
from scale0.storage.rows import PutSetting
from simulator.network.broker import BrokerNode
from simulator.virtual_time import Agenda, Diary
from tests.fakes.turns import InstantHost


class Peer(NamedTuple):
    routing_id: bytes
    socket: str = "peer"

    def pack(self, messages: Sequence[Message]) -> list[list[bytes]]:
        return [list(message) for message in messages]


HERE, GONE, PROMISED = Peer(b"here"), Peer(b"gone"), Peer(b"promised")


class Planted:
    """A machine that decides something in every place where it may: also in `undelivered` and in a second `settle`."""

    def __init__(self) -> None:
        self.settled = 0

    def receive(self, socket_name: str, routing_id: bytes, frames: list[bytes], now: Now, effects: Effects) -> None: ...
    def overflow(self, connection: Any, now: Now, effects: Effects) -> None: ...
    def receive_subscription(self, frames: list[bytes], now: Now, effects: Effects) -> None: ...
    def answer(self, ask: object, value: object, now: Now, effects: Effects) -> None: ...
    def tick(self, now: Now, effects: Effects) -> None: ...

    def deadline(self) -> float | None:
        return None

    def begin(self, effects: Effects) -> None:
        effects.dial("tcp://first")
        effects.disconnect("tcp://old")
        effects.send(GONE, [b"lost"])
        effects.send(HERE, [b"sent"])
        effects.promise(PROMISED, [b"stored"])
        effects.write(PutSetting(key="a", value=b"1"))
        effects.close(PROMISED)
        effects.after_commit(lambda now, later: later.send(HERE, [b"after the commit"]))

    def undelivered(self, connection: Any, messages: Sequence[Message], now: Now, effects: Effects) -> None:
        assert messages == [[b"lost"]]
        effects.dial("tcp://from-undelivered")

    def settle(self, now: Now, effects: Effects) -> None:
        self.settled += 1
        if self.settled == 2:
            effects.dial("tcp://from-second-settle")
            effects.send(HERE, [b"settled again"])


class Trace:
    """What a host was asked to do, in order."""

    def __init__(self) -> None:
        self.did: list[str] = []

    def dial(self, endpoint: str) -> None:
        self.did.append(f"dial {endpoint}")

    def disconnect(self, endpoint: str) -> None:
        self.did.append(f"hang up {endpoint}")

    def send(self, routing_id: bytes, frames: list[bytes]) -> Sent:
        if routing_id == GONE.routing_id:
            return "gone"
        self.did.append(f"send {frames[0].decode()}")
        return "sent"

    def close_peer(self, routing_id: bytes) -> None:
        self.did.append(f"close {routing_id.decode()}")


WANTED = [
    "dial tcp://first",
    "send sent",
    "dial tcp://from-undelivered",
    "dial tcp://from-second-settle",
    "send settled again",
    "hang up tcp://old",
    "send stored",
    "close promised",
    "send after the commit",
]


class TracedSocket(Trace):
    """A socket of the runner that can dial and close."""

    name = "peer"

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.descriptor = descriptor

    def drain(self, most: int) -> Iterator[list[bytes]]:
        return iter(())

    def pending(self) -> bool:
        return False


def opened_store() -> MemoryStore:
    store = MemoryStore()
    store.open()
    return store


def on_asyncio() -> list[str]:
    async def run() -> list[str]:
        loop = asyncio.get_running_loop()
        near, far = socketpair()
        socket, machine, effects = TracedSocket(near.fileno()), Planted(), Effects()
        commits = Commits(opened_store(), loop, lambda error: None)
        clock = lambda: Now(loop.time(), 1e9)  # noqa: E731

        async def answer(ask: Any) -> Any:
            raise AssertionError(ask)

        runner = Runner(
            machine, [socket], [], commits, StoredJournal("b", 1, MemoryStore().open()).append, clock, answer, 1 << 20
        )
        machine.begin(effects)
        runner.start(effects, clock())
        await commits.flush()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        runner.stop(Effects(), clock())
        commits.close()
        near.close()
        far.close()
        return socket.did

    return asyncio.run(run())


class Onlooker:
    """Nobody looks on."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def in_the_simulator() -> list[str]:
    agenda, trace = Agenda(), Trace()
    looks: Any = Onlooker()
    node = BrokerNode(agenda, Diary(agenda, False), BrokerConfig(identity="b"), random.Random(1), looks, 100)
    node.start()
    machine, effects = Planted(), Effects()
    simulated: Any = machine
    node.broker, node.on_dial, node.on_disconnect = simulated, trace.dial, trace.disconnect
    node._driver = Turn(machine, TracedNode(node, trace), 1 << 20)
    machine.begin(effects)
    node._driver.finish(effects, node.now)
    agenda.run(1.0)
    return trace.did


class TracedNode:
    """A simulated broker whose wires are a trace: what it does with commits, dials and asks is its own."""

    def __init__(self, node: BrokerNode, trace: Trace) -> None:
        self._node = node
        self._trace = trace

    def send(self, peer: Any, frames: list[bytes]) -> Sent:
        return self._trace.send(peer.routing_id, frames)

    def pack(self, peer: Any, messages: Sequence[Message]) -> list[list[bytes]]:
        return peer.pack(messages)  # type: ignore[no-any-return]

    def close(self, peer: Any) -> None:
        self._trace.close_peer(peer.routing_id)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)


def in_a_test_world() -> list[str]:
    trace, machine, effects = Trace(), Planted(), Effects()
    host = InstantHost(
        lambda: Now(1.0, 1e9), lambda peer, frames: trace.send(peer.routing_id, frames), disconnect=trace.disconnect
    )
    host.dial = trace.dial  # type: ignore[method-assign]
    host.close = lambda peer: trace.close_peer(peer.routing_id)  # type: ignore[method-assign]
    host.begin(machine, opened_store())
    machine.begin(effects)
    host.finish(effects)
    return trace.did


@pytest.mark.parametrize("run", [on_asyncio, in_the_simulator, in_a_test_world])
def test_effects_are_done_in_one_order_wherever_the_machine_runs(run):
    assert run() == WANTED


def test_a_backlog_is_too_much_when_it_is_over_the_limit_and_nothing_moves():
    backlog = SendBacklog(0.0)
    backlog.append([b"x" * 100])
    assert not backlog.is_over_limit(100, 10.0)
    backlog.append([b"x"])
    assert not backlog.is_over_limit(100, STALL_SECONDS)
    assert backlog.is_over_limit(100, STALL_SECONDS + 0.01)
    backlog.append([b"x" * (BURST_FACTOR * 100)])
    assert backlog.is_over_limit(100, 0.0)

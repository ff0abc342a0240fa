"""While the disk is slow or full, agents wait at Helen's socket, and her memory does not grow."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from scale0.history.events.checks import AgentRefused
from scale0.kernel.clock import Now
from scale0.kernel.edge import runner as runners
from scale0.kernel.edge.clocks import read_now
from scale0.kernel.edge.commits import Commits
from scale0.kernel.edge.runner import Runner
from scale0.kernel.effects import Effects
from scale0.monitoring.helen.edge.process import watch_disk
from scale0.storage.interface import StoredJournal, StoreFailed
from scale0.storage.memory.store import MemoryStore
from tests.fakes.waiting import PATIENCE_SECONDS
from tests.processes.helen.echo_machine import Echo

pytestmark = pytest.mark.processes

EVENT_BYTES = 10_000


class SlowStore:
    """A store whose commits wait for a word."""

    def __init__(self) -> None:
        self.progresses = threading.Event()
        self.progresses.set()
        self.room = 1 << 40
        self.gone: StoreFailed | None = None
        self._store = MemoryStore()
        self._store.open()

    def commit(self, writes: list[Any]) -> None:
        assert self.progresses.wait(PATIENCE_SECONDS)
        self._store.commit(writes)

    def free_bytes(self) -> int:
        if self.gone is not None:
            raise self.gone
        return self.room

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Recorder(Echo):
    """Records something long for each message."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded = 0

    def receive(self, socket: str, routing_id: bytes, frames: list[bytes], now: Now, effects: Effects) -> None:
        self.recorded += 1
        effects.record(AgentRefused(identity="a", reason="x" * EVENT_BYTES))


class EndlessSocket:
    """Somebody always has something to say here; one message for each turn."""

    name = "agents"

    def __init__(self) -> None:
        self.descriptor = os.eventfd(1, os.EFD_NONBLOCK)

    def drain(self, most: int) -> Iterator[list[bytes]]:
        yield [b"peer", b"data", b"x"]

    def pending(self) -> bool:
        return True

    def send(self, routing_id: bytes, frames: list[bytes]) -> str:
        return "sent"

    def close_peer(self, routing_id: bytes) -> None: ...


async def settled(machine: Recorder) -> int:
    """How much was told, once nothing more is for a while."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            before = machine.recorded
            await asyncio.sleep(0.1)
            if machine.recorded == before:
                return before


async def progresses(machine: Recorder) -> None:
    before = machine.recorded
    async with asyncio.timeout(PATIENCE_SECONDS):
        while machine.recorded <= before + 10:  # noqa: ASYNC110  # a number of the machine's, which sets no event
            await asyncio.sleep(0.005)


async def begin(store: SlowStore) -> tuple[Recorder, Runner, Commits]:
    async def nobody(ask: Any) -> Any:
        raise AssertionError(ask)

    machine = Recorder()
    commits = Commits(store, asyncio.get_running_loop(), lambda error: None)
    socket: Any = EndlessSocket()
    runner = Runner(
        machine, [socket], [], commits, StoredJournal("h", 1, MemoryStore().open()).append, read_now, nobody, 1 << 24
    )
    runner.start(Effects(), read_now())
    return machine, runner, commits


async def end(runner: Runner, commits: Commits) -> None:
    runner.stop(Effects(), read_now())
    await commits.flush()
    commits.close()
    os.close(runner._sockets["agents"].descriptor)


# Promise: AGENT-14
async def test_while_the_disk_is_behind_agents_wait_at_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runners, "MAX_UNSTORED_BYTES", 20 * EVENT_BYTES)
    store = SlowStore()
    machine, runner, commits = await begin(store)
    await progresses(machine)
    store.progresses.clear()
    before = machine.recorded
    assert await settled(machine) - before <= 42  # as much as may wait, and what was on its way
    store.progresses.set()
    await progresses(machine)
    await end(runner, commits)


# Promise: AGENT-14
async def test_while_the_disk_is_full_agents_wait_at_the_socket() -> None:
    store = SlowStore()
    machine, runner, commits = await begin(store)
    failed: list[BaseException] = []
    watching = asyncio.get_running_loop().create_task(watch_disk(store, runner, failed.append))  # type: ignore[arg-type]
    await progresses(machine)
    store.room = 1_000
    await settled(machine)
    store.room = 1 << 40
    await progresses(machine)
    assert failed == []
    store.gone = StoreFailed("scale0.db was deleted")
    await watching
    assert failed == [store.gone]
    await end(runner, commits)

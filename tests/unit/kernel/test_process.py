"""A broker as a process: start, refusal, failure of its store, stop."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.asyncio

from scale0.broker.core.broker import Broker
from scale0.broker.main.process import run_broker, serve
from scale0.config import BrokerConfig
from scale0.kernel.edge.process import ProcessEnd
from scale0.kernel.edge.secret_files import TOKEN_FILE
from scale0.kernel.errors import ConfigError
from scale0.storage.interface import Store, StoreFailed
from scale0.storage.memory.store import MemoryStore
from scale0.storage.sqlite.store import SqliteStore

pytestmark = pytest.mark.slow

PORTS: dict[str, Any] = {f"{name}_port": 0 for name in ("frontend", "backend", "peer", "config_pub", "task_pub")}
SOON = 5.0


def config_in(folder: Path, **more: Any) -> BrokerConfig:
    return BrokerConfig(identity="b", data_dir=str(folder), **PORTS, **more)


@asynccontextmanager
async def running(config: BrokerConfig, store: Store) -> AsyncIterator[tuple[Broker, asyncio.Task[int]]]:
    """A broker in this loop; ended at the end, if it has not ended by itself."""
    loop = asyncio.get_running_loop()
    up: asyncio.Future[Broker] = loop.create_future()
    task = loop.create_task(serve(config, None, store, ProcessEnd(), up.set_result))
    both: set[asyncio.Future[Any]] = {task, up}
    await asyncio.wait(both, timeout=SOON, return_when=asyncio.FIRST_COMPLETED)
    try:
        yield up.result(), task
    finally:
        if not task.done():
            os.kill(os.getpid(), 15)
            await asyncio.wait_for(task, SOON)


@asynccontextmanager
async def admin(broker: Broker, folder: Path) -> AsyncIterator[Callable[..., Any]]:
    """Management from a raw socket, with the broker's own token."""
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.DEALER)
    socket.connect(broker.state.endpoints["frontend"])
    token = (folder / TOKEN_FILE).read_text()

    async def manage(command: str, **arguments: Any) -> dict[str, Any] | None:
        said = {"command": command, "id": "1", "auth_token": token, **arguments}
        await socket.send_multipart([b"SCALE0/1", b"MANAGEMENTREQ", json.dumps(said).encode()])
        if not await socket.poll(int(SOON * 200)):
            return None
        answer: dict[str, Any] = json.loads((await socket.recv_multipart())[2])
        return answer

    try:
        yield manage
    finally:
        context.destroy(linger=0)


def test_a_failed_commit_ends_the_process_and_nothing_is_acknowledged_after_it(tmp_path):
    """Promise: STORE-3."""
    broken = False

    def fail(point: str) -> None:
        if broken and point == "before_commit":
            raise StoreFailed("the disk failed: Input/output error")

    async def story() -> int:
        nonlocal broken
        store = MemoryStore(failpoint=fail)
        async with running(config_in(tmp_path), store) as (broker, task), admin(broker, tmp_path) as manage:
            first = await manage("patch_config", set={"network": "one"})
            assert first is not None
            assert first["code"] == 200
            broken = True
            assert await manage("patch_config", set={"network": "two"}) is None
            return await asyncio.wait_for(task, SOON)

    assert asyncio.run(story()) == 1


def test_a_disk_that_is_almost_full_refuses_changes_and_takes_them_again(tmp_path):
    async def story() -> None:
        async with running(config_in(tmp_path), MemoryStore()) as (broker, _), admin(broker, tmp_path) as manage:
            broker.state.full = True
            refused = await manage("patch_config", set={"network": "two"})
            assert refused is not None
            assert refused["code"] == 503
            broker.state.full = False
            taken = await manage("patch_config", set={"network": "two"})
            assert taken is not None
            assert taken["code"] == 200

    asyncio.run(story())


# Promise: STORE-2
@pytest.mark.parametrize("name", ["scale0.db", "scale0.db-wal", "commits"])
@pytest.mark.parametrize("replaced", [False, True])
def test_files_of_the_store_that_are_gone_end_the_process(tmp_path, caplog, name, replaced):
    path = tmp_path / name

    async def story() -> int:
        store = SqliteStore(tmp_path)
        async with running(config_in(tmp_path, store="memory"), store) as (_, task):  # nothing is exported
            if replaced:
                shutil.copy(path, tmp_path / "other")
                (tmp_path / "other").rename(path)
            else:
                path.rename(tmp_path / "away")
            status = await asyncio.wait_for(task, SOON)
        with pytest.raises(StoreFailed):
            store.commit([])
        return status

    assert asyncio.run(story()) == 1
    assert f"{path} was deleted or replaced" in caplog.text


def test_sigterm_ends_it_in_order_and_the_journal_says_so(tmp_path):
    store = MemoryStore()

    async def story() -> int:
        async with running(config_in(tmp_path), store) as (_, task):
            os.kill(os.getpid(), 15)
            return await asyncio.wait_for(task, SOON)

    assert asyncio.run(story()) == 0


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"management": {"enabled": True, "bind": "0.0.0.0"}}, "management.bind"),
        ({"store": "postgresql://localhost/x"}, "store"),
        ({"bind": "0.0.0.0", "curve": False}, "bind"),
    ],
)
def test_what_cannot_be_done_safely_is_refused_at_the_start(tmp_path, asked, reason):
    import msgspec

    config = msgspec.convert({"identity": "b", "data_dir": str(tmp_path), **PORTS, **asked}, BrokerConfig)
    with pytest.raises(ConfigError, match=reason):
        run_broker(config, None, lambda _: None)


def test_a_taken_port_says_what_to_do(tmp_path):
    async def story() -> None:
        async with running(config_in(tmp_path / "one"), MemoryStore()) as (broker, _):
            port = int(broker.state.endpoints["frontend"].rpartition(":")[2])
            taken = BrokerConfig(identity="c", data_dir=str(tmp_path / "two"), **{**PORTS, "frontend_port": port})
            with pytest.raises(OSError, match="cannot listen"):
                await serve(taken, None, MemoryStore(), ProcessEnd(), lambda _: None)

    asyncio.run(story())


# Promise: STORE-10
def test_a_signal_that_comes_between_two_servers_of_a_process_ends_the_second():
    async def story() -> None:
        ending = ProcessEnd()
        first = ending.begin()
        ending.listen()
        ending.end(-1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await first == -1
        assert await asyncio.wait_for(ending.begin(), SOON) == 0

    asyncio.run(story())

"""A disk that fills up: writes are refused before anything is decided, and work goes on once there is room."""

# Promise: TASK-11
from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scale0.broker.main.process import DISK_LOOK_SECONDS
from tests.fakes.waiting import until
from tests.processes.crash.brokers import crashing_broker
from tests.wire.scale0.raw import raws
from tests.wire.scale0.rpc import Backend, Refused, client

pytestmark = [pytest.mark.processes, pytest.mark.slow]

MEBI = 1 << 20
SIZE = 8 * MEBI
SPARE = 2 * MEBI
FULL = -32060
SOON = DISK_LOOK_SECONDS + 3
LOOK = 0.2
"""Between two probes: a disk must not be filled by asking whether it is full."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, that a few files fill. Needs root."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """A file that leaves less than the broker wants to have."""
    room = os.statvfs(folder)
    ballast = folder / "ballast"
    ballast.write_bytes(bytes(room.f_bavail * room.f_frsize - SPARE // 2))
    return ballast


def test_a_full_disk_is_refused_early_and_work_goes_on_once_there_is_room(tmp_path, small_disk):
    data = str(small_disk / "data")
    config: dict[str, Any] = {"min_free_bytes": SPARE, "default_heartbeat_interval": 60}
    with crashing_broker(tmp_path, data_dir=data, **config) as broker, raws(broker.endpoints) as net:
        owner, worker = client(net), Backend(net, "m", slots=1)
        first, second = owner.submit("m", [1]), owner.submit("m", [2])
        held = worker.tasks()[0]
        ballast = fill(small_disk)
        probes: list[str] = []

        def refuses() -> bool:
            try:
                probes.append(owner.submit("other"))
            except Refused as refused:
                return bool(refused.code == FULL)
            return False

        until(lambda: worker.idle(LOOK) and refuses(), seconds=SOON)
        assert owner.rpc.code("client_task_cancel", owner.id, second) == FULL
        before = disk_use(small_disk)
        worker.running(held)
        worker.say("TASKSDONE", [{"id": held["id"], "attempt": held["attempt"], "result": "kept"}])
        assert worker.idle(0.5), "nothing is handed out, and the result is not acknowledged"
        assert owner.code(first) in (3000, 5000)
        for _ in range(100):
            assert refuses()
        assert disk_use(small_disk) - before < SPARE // 4, "what is refused costs nothing"
        ballast.unlink()
        worker.hear("FORCENEGOTIATE", seconds=SOON)
        assert not refuses()
        worker.raw.check(worker.identity)
        worker.ready(config_version=1, holds=[[held["id"], held["attempt"]]])
        assert worker.codes(held, result="kept") == [200]
        assert owner.result(first) == "kept"
        assert worker.tasks()[0]["id"] == second
        assert [owner.code(id_) for id_ in probes] == [1000] * len(probes)
        assert broker.end() == 0
        assert "Traceback" not in broker.log_text()


def disk_use(folder: Path) -> int:
    room = os.statvfs(folder)
    return (room.f_blocks - room.f_bfree) * room.f_frsize


def test_a_disk_that_fills_up_between_two_looks_ends_the_broker_and_loses_nothing(tmp_path, small_disk):
    """Nobody may write to the very end: then a commit fails, and a commit that fails is the last one."""
    data = str(small_disk / "data")
    with crashing_broker(tmp_path, data_dir=data, min_free_bytes=0) as broker, raws(broker.endpoints) as net:
        owner = client(net, "owner")
        taken: list[str] = []
        start = time.monotonic()
        while broker.running and time.monotonic() - start < 30:
            asked = owner.rpc.ask("client_new_task", **owner.new("m", ["x" * 100_000], f"t{len(taken)}"))
            while not (received := owner.rpc.hear_bytes(0.1)) and broker.running:
                pass
            if received is not None:
                assert f'"id":{asked},"result"'.encode() in received
                taken.append(f"t{len(taken)}")
        assert broker.wait() not in (0, None)
        assert "the store failed" in broker.log_text()
    assert len(taken) > 10
    subprocess.run(["mount", "-o", f"remount,size={4 * SIZE}", str(small_disk)], check=True)
    with crashing_broker(tmp_path, data_dir=data, min_free_bytes=0) as broker, raws(broker.endpoints) as net:
        owner = client(net, "owner")
        assert [owner.code(id_) for id_ in taken] == [1000] * len(taken)

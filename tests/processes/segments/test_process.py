"""Real brokers and their writers: killed, stopped, without room, without rights; nothing is lost, and nobody waits.

Promise: SEG-1, SEG-2
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.fakes.broker_process import BrokerProcess, broker_process
from tests.fakes.helen_process import helen_process
from tests.fakes.journals import journal_events
from tests.fakes.waiting import PATIENCE_SECONDS, until
from tests.processes.segments.folders import everything, segment_events, segment_files
from tests.wire.scale0.raw import raws
from tests.wire.scale0.rpc import client

pytestmark = [pytest.mark.processes, pytest.mark.slow]

QUICK = {"segments": "", "segment_seconds": 0.2}


def data_of(broker: BrokerProcess) -> Path:
    return Path(broker.config["data_dir"])


def children(broker: BrokerProcess) -> list[psutil.Process]:
    return psutil.Process(broker.pid).children()


def writer(broker: BrokerProcess) -> psutil.Process:
    found: list[psutil.Process] = until(lambda: children(broker))
    return found[0]


def loads_arrow(pid: int) -> bool:
    return "libarrow" in Path(f"/proc/{pid}/maps").read_text()


def submit(broker: BrokerProcess, count: int) -> None:
    with raws(broker.endpoints) as net:
        owner = client(net)
        for number in range(count):
            owner.submit("m", [number])


def all_safe(broker: BrokerProcess) -> bool:
    """True once there are segments, and the journal is empty."""
    return bool(segment_files(data_of(broker) / "segments")) and not journal_events(data_of(broker))


def check_gapless(broker: BrokerProcess) -> int:
    found = everything(data_of(broker))
    assert found == list(range(1, len(found) + 1))
    return len(found)


def test_events_move_from_the_journal_to_segments_and_the_broker_never_loads_pyarrow(tmp_path):
    with broker_process(tmp_path, **QUICK) as broker:
        submit(broker, 20)
        until(lambda: all_safe(broker))
        assert loads_arrow(writer(broker).pid)
        assert not loads_arrow(broker.pid)
        assert writer(broker).nice() > psutil.Process(broker.pid).nice(), "the broker goes first"
        assert check_gapless(broker) > 20
        kinds = [event["kind"] for event in segment_events(data_of(broker) / "segments")]
        assert kinds[0] == "broker.started"
        assert kinds.count("task.submitted") == 20
        assert broker.log.read_text() == ""


def test_an_orderly_stop_leaves_nothing_in_the_journal_and_no_process(tmp_path):
    with broker_process(tmp_path, segments="") as broker:
        submit(broker, 5)
        child = writer(broker)
        assert broker.terminate() == 0
        assert not child.is_running()
    assert journal_events(data_of(broker)) == []
    events = segment_events(data_of(broker) / "segments")
    assert events[-1]["kind"] == "broker.stopped"
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))


def test_kill_9_of_broker_and_writer_at_any_moment_loses_and_doubles_nothing(tmp_path):
    dice = random.Random(7)
    with broker_process(tmp_path, **{**QUICK, "segment_seconds": 0.05}) as broker:
        for turn in range(8):
            submit(broker, 10)
            until(lambda: children(broker))
            time.sleep(dice.random() * 1.5)  # the moment is the dice's
            if turn % 2:
                writer(broker).kill()
                submit(broker, 5)
            broker.kill9()
            check_gapless(broker)
            broker.start()
        until(lambda: all_safe(broker))
        assert broker.terminate() == 0
        assert journal_events(data_of(broker)) == []
        assert check_gapless(broker) > 8 * 10
        assert "Traceback" not in broker.log.read_text()


def test_a_writer_that_is_killed_comes_back_and_it_is_logged_once(tmp_path):
    with broker_process(tmp_path, **QUICK) as broker:
        until(lambda: all_safe(broker))
        old = writer(broker)
        old.kill()
        old.wait(PATIENCE_SECONDS)
        submit(broker, 5)
        until(lambda: all_safe(broker))
        assert writer(broker).pid != old.pid
        log = broker.log.read_text()
        assert log.count("the segment exporter ended with status -9") == 1
        assert log.count("written again") == 1


def test_a_writer_that_is_stopped_keeps_nobody_waiting_and_dies_with_its_broker(tmp_path):
    with broker_process(tmp_path, **QUICK) as broker:
        until(lambda: all_safe(broker))
        stopped = writer(broker)
        stopped.send_signal(signal.SIGSTOP)
        with raws(broker.endpoints) as net:
            owner = client(net)
            slowest = 0.0
            for number in range(200):
                began = time.monotonic()
                owner.submit("m", [number])
                slowest = max(slowest, time.monotonic() - began)
        assert slowest < 2.0
        assert check_gapless(broker) > 200
        broker.kill9()
        until(lambda: not stopped.is_running() or stopped.status() == psutil.STATUS_ZOMBIE)
        broker.start()
        until(lambda: all_safe(broker))
        check_gapless(broker)


def test_an_orderly_stop_does_not_wait_for_a_writer_that_is_stopped(tmp_path):
    with broker_process(tmp_path, **QUICK) as broker:
        until(lambda: all_safe(broker))
        child = writer(broker)
        child.send_signal(signal.SIGSTOP)
        assert broker.terminate() == 0
        assert not child.is_running()
        assert "stay in the journal" in broker.log.read_text()
        assert [event["kind"] for event in journal_events(data_of(broker))] == ["broker.stopped"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, of a megabyte. Needs root."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_of_segments_is_logged_once_and_they_go_on_once_there_is_room(tmp_path, small_disk):
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize))
    with broker_process(tmp_path, **{**QUICK, "segments": str(small_disk / "segments")}) as broker:
        submit(broker, 50)
        until(lambda: "No space left" in broker.log.read_text())
        submit(broker, 50)
        assert len(journal_events(data_of(broker))) > 100
        assert segment_files(small_disk / "segments") == []
        ballast.unlink()
        until(lambda: not journal_events(data_of(broker)))
        assert everything(data_of(broker), small_disk / "segments")[-1] > 100
        log = broker.log.read_text()
        assert log.count("No space left") == 1
        assert "which grows" in log
        assert log.count("written again") == 1
        assert list(small_disk.rglob(".writing*")) == []
        assert broker.terminate() == 0


def test_segments_can_be_off_and_then_the_journal_keeps_everything(tmp_path):
    with broker_process(tmp_path, segments="off") as broker:
        submit(broker, 5)
        assert children(broker) == []
        assert broker.terminate() == 0
    assert not (data_of(broker) / "segments").exists()
    assert journal_events(data_of(broker))[-1]["kind"] == "broker.stopped"


def test_helen_has_segments_of_her_own(tmp_path):
    with broker_process(tmp_path / "broker", segments="off") as broker:
        (tmp_path / "helen").mkdir()
        with helen_process(tmp_path / "helen", broker, segments="", segment_seconds=0.2) as helen:
            until(lambda: segment_files(tmp_path / "helen" / "segments"))
            assert not loads_arrow(helen.process.pid)
            assert helen.end() == 0
    assert journal_events(tmp_path / "helen") == []
    events = segment_events(tmp_path / "helen" / "segments")
    assert {event["source"] for event in events} == {helen.identity}
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))


def test_neither_brokers_nor_helens_nor_agents_import_pyarrow():
    code = (
        "import sys\n"
        "import scale0.broker.main.process, scale0.monitoring.helen.edge.process, scale0.cli.main\n"
        "import scale0.history.segments.exporter_process\n"
        "from scale0.monitoring.agent.edge import agent, lua_process, plugin_runner, process\n"
        "assert not [name for name in sys.modules if name.partition('.')[0] in ('pyarrow', 'numpy', 'pandas')]\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)

"""Checks of the machine itself, on this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time

import psutil
import pytest

from scale0.monitoring.checks import disk, memory, tcp
from scale0.monitoring.checks.check_run import MIN_SECONDS, BlockingCalls, CheckFailed, CheckRun, Deadline, RunState
from scale0.monitoring.checks.registry import built_in
from tests.fakes.waiting import until
from tests.processes.checks.servers import again, metrics, run


def test_load_is_what_the_system_says_by_core():
    found = run("load", warn=1e9, crit=1e9)
    values = metrics(found)
    assert found.state == "ok"
    assert values["load1"].value == pytest.approx(os.getloadavg()[0], abs=1)
    assert values["load5_per_core"].value == pytest.approx(values["load5"].value / (os.cpu_count() or 1))


def test_each_average_may_have_a_range_of_its_own():
    found = run("load", warn=[None, None, "@0:1e9"], crit=None)
    assert found.state == "warning"
    assert found.message.startswith("15-minute load")
    assert metrics(found)["load15_per_core"].warn == 1e9
    assert run("load", warn=[1, 2], crit=None).state == "unknown"
    whole = run("load", warn="@0:1e9", crit=None, per_core=False)
    assert metrics(whole)["load1"].warn == 1e9
    assert metrics(whole)["load1_per_core"].warn is None


def test_memory_agrees_with_psutil():
    ours, theirs = memory.from_meminfo(), memory.from_psutil()
    assert ours is not None
    assert ours.total == theirs.total
    assert ours.available == pytest.approx(theirs.available, rel=0.1)
    values = metrics(run("memory", warn=None, crit=None))
    assert values["used_bytes"].value + values["available_bytes"].value == theirs.total
    assert values["used_percent"].max == 100


def test_memory_in_use_is_judged_by_percent_or_by_what_is_left():
    assert run("memory", warn="@0:100", crit=None).state == "warning"
    left = run("memory", available_crit="1e18:")
    assert left.state == "critical"
    assert "available" in left.message


def test_swap_is_measured_or_reported_as_missing():
    found = run("swap", warn=None, crit=None, missing="warning")
    if psutil.swap_memory().total:
        assert found.state == "ok"
        assert "in_bytes_per_second" in metrics(found)
    else:
        assert (found.state, found.message) == ("warning", "there is no swap")


def test_uptime_tells_a_machine_that_started_again():
    found = run("uptime", warn="1e12:")
    assert found.state == "warning"
    assert metrics(found)["uptime_seconds"].value == pytest.approx(time.clock_gettime(time.CLOCK_BOOTTIME), abs=5)


def test_cpu_tells_what_happened_since_its_last_run():
    check = built_in()["cpu"]
    first = again(check, warn=None, crit=None)
    assert "since boot" in first.message
    ends = time.monotonic() + MIN_SECONDS + 0.1
    while time.monotonic() < ends:  # a core is busy, and it is us
        pass
    second = again(check, warn=None, crit=None)
    values = metrics(second)
    assert "since boot" not in second.message
    assert values["busy_percent"].value > 100 / (os.cpu_count() or 1) / 2
    assert all(0 <= metric.value <= 100 for metric in second.metrics)


def test_runs_that_follow_at_once_are_not_judged_over_nothing():
    check = built_in()["cpu"]
    again(check)
    assert "since boot" in again(check).message


def test_other_args_have_another_last_run():
    check = built_in()["cpu"]
    again(check, warn=None)
    time.sleep(MIN_SECONDS)  # the time itself is what is measured
    assert "since boot" in again(check, warn=99).message
    assert "since boot" not in again(check, warn=None).message


@pytest.mark.processes
def test_network_tells_rates_of_the_interfaces_that_were_asked_for():
    check = built_in()["network"]
    assert again(check, include=["lo"]).state in ("ok", "warning")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        ends = time.monotonic() + MIN_SECONDS + 0.1
        sent = 0
        while time.monotonic() < ends:
            sent += sock.sendto(bytes(10_000), ("127.0.0.1", 9))
    found = again(check, include=["lo"])
    assert metrics(found)["sent_bytes_per_second:lo"].value > sent / 10
    assert {name.partition(":")[0] for name in metrics(found)} == {
        *("received_bytes_per_second", "sent_bytes_per_second", "errors_per_second", "drops_per_second")
    }


def test_an_interface_that_is_named_and_not_there_is_critical():
    found = run("network", include=["lo", "nosuch7"])
    assert found.state == "critical"
    assert "nosuch7" in found.message
    assert run("network", include=["nosuch*"]).state == "unknown"


def test_disk_tells_space_and_inodes_of_every_real_mount():
    found = run("disk", warn=None, crit=None, inodes_warn=None, inodes_crit=None)
    assert found.state == "ok"
    values = metrics(found)
    room = psutil.disk_usage("/")
    assert values["used_percent:/"].value == pytest.approx(room.percent, abs=1)
    assert values["free_bytes:/"].value == pytest.approx(room.free, rel=0.05)
    assert values["used_bytes:/"].max == pytest.approx(room.used + room.free, rel=0.01)
    assert not [name for name in values if name.endswith((":/proc", ":/sys"))]


def test_disk_is_judged_by_percent_bytes_and_inodes():
    assert run("disk", include=["/"], warn="@0:100", crit=None).state == "warning"
    assert run("disk", include=["/"], warn=None, crit=None, free_crit="1e18:").state == "critical"
    assert "inodes" in run("disk", include=["/"], inodes_warn="@0:100", inodes_crit=None).message


def test_mounts_are_chosen_by_name_and_glob():
    sized = [p.mountpoint for p in psutil.disk_partitions(all=True) if os.path.isdir(p.mountpoint)]
    mount = max(sized, key=lambda mount: os.statvfs(mount).f_blocks)
    assert f"used_percent:{mount}" in metrics(run("disk", include=[mount], warn=None, crit=None))
    assert f"used_percent:{mount}" in metrics(run("disk", include=["/*"], warn=None, crit=None))
    missing = run("disk", include=["/", "/not/mounted"])
    assert missing.state == "critical"
    assert "/not/mounted" in missing.message
    assert run("disk", include=["/not/*"]).state == "unknown"
    assert run("disk", exclude=["*"]).state == "unknown"


# Promise: CHECK-1
def test_a_call_that_hangs_costs_one_thread_however_often_it_is_asked():
    aside = BlockingCalls(limit=1)
    free, calls = threading.Event(), []

    def hang():
        calls.append(1)
        free.wait()
        return 7

    for _ in range(3):
        with pytest.raises(TimeoutError):
            aside.call("mount", hang, 0.01)
    assert calls == [1]
    with pytest.raises(TimeoutError, match="hang already"):
        aside.call("other", hang, 0.01)
    free.set()
    until(lambda: not aside._calls)
    assert aside.call("other", lambda: 8, 5) == 8
    with pytest.raises(ZeroDivisionError):
        aside.call("fails", lambda: 1 // 0, 5)


@pytest.fixture
def hung():
    """Hang calls of given keys for as long as the test runs."""
    free = threading.Event()
    aside = BlockingCalls()

    def hang(*keys):
        for key in keys:
            with pytest.raises(TimeoutError):
                aside.call(key, free.wait, 0)
        return aside

    yield hang
    free.set()
    until(lambda: not aside._calls)


# Promise: CHECK-1
def test_a_mount_that_hangs_is_reported_and_the_others_too(hung):
    around = CheckRun("disk", Deadline(0.5), RunState(), hung(("disk", "/")), None)
    found = disk.measure(disk.Args(include=("/", "/nowhere")), around)
    assert found.state == "critical"
    assert "/ does not answer" in found.message
    assert "/nowhere" in found.message


# Promise: CHECK-1
def test_a_name_server_that_hangs_ends_with_the_timeout(hung):
    key = ("lookup", "x.invalid", 80, socket.SOCK_STREAM, socket.AF_UNSPEC)
    around = CheckRun("tcp", Deadline(0.2), RunState(), hung(key), None)
    with pytest.raises(CheckFailed, match=r"x\.invalid:80: no answer in time"):
        tcp.measure(tcp.Args(host="x.invalid", port=80), around)


@pytest.mark.processes
def test_processes_are_found_by_name_command_line_and_user():
    mark = f"mark-{os.getpid()}"
    child = subprocess.Popen([sys.executable, "-c", "input()", mark], stdin=subprocess.PIPE)
    try:
        until(lambda: run("process", command=mark).state == "ok")
        found = run("process", command=mark, name="python*", user=psutil.Process(child.pid).username(), crit="1:1")
        values = metrics(found)
        assert (found.state, values["count"].value) == ("ok", 1)
        assert values["memory_bytes"].value > 1_000_000
        assert values["threads"].value >= 1
        assert run("process", command=mark, memory_crit=1).state == "critical"
        assert run("process", command=mark, age_warn="1e6:").state == "warning"
        assert run("process", command=mark, warn="0").state == "warning"
        assert run("process", command=mark, name="nosuch").state == "critical"
        assert run("process", command=mark, user="nosuch").state == "critical"
    finally:
        child.communicate(b"\n")
    gone = run("process", command=mark)
    assert (gone.state, metrics(gone)["count"].value) == ("critical", 0)


@pytest.mark.processes
def test_cpu_of_a_process_is_what_it_used_since_the_last_run():
    mark = f"spin-{os.getpid()}"
    child = subprocess.Popen([sys.executable, "-c", "while True: pass", mark])
    check = built_in()["process"]
    try:
        until(lambda: again(check, command=mark).state == "ok")
        spent = psutil.Process(child.pid).cpu_times().user
        until(lambda: psutil.Process(child.pid).cpu_times().user > spent + MIN_SECONDS)
        assert metrics(again(check, command=mark))["cpu_percent"].value > 1  # its share on a busy machine
        assert again(check, command=mark, cpu_crit=0.1).state == "critical"
    finally:
        child.kill()
        child.wait()


def test_a_process_check_must_say_which():
    assert "is required" in run("process").message


def test_file_age_tells_the_newest_and_the_oldest(tmp_path):
    now = time.time()
    for name, age in (("a.log", 1_000), ("b.log", 100), ("c.txt", 10)):
        (tmp_path / name).write_bytes(b"x" * age)
        os.utime(tmp_path / name, (now - age, now - age))
    (tmp_path / "d.log").mkdir()
    glob = str(tmp_path / "*.log")
    newest = metrics(run("file_age", path=glob))
    assert newest["age_seconds"].value == pytest.approx(100, abs=20)
    assert (newest["size_bytes"].value, newest["files"].value) == (100, 2)
    oldest = run("file_age", path=glob, which="oldest", warn=500, crit=5_000, size_crit="2000:")
    assert oldest.state == "critical"
    assert metrics(oldest)["age_seconds"].value == pytest.approx(1_000, abs=20)
    assert "a.log" in oldest.message
    assert run("file_age", path=str(tmp_path / "c.txt"), warn=500).state == "ok"


def test_a_file_that_is_not_there_has_the_state_that_was_asked_for(tmp_path):
    path = str(tmp_path / "none")
    assert run("file_age", path=path).state == "critical"
    assert run("file_age", path=path, missing="ok").state == "ok"
    assert run("file_age", path=f"{path}*", missing="warning").state == "warning"


def test_a_file_from_the_future_is_new(tmp_path):
    (tmp_path / "f").touch()
    os.utime(tmp_path / "f", (time.time() + 9_999,) * 2)
    assert metrics(run("file_age", path=str(tmp_path / "f"), crit=60))["age_seconds"].value == 0


def test_names_that_are_no_unicode_can_still_be_reported(tmp_path):
    from scale0.monitoring.protocol.results import write_result

    with open(os.fsencode(tmp_path) + b"/\xff.log", "wb"):
        pass
    assert b"state" in write_result(run("file_age", path=str(tmp_path / "*.log")))

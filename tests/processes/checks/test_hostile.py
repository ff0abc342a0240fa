"""Checks with hostile arguments or hostile servers end in time and in little memory."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import psutil
import pytest

from scale0.monitoring.agent.core.plugin_command import MAX_ARGS_BYTES
from scale0.monitoring.checks import certificates, disk
from scale0.monitoring.checks.check_run import BlockingCalls, CheckFailed, CheckRun, Deadline, RunState
from scale0.monitoring.checks.file_age import matching
from scale0.monitoring.checks.registry import built_in
from scale0.monitoring.protocol.results import write_result
from tests.processes.checks.servers import certificate, metrics, run, tcp_server


@pytest.mark.parametrize("pattern", ["[" * 4_000, "*a" * 2_000, "?" * 300, "x" * 257 + "*"])
@pytest.mark.parametrize(
    ("check", "key"), [("network", "include"), ("network", "exclude"), ("disk", "exclude"), ("process", "name")]
)
def test_a_pattern_that_takes_long_to_prepare_is_refused(check, key, pattern):
    """One of them holds the agent's own loop: while it works nothing else does."""
    began = time.monotonic()
    found = run(check, 5.0, **{key: [pattern] * 15 if key != "name" else pattern})
    assert found.state == "unknown"
    assert "a pattern has at most" in found.message
    assert time.monotonic() - began < 1


def test_patterns_of_logs_have_the_same_limit(tmp_path):
    (tmp_path / "log").write_text("a\n")
    found = run("log", path=str(tmp_path / "log"), match=["[" * 4_000], glob=True)
    assert "a pattern has at most" in found.message
    assert run("log", path=str(tmp_path / "log"), match=["[" * 4_000]).state == "ok"


@pytest.mark.processes
def test_a_page_in_pieces_of_less_than_nothing_is_not_read_to_its_end():
    """http.client would take all that comes, and a hostile server sends without end."""
    sent = 0

    def serve(connection):
        nonlocal sent
        connection.recv(65_536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n")
        while sent < 2**28:
            sent += connection.send(bytes(2**16))

    with tcp_server(serve) as port:
        found = run("http", url=f"http://127.0.0.1:{port}/", max_bytes=1_000)
    assert found.state == "critical"
    assert "below zero" in found.message
    assert sent < 2**26


@pytest.mark.parametrize("kind", ["pipe", "device", "empty", "folder"])
def test_authorities_are_read_from_a_file_and_nothing_else(tmp_path, kind):
    path = tmp_path / "ca.pem"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        path.touch()
    began = time.monotonic()
    found = run("tls", host="127.0.0.1", port=1, ca_file=str(path), timeout=5.0)
    assert found.state == "unknown"
    assert "cannot be read" in found.message
    assert time.monotonic() - began < 2


def test_one_file_of_authorities_is_one_context_by_whatever_name(tmp_path):
    (tmp_path / "x").mkdir()
    with pytest.raises(CheckFailed):
        certificates.context_of(True, str(tmp_path / "none"), _run())
    here = _run()
    (tmp_path / "ca.pem").write_text("é\n" + certificate(tmp_path, 10).read_text())
    first = certificates.context_of(True, str(tmp_path / "ca.pem"), here)
    assert certificates.context_of(True, str(tmp_path / "x" / ".." / "ca.pem"), here) is first
    assert len(first.get_ca_certs()) == 1


def _run() -> CheckRun:
    return CheckRun(("tls", b"{}"), Deadline(5.0), RunState(), BlockingCalls(), None)


def test_a_walk_over_many_folders_ends_with_its_time_also_where_nothing_matches(tmp_path):
    for number in range(20):
        (tmp_path / f"{number}").mkdir()
    deadline = Deadline(0.001)
    while not deadline.passed():
        pass
    with pytest.raises(TimeoutError):
        list(matching(f"{tmp_path}/*/*/nothing", deadline))


def test_patterns_of_files_mean_what_they_mean_to_a_shell(tmp_path, monkeypatch):
    for name in ("a/x.log", "a/.hidden.log", "b/y.log", "b/y.txt", ".c/z.log"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "b" / "gone.log").symlink_to(tmp_path / "nowhere")
    deadline = Deadline(5.0)

    def found(pattern):
        return sorted(path.removeprefix(f"{tmp_path}/") for path in matching(pattern, deadline))

    assert found(f"{tmp_path}/*/*.log") == ["a/x.log", "b/gone.log", "b/y.log"]
    assert found(f"{tmp_path}/.*/z.*") == [".c/z.log"]
    assert found(f"{tmp_path}//[ab]/./x.log") == ["a/./x.log"]
    monkeypatch.chdir(tmp_path)
    assert found("*/y.???") == ["b/y.log", "b/y.txt"]
    assert run("file_age", path=f"{tmp_path}/*/*.log").metrics[-1].value == 2


def test_a_mount_with_a_name_that_is_no_unicode_is_reported_as_far_as_it_can_be(monkeypatch):
    """Whoever may mount chooses the name; it must not be the end of whoever reports it."""

    class Partition:
        mountpoint = os.fsdecode(b"/mnt/\xff")
        fstype = "tmpfs"
        device = "x"

    monkeypatch.setattr(psutil, "disk_partitions", lambda all: [Partition])
    monkeypatch.setattr(disk, "statvfs_of", lambda _mount: os.statvfs("/"))
    found = run("disk", include=["/mnt/*"], warn=None, crit=None, inodes_warn=None, inodes_crit=None)
    assert "used_percent:/mnt/?" in metrics(found)
    assert json.loads(write_result(found))["metrics"][0]["name"] == "used_percent:/mnt/?"


def test_long_args_are_refused_and_those_that_pass_are_not_kept_whole():
    checks = built_in()
    found = checks["cpu"].run(b"{" + b" " * MAX_ARGS_BYTES + b"}", 5.0)
    assert "more than" in found.message
    seen: list[bytes] = []
    real = RunState.put

    class Spy(RunState):
        def put(self, key, value):
            seen.append(key[1])
            real(self, key, value)

    runner: Any = checks["cpu"].run
    runner._states = Spy()
    for padding in (1, 60_000):
        assert runner(b"{" + b" " * padding + b"}", 5.0).state != "unknown"
    assert seen[0] == b"{ }"
    assert len(seen[-1]) <= 64

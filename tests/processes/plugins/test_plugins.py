"""Real plugins: their output arrives, every run is bounded, and no process survives."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from scale0.config.schema import Plugin
from scale0.kernel.errors import ConfigError
from scale0.monitoring.agent.edge import plugin_runner, sandbox
from scale0.monitoring.agent.edge.cgroup import GROUP_PREFIX, PidsCgroups, PidsLimitEvents, enter_group
from scale0.monitoring.agent.edge.plugin_runner import KILL_SECONDS, MAX_OUTPUT_BYTES
from scale0.monitoring.agent.edge.plugins import SPARE_SECONDS, Plugins
from scale0.monitoring.agent.edge.process_launcher import ProcessLauncher
from tests.fakes.waiting import until
from tests.processes.plugins.hostile_checks import (
    HOSTILE_SECONDS,
    ON_TIME_SECONDS,
    PLUGINS,
    SHELL,
    children,
    launchers,
    marked,
    open_folder,
    resident_bytes,
    write_shell,
)

pytestmark = pytest.mark.processes

LATE_SECONDS = KILL_SECONDS + SPARE_SECONDS + 2.0
"""How late the finding of a plugin may be that leaves its runner no processor time."""


def plugin(name, *words):
    return Plugin(name=name, command=words)


def run(*plugins, name=None, args=b"", timeout=5.0):
    async def once():
        with closing(Plugins(plugins)) as checks:
            return await checks.run(name or plugins[0].name, args, timeout)

    return asyncio.run(once())


@pytest.mark.parametrize(("status", "state"), [(0, "ok"), (1, "warning"), (2, "critical"), (3, "unknown")])
def test_check_dummy(status, state):
    found = run(plugin("dummy", f"{PLUGINS}/check_dummy", "{status}", "as told"), args=b'{"status": %d}' % status)
    assert (found.state, found.message.partition(": ")[2]) == (state, "as told")
    assert found.started == pytest.approx(time.time(), abs=30)
    assert 0 < found.seconds < 5


# Promise: CHECK-5
@pytest.mark.parametrize(
    ("words", "metric"),
    [
        (("check_load", "-w", "1000,1000,1000", "-c", "2000,2000,2000"), "load1"),
        (("check_disk", "-w", "1%", "-c", "0%", "-p", "/"), "/"),
        (("check_procs", "-w", "100000"), "procs"),
        (("check_users", "-w", "1000", "-c", "2000"), "users"),
    ],
)
def test_perfdata_of_real_plugins_arrives_as_metrics(words, metric):
    found = run(plugin("one", f"{PLUGINS}/{words[0]}", *words[1:]))
    assert found.state == "ok", found
    assert metric in [one.name for one in found.metrics]


def test_check_tcp_against_a_real_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = run(
            plugin("tcp", f"{PLUGINS}/check_tcp", "-H", "127.0.0.1", "-p", "{port}"), args=b'{"port":%d}' % port
        )
    assert found.state == "ok", found
    assert found.metrics[0].name == "time"
    assert found.metrics[0].unit == "s"


def test_what_cannot_be_run_is_unknown_and_says_why():
    assert "No such file" in run(plugin("none", "/nowhere/check")).message
    with open_folder() as folder:
        (folder / "text").write_text("no program")
        assert "Permission denied" in run(plugin("text", str(folder / "text"))).message
    assert run(plugin("a", "true"), name="b").message == "there is no plugin b"
    assert run(plugin("a", "true"), args=b'{"x":1}').message.startswith("unknown argument")
    assert run(plugin("a", "sh", "-c", "kill -9 $$")).message.startswith("the plugin was killed by signal 9")


# Promise: CHECK-3
def test_a_plugin_gets_nothing_of_ours(monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_AGENT", "x")
    found = run(
        plugin("look", "sh", "-c", "env | sort; pwd; ls /proc/self/fd | wc -l; readlink /proc/self/fd/0; umask")
    )
    lines = found.message.splitlines()
    assert lines[:4] == ["HOME=/", "LANG=C.UTF-8", lines[2], "PWD=/"]
    assert lines[4:6] == ["/", "4"]  # the fourth is ls' own
    assert lines[6] == "/dev/null"
    limits = run(plugin("limits", "sh", "-c", "ulimit -v; ulimit -n; ulimit -c; ulimit -f")).message.split()
    assert limits == ["1048576", "256", "0", "131072"]


# Promise: CHECK-3
def test_where_the_agent_is_root_its_plugins_run_as_another_user():
    found = run(
        plugin("id", "sh", "-c", "id -u; id -g; id -G; grep CapEff /proc/self/status; kill -0 $PPID && echo bad")
    )
    words = found.message.split()
    if os.geteuid() == 0:
        assert words == ["65534", "65534", "65534", "CapEff:", "0000000000000000"]
    else:
        assert words[0] == str(os.geteuid())


def test_a_user_that_does_not_exist_is_a_fault_of_the_file():
    if os.geteuid() == 0:
        with pytest.raises(ConfigError, match="user nobody-of-that-name does not exist"):
            Plugins([], "nobody-of-that-name")
    else:
        Plugins([], "nobody-of-that-name").close()


# Promise: CHECK-2
def test_output_of_exactly_the_limit_passes_and_one_byte_more_does_not():
    full = run(plugin("full", "head", "-c", str(MAX_OUTPUT_BYTES), "/dev/zero"))
    assert full.state == "ok"
    assert "too much output" in run(plugin("more", "head", "-c", str(MAX_OUTPUT_BYTES + 1), "/dev/zero")).message


# Promise: CHECK-1, CHECK-2
@pytest.mark.slow
@pytest.mark.parametrize("name", SHELL)
async def test_a_hostile_plugin_is_bounded_and_the_next_is_on_time(name):
    mark = f"mark-{secrets.token_hex(8)}"

    before = resident_bytes()
    dummy = plugin("dummy", f"{PLUGINS}/check_dummy", "0")
    with open_folder() as folder, closing(Plugins([*write_shell(folder, mark), dummy])) as checks:
        assert (await checks.run("dummy", b"", 10.0)).state == "ok"
        begun = time.monotonic()
        hostile = asyncio.create_task(checks.run(name, b"", HOSTILE_SECONDS))
        beside = []
        while not hostile.done():
            asked = time.monotonic()
            assert (await checks.run("dummy", b"", 10.0)).state == "ok"
            beside.append(time.monotonic() - asked)
            await asyncio.sleep(0.02)
        found = await hostile
        took = time.monotonic() - begun
        assert (await checks.run("dummy", b"", 10.0)).state == "ok"
        assert not marked(mark)
    assert not marked(mark)
    assert took < HOSTILE_SECONDS + LATE_SECONDS, found
    assert max(beside) < ON_TIME_SECONDS, found
    assert resident_bytes() - before < 16 * 2**20
    if name == "escape":
        assert found.state == "ok"
    elif name in ("gigabyte", "complain"):
        assert "too much output" in found.message
    elif name in ("fork_bomb", "wide_bomb"):
        assert found.state == "unknown"
        # A busy machine may end the time before the shell has started too many, or the runner could answer.
        ends = ("too many processes", "no answer from the plugin runner", *(["longer than"] * (name == "wide_bomb")))
        assert any(end in found.message for end in ends), found
    elif name == "memory":
        assert "longer than" in found.message or "memory exhausted" in found.message
    else:
        assert found.message == f"killed: it took longer than {HOSTILE_SECONDS:g} s"


# Promise: CHECK-2
async def test_a_run_that_nobody_waits_for_any_more_is_ended():
    mark = f"60.{secrets.randbelow(10**9)}"

    with closing(Plugins([plugin("sleep", "sleep", mark), plugin("fine", "true")])) as checks:
        task = asyncio.create_task(checks.run("sleep", b"", 50.0))
        await asyncio.to_thread(until, lambda: marked(mark))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(until, lambda: not marked(mark))
        assert (await checks.run("fine", b"", 10.0)).state == "ok"
        task = asyncio.create_task(checks.run("sleep", b"", 50.0))
        await asyncio.to_thread(until, lambda: marked(mark))
    assert "killed" in (await task).message
    assert not marked(mark)


async def test_a_killed_plugin_runner_or_launcher_costs_one_run():
    mark = f"60.{secrets.randbelow(10**9)}"

    with closing(Plugins([plugin("sleep", "sleep", mark), plugin("fine", "true")])) as checks:
        assert (await checks.run("fine", b"", 10.0)).state == "ok"
        (launcher,) = launchers()
        for victim in ("plugin runner", "launcher"):
            task = asyncio.create_task(checks.run("sleep", b"", 50.0))
            await asyncio.to_thread(until, lambda: marked(mark))
            for pid in [launcher] if victim == "launcher" else children(launcher):
                os.kill(pid, signal.SIGKILL)
            if victim == "plugin runner":
                assert "was killed" in (await task).message
                await asyncio.to_thread(until, lambda: not marked(mark))
            else:
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert (await checks.run("fine", b"", 10.0)).state == "ok"
            await asyncio.to_thread(until, lambda: not marked(mark))


# Promise: CHECK-2
@pytest.mark.slow
def test_nothing_outlives_an_agent_that_is_killed():
    mark = f"60.{secrets.randbelow(10**9)}"
    script = f"""
import asyncio
from scale0.config.schema import Plugin
from scale0.monitoring.agent.edge.process_launcher import ProcessLauncher
from scale0.monitoring.agent.edge.plugins import Plugins
async def main():
    checks = Plugins([Plugin(name="a", command=("sh", "-c", "setsid sleep {mark} & sleep {mark}"))])
    await checks.run("a", b"", 60)
asyncio.run(main())
"""
    agent = subprocess.Popen([sys.executable, "-c", script])
    try:
        until(lambda: len([line for line in marked(mark) if line.startswith("sleep")]) == 2)
        (launcher,) = launchers(agent.pid)
    finally:
        agent.kill()
        agent.wait()
    until(lambda: not marked(mark))
    until(lambda: not Path(f"/proc/{launcher}").exists())


# Promise: CHECK-2
async def test_cgroups_for_processes_are_used_where_they_can_be_made_and_removed_again():
    cgroups = PidsCgroups()
    group = cgroups.make()
    if not group:  # no right to make one, or no cgroups: then processes are counted by looking
        enter_group(group)
        assert not PidsLimitEvents(group).occurred()
        return
    assert cgroups.remove(group)
    folder = Path(group).parent

    with closing(Plugins([plugin("where", "cat", "/proc/self/cgroup")])) as checks:
        found = await checks.run("where", b"", 10.0)
        assert GROUP_PREFIX in found.message
        (launcher,) = launchers()
        assert list(folder.glob(f"{GROUP_PREFIX}{launcher}-*"))
    assert not list(folder.glob(f"{GROUP_PREFIX}{launcher}-*"))


async def test_idle_plugin_runners_are_used_again_and_no_more_than_needed():
    with closing(Plugins([plugin("fine", "true")])) as checks:
        for _ in range(20):
            await checks.run("fine", b"", 10.0)
        assert len(children(*launchers())) == 1
        await asyncio.gather(*(checks.run("fine", b"", 10.0) for _ in range(6)))
        assert 1 <= len(children(*launchers())) <= 6


async def test_a_launcher_that_cannot_start_ends_runs_with_the_reason(capfd):
    with closing(Plugins([plugin("fine", "true")])) as checks:
        checks._launcher = ProcessLauncher("no such role", "")
        found = await asyncio.gather(*(checks.run("fine", b"", 10.0) for _ in range(5)))
        assert {one.state for one in found} == {"unknown"}
        assert all(one.message for one in found)
    assert "KeyError" in capfd.readouterr().err


# Promise: CHECK-2
@pytest.mark.slow
async def test_a_plugin_runner_that_stands_still_is_killed_and_its_plugin_with_it(monkeypatch):
    """While it starts a plugin it has the user of plugins, and another of these may stop it."""
    monkeypatch.setattr("scale0.monitoring.agent.edge.plugins.KILL_SECONDS", 0.2)
    monkeypatch.setattr("scale0.monitoring.agent.edge.plugins.SPARE_SECONDS", 0.2)
    mark = secrets.token_hex(8)

    with closing(Plugins([plugin("sleep", "sh", "-c", "setsid sleep 60 & sleep 60", mark)])) as checks:
        run = asyncio.create_task(checks.run("sleep", b"", 1.0))
        await asyncio.to_thread(until, lambda: marked(mark))
        (launcher,) = launchers()
        (stopped,) = children(launcher)
        os.kill(stopped, signal.SIGSTOP)
        assert "no answer" in (await run).message
        await asyncio.to_thread(until, lambda: not marked(mark) and not children(launcher))


def test_what_a_plugin_runner_has_spent_is_not_taken_from_the_next_plugin(monkeypatch):
    """The limit of what it starts is its own as well: one that has worked for long would be killed."""
    limits: list[int] = []
    monkeypatch.setattr(time, "process_time", lambda: 100.5)
    monkeypatch.setattr(sandbox, "limit_cpu", limits.append)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        one = plugin_runner.PluginRunner(theirs, None, "")
        try:
            one._run(["/nowhere/at/all"], 3.0)
        finally:
            os.close(one._dev_null)
    assert limits == [105]

"""The pool of Lua processes: every run is bounded, no run waits behind a slow one, and no process survives."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from scale0.monitoring.agent.edge.lua_pool import LONG_SECONDS, LuaChecks
from scale0.monitoring.agent.edge.process_launcher import ProcessLauncher
from tests.fakes.waiting import until
from tests.processes.plugins.hostile_checks import (
    HOSTILE_SECONDS,
    LUA,
    ON_TIME_SECONDS,
    children,
    launchers,
    open_folder,
    resident_bytes,
    write_lua,
)

pytestmark = pytest.mark.processes

LATE_SECONDS = 3.0
"""The process of a hostile check is ended by a signal, and the machine may be busy."""


@pytest.fixture
def folder():
    with open_folder() as folder:
        yield folder


@pytest.fixture
def lua_folder(folder):
    """With hostile checks, and one that is fine."""
    write_lua(folder)
    return folder


async def test_where_the_agent_is_root_its_lua_runs_as_another_user(lua_folder):
    with closing(LuaChecks(lua_folder)) as checks:
        await checks.run("fine", b"", 5.0)
        found = [standing(child) for child in children(*launchers())]
    assert found
    for uids, groups, capabilities, limits in found:
        if os.geteuid() == 0:
            assert (uids, groups, capabilities) == (["65534"] * 4, [], "0" * 16)
        assert limits["Max file size"] == limits["Max core file size"] == limits["Max processes"] == "0"


def standing(pid):
    """Who a process is, and what it may."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    limits = {line[:26].strip(): line[26:47].strip() for line in Path(f"/proc/{pid}/limits").read_text().splitlines()}
    return status["Uid"].split(), status["Groups"].split(), status["CapEff"].strip(), limits


# Promise: CHECK-1, CHECK-2
@pytest.mark.slow
@pytest.mark.parametrize("name", LUA)
async def test_a_hostile_check_is_bounded_and_the_next_is_on_time(lua_folder, name):
    with closing(LuaChecks(lua_folder)) as checks:
        assert (await checks.run("fine", b"", 10.0)).state == "ok"
        begun = time.monotonic()
        hostile = [asyncio.create_task(checks.run(name, b"", HOSTILE_SECONDS)) for _ in range(2)]
        beside, memory = [], 0
        while not all(task.done() for task in hostile):
            asked = time.monotonic()
            assert (await checks.run("fine", b"", 10.0)).state == "ok"
            beside.append(time.monotonic() - asked)
            memory = max([memory, *map(resident, children(*launchers()))])
            await asyncio.sleep(0.02)
        took = time.monotonic() - begun
        found = [await task for task in hostile]
    assert [one.state for one in found] == ["unknown", "unknown"], found
    assert all(one.message for one in found)
    assert took < HOSTILE_SECONDS + LATE_SECONDS
    assert max(beside) < ON_TIME_SECONDS
    assert memory < 160 * 2**20
    assert not launchers()


def resident(pid):
    try:
        return resident_bytes(pid)
    except OSError:
        return 0


# Promise: CHECK-1
async def test_runs_behind_one_that_hangs_are_done_elsewhere_and_each_once(lua_folder):
    async def timed(name, args, timeout):
        begun = time.monotonic()
        return await checks.run(name, args, timeout), time.monotonic() - begun

    with closing(LuaChecks(lua_folder)) as checks:
        await checks.run("fine", b"", 10.0)
        spins = [timed("spin", b"", HOSTILE_SECONDS) for _ in range(5)]
        fine = [timed("fine", b'{"say":"%d"}' % number, 10.0) for number in range(40)]
        mixed = [one for pair in zip(fine[:5], spins, strict=True) for one in pair]
        found = await asyncio.gather(*mixed, *fine[5:])
    spun, done = found[1:10:2], [*found[0:10:2], *found[10:]]
    assert {one.message for one, _ in spun} == {f"killed: it took longer than {HOSTILE_SECONDS:g} s"}
    assert max(took for _, took in spun) < HOSTILE_SECONDS + 0.5
    assert [one.message for one, _ in done] == [str(number) for number in range(40)]
    assert max(took for _, took in done) < 5 * LONG_SECONDS + ON_TIME_SECONDS


async def test_a_killed_child_or_launcher_costs_at_most_the_run_that_it_was_busy_with(lua_folder):
    with closing(LuaChecks(lua_folder)) as checks:
        await checks.run("fine", b"", 10.0)
        (launcher,) = launchers()
        spin = asyncio.create_task(checks.run("spin", b"", 20.0))
        await asyncio.to_thread(until, lambda: busy(launcher))
        for child in children(launcher):
            os.kill(child, signal.SIGKILL)
        assert "died" in (await spin).message
        assert (await checks.run("fine", b"", 10.0)).state == "ok"
        old = [Path(f"/proc/{child}/cmdline") for child in children(launcher)]
        os.kill(launcher, signal.SIGKILL)
        # The kernel kills them with it, but a moment later; who is dead and not buried has no command line.
        await asyncio.to_thread(until, lambda: not any(line.exists() and line.read_bytes() for line in old))
        found = await asyncio.gather(*(checks.run("fine", b"", 10.0) for _ in range(10)))
        assert {one.state for one in found} == {"ok"}


def busy(launcher):
    """True when a child has used some time: it spins."""
    lines = [Path(f"/proc/{child}/stat").read_text() for child in children(launcher)]
    ticks = [int(line.rpartition(")")[2].split()[11]) for line in lines]
    return any(one > 5 for one in ticks)


# Promise: CHECK-2
@pytest.mark.slow
def test_nothing_outlives_an_agent_that_is_killed(lua_folder):
    script = f"""
import asyncio
from scale0.monitoring.agent.edge.lua_pool import LuaChecks
asyncio.run(LuaChecks({str(lua_folder)!r}).run("spin", b"", 60))
"""
    agent = subprocess.Popen([sys.executable, "-c", script])
    try:
        until(lambda: launchers(agent.pid))
        (launcher,) = launchers(agent.pid)
        until(lambda: busy(launcher))
        spinning = children(launcher)
    finally:
        agent.kill()
        agent.wait()
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in [launcher, *spinning]))


async def test_a_file_that_changed_is_another_check_at_once(folder):
    file = folder / "it.lua"
    with closing(LuaChecks(folder)) as checks:
        assert checks.names == ()
        assert (await checks.run("it", b"", 5.0)).message == "there is no Lua check 'it'"
        file.write_text("return function() return {state = 'ok', message = 'one'} end")
        assert "it" in checks.names
        assert (await checks.run("it", b"", 5.0)).message == "one"
        file.write_text("return function() return {state = 'ok', message = 'three'} end")
        assert (await checks.run("it", b"", 5.0)).message == "three"
        before = children(*launchers())
        checks.reload()
        assert (await checks.run("it", b"", 5.0)).message == "three"
        await asyncio.to_thread(until, lambda: not set(before) & set(children(*launchers())))
        file.chmod(0o666)
        checks.reload()
        assert "everybody may write to it" in (await checks.run("it", b"", 5.0)).message
        file.unlink()
        assert checks.names == ()
        assert (await checks.run("../it", b"", 5.0)).message == "there is no Lua check '../it'"


async def test_reload_lets_who_runs_finish(folder):
    (folder / "slow.lua").write_text(
        "return function() local t = os.clock() + 0.05 while os.clock() < t do end return {state = 'ok'} end"
    )
    with closing(LuaChecks(folder)) as checks:
        runs = [asyncio.create_task(checks.run("slow", b"", 10.0)) for _ in range(6)]
        await asyncio.to_thread(until, lambda: launchers() and children(*launchers()))
        checks.reload()
        assert [(await one).state for one in runs] == ["ok"] * 6


async def test_at_the_end_whoever_waits_is_answered(lua_folder):
    with closing(LuaChecks(lua_folder)) as checks:
        runs = [asyncio.create_task(checks.run("spin", b"", 30.0)) for _ in range(3)]
        await asyncio.to_thread(until, lambda: launchers() and children(*launchers()))
    assert [(await one).message for one in runs] == ["the agent is stopping"] * 3
    assert not launchers()


async def test_an_agent_without_such_checks_has_no_such_process(folder):
    with closing(LuaChecks(folder / "not there")) as checks:
        assert checks.names == ()
        assert not launchers()


async def test_a_launcher_that_cannot_start_ends_runs_with_the_reason(lua_folder, capfd):
    with closing(LuaChecks(lua_folder)) as checks:
        checks._launcher = ProcessLauncher("no such role", "")
        found = await asyncio.gather(*(checks.run("fine", b"", 10.0) for _ in range(5)))
        assert {one.message for one in found} == {"no Lua process could be started"}
    assert "KeyError" in capfd.readouterr().err

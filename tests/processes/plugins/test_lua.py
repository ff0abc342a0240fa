"""Lua checks: what they can use, what they return, and that each is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time

import pytest

from scale0.history.events.columns import EventMetric
from scale0.kernel.errors import Refusal
from scale0.monitoring.agent.edge.lua_files import MAX_SOURCE_BYTES, LuaFiles
from scale0.monitoring.agent.edge.lua_pool import LuaChecks
from tests.processes.plugins.hostile_checks import FINE, open_folder

pytestmark = pytest.mark.processes


class OneFile:
    """A folder with one check, whose text changes from run to run; one pool for all."""

    def __init__(self, folder, runner):
        self._file = folder / "it.lua"
        self._runner = runner
        self._checks = LuaChecks(folder)

    def run(self, source, args=b"", timeout=5.0):
        """One run of one text."""
        self._file.write_bytes(source.encode() if isinstance(source, str) else source)
        return self._runner.run(self._checks.run("it", args, timeout))

    def message_of(self, expression, args=b""):
        """What a check says that evaluates an expression."""
        found = self.run(f"return function(args) return {{state = 'ok', message = tostring({expression})}} end", args)
        assert found.state == "ok", found
        return found.message

    async def close(self):
        self._checks.close()


@pytest.fixture(scope="module")
def lua():
    with open_folder() as folder, asyncio.Runner() as runner:
        one = OneFile(folder, runner)
        yield one
        runner.run(one.close())


# Promise: CHECK-4
def test_a_check_as_the_documentation_has_it(lua):
    found = lua.run(
        'return function(args) return {state = "warning", message = "fine", metrics = {{name = "n", value = 1}}} end'
    )
    assert (found.state, found.message, found.metrics) == ("warning", "fine", (EventMetric("n", 1.0),))
    assert found.started == pytest.approx(time.time(), abs=30)
    assert 0 < found.seconds < 1


def test_metrics_have_all_their_fields_and_those_that_are_none_are_left_out(lua):
    found = lua.run(
        """return function() return {state = "critical", metrics = {
            {name = "a", value = 1.5, unit = "s", warn = 2, crit = 3, min = 0, max = 10},
            {name = "b"}, {value = 1}, "text", {name = "nan", value = 0/0}, {name = "inf", value = 1/0},
            {name = "c", value = 2, warn = 0/0, unit = {}}, {name = ("n"):rep(200), value = 1}, {name = "", value = 1},
            {name = 7, value = "8"}, {name = 7, value = 8}}} end"""
    )
    assert found.metrics == (
        EventMetric("a", 1.5, "s", 2.0, 3.0, 0.0, 10.0),
        EventMetric("c", 2.0),
        EventMetric("7", 8.0),
    )


# Promise: CHECK-5
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("return 5", "it: the file must return a function"),
        ("", "it: the file must return a function"),
        ("return function(", "it:1: <name> or '...' expected near <eof>"),
        ("return function() error('broken') end", "it:1: broken"),
        ("return function() error({}) end", "an error that is a table"),
        ("return function() error(setmetatable({}, {__tostring = error})) end", "an error that is a table"),
        ("return function() error() end", "an error that is a nil"),
        ("return function() end", "it: the check returned a nil, no table"),
        ("return function() return {} end", "invalid state ''"),
        ("return function() return {state = 'fine'} end", "invalid state 'fine'"),
        ("return function() return {state = 'failed', message = 'x'} end", "x"),
        ("return function() return nothing.here end", "it:1: attempt to index a nil value"),
        ("return function() return setmetatable({}, {__gc = function() end}) end", "__gc is not available"),
        (b"\x1bLua binary", "attempt to load a binary chunk"),
        ("x" * (MAX_SOURCE_BYTES + 1), "has more than"),
        (b"return function() return {state = '\xff\xfe'} end", "invalid state '��'"),
    ],
)
def test_whatever_is_wrong_is_unknown_and_says_so(lua, source, reason):
    found = lua.run(source)
    assert found.state == "unknown"
    assert reason in found.message


def test_text_that_is_no_utf_8_still_arrives(lua):
    found = lua.run(
        b"return function() return {state = 'ok', message = 'a\xffb', metrics = {{name = '\xff', value = 1}}} end"
    )
    assert found.message == "a�b"
    assert found.metrics == (EventMetric("�", 1.0),)


@pytest.mark.parametrize(
    ("args", "expression", "value"),
    [
        (b'{"a": 1}', "args.a + 1", "2"),
        (b'{"a": 1.5}', "args.a", "1.5"),
        (b'{"a": "\xc3\xa4"}', "#args.a", "2"),
        (b'{"a": [1, [2, {"b": true}]]}', "args.a[2][2].b", "true"),
        (b'{"a": null, "b": [null, 2]}', "tostring(args.a) .. #args", "nil0"),
        (b'{"a": 123456789012345678901234567890}', "args.a > 1e29", "true"),
        (b'{"a": "x", "b": {}}', "type(args.b)", "table"),
        (b"", "next(args)", "nil"),
        (b"{}", "next(args)", "nil"),
    ],
)
def test_arguments_are_lua_values(lua, args, expression, value):
    assert lua.message_of(expression, args) == value


@pytest.mark.parametrize(
    "args", [b"[]", b"5", b"no", b"[" * 5_000, b'{"a":' * 500 + b"1" + b"}" * 500, b'{"a":"\xff"}']
)
def test_arguments_that_are_no_object_are_unknown(lua, args):
    found = lua.run(FINE, args)
    assert found.state == "unknown"
    assert found.message.startswith("the arguments are")


def test_arguments_too_long_are_unknown(lua):
    assert "more than 65536" in lua.run(FINE, b'{"say":"' + b"x" * 70_000 + b'"}').message


# Promise: CHECK-4
@pytest.mark.parametrize(
    "name",
    [
        *("io", "debug", "package", "python", "require", "dofile", "loadfile", "load", "collectgarbage", "print"),
        *("os.execute", "os.exit", "os.getenv", "os.remove", "os.rename", "os.tmpname", "os.setlocale", "string.dump"),
        *("loadstring", "warn", "_G.python", "_ENV.io", "setfenv", "host.ask"),
    ],
)
def test_a_check_does_not_see(lua, name):
    assert lua.message_of(name) == "nil"


@pytest.mark.parametrize("name", ["string.format", "table.concat", "math.floor", "utf8.char", "os.time", "os.date"])
def test_a_check_sees(lua, name):
    assert lua.message_of(name).startswith(("function: ", "builtin"))


# Promise: CHECK-4
def test_no_object_of_python_is_in_reach(lua):
    """Walk through everything that can be reached, metatables included."""
    found = lua.run(
        """return function(args)
            local seen, todo, strange = {}, {_G, args, getmetatable(""), host}, {}
            while #todo > 0 do
                local one = table.remove(todo)
                if not seen[one] then
                    seen[one] = true
                    local kind = type(one)
                    if kind == "userdata" or kind == "thread" then strange[#strange + 1] = tostring(one) end
                    local meta = getmetatable(one)
                    if meta ~= nil then todo[#todo + 1] = meta end
                    if kind == "table" then
                        for key, value in next, one do todo[#todo + 1] = key todo[#todo + 1] = value end
                    end
                end
            end
            for name, ask in pairs(host) do
                for _, wrong in ipairs({{}, 5, true, ask}) do
                    local results = table.pack(pcall(ask, wrong))
                    for index = 1, results.n do
                        if type(results[index]) == "userdata" then strange[#strange + 1] = name end
                    end
                end
            end
            return {state = "ok", message = table.concat(strange, " ")}
        end""",
        b'{"a": [1, "x", {"b": null}]}',
    )
    assert (found.state, found.message) == ("ok", "")


# Promise: CHECK-4
async def test_nothing_of_one_run_is_left_for_the_next():
    with open_folder() as folder, contextlib.closing(LuaChecks(folder)) as checks:
        (folder / "it.lua").write_text(
            """count = (count or 0) + 1
            string.mine = (string.mine or 0) + 1
            getmetatable("").mine = (getmetatable("").mine or 0) + 1
            host.mine = (host.mine or 0) + 1
            return function() return {state = "ok",
                message = count .. string.mine .. getmetatable("").mine .. host.mine} end"""
        )
        assert [(await checks.run("it", b"", 5.0)).message for _ in range(6)] == ["1111"] * 6


# Promise: CHECK-4
def test_what_the_host_table_says(lua):
    found = lua.run(
        """return function()
            local m, d, l = host.memory(), host.disk("/"), host.load()
            local none, why = host.disk("/no/such/place")
            local no, reason = host.read("/etc/passwd")
            assert(none == nil and no == nil and #l == 3)
            assert(m.available <= m.total and d.used <= d.total and host.uptime() > 0 and host.cpus() >= 1)
            return {state = "ok", message = table.concat({host.name(), why, reason,
                tostring(host.read("/proc/uptime"):match("^%d+") ~= nil)}, "|"),
                metrics = {{name = "total", value = m.total}}}
        end"""
    )
    assert found.state == "ok", found
    assert found.message.split("|") == [
        socket.gethostname(),
        "No such file or directory",
        "/etc/passwd is not a file that checks may read",
        "true",
    ]
    assert found.metrics[0].value == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


# Promise: CHECK-4
@pytest.mark.parametrize(
    "path",
    [
        *(
            "/proc/1/environ",
            "/proc/self/mem",
            "/proc/kcore",
            "/proc/../etc/passwd",
            "/sys/class/net/../../../etc/passwd",
        ),
        *("/proc/sys/kernel/core_pattern", "proc/stat", "", "/sys/kernel/debug/x", "/proc/meminfo\\0x", ("x" * 5_000)),
    ],
)
def test_files_that_a_check_may_not_read(lua, path):
    assert lua.message_of(f'host.read("{path}")') == "nil"


def test_a_number_that_no_float_holds_is_a_bad_argument_and_no_death(lua):
    found = lua.run(FINE, b'{"n":' + b"9" * 400 + b"}")
    assert found.state == "unknown"
    assert "out of range" in found.message


@pytest.mark.parametrize("path", ["/sys/class/net/../../kernel/notes", "/sys/class/net/lo/../../../../etc/passwd"])
def test_no_way_leads_up_from_the_folders_that_checks_may_read(lua, path):
    assert "not a file that checks may read" in lua.message_of(f"select(2, host.read({path!r}))")


# Promise: CHECK-4
@pytest.mark.parametrize("kind", ["pipe", "folder", "shared", "shared later"])
def test_a_file_is_judged_as_it_is_opened(tmp_path, kind):
    """A pipe would hold the agent for good; in a folder that anybody may write, so is every file."""
    path = tmp_path / "it.lua"
    tmp_path.chmod(0o755)
    files = LuaFiles(tmp_path)
    if kind == "pipe":
        os.mkfifo(path)
        with pytest.raises(OSError):
            files._read(str(path), "it")
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_text(FINE)
        path.chmod(0o644)
        if kind == "shared later":
            assert files.source("it").text.decode() == FINE
            path.chmod(0o666)
        else:
            tmp_path.chmod(0o777)
    with pytest.raises(Refusal, match="there is no" if kind in ("pipe", "folder") else "everybody may write"):
        files.source("it")

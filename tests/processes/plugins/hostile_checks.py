"""Hostile plugins and Lua checks, and helpers that find their processes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from scale0.config.schema import Plugin

PLUGINS: Final = "/usr/lib/nagios/plugins"
HOSTILE_SECONDS: Final = 0.7
"""The timeout that hostile checks get."""
ON_TIME_SECONDS: Final = 3.0
"""An innocent check beside a hostile one ends within this, on a busy machine."""

SHELL: Final = {
    "spin": "while :; do :; done",
    "deaf": "trap '' TERM INT HUP QUIT; while :; do sleep 1; done",
    "fork_bomb": 'f() { f "$1" | f "$1" & }; f "$1"; sleep 60',
    "wide_bomb": "while :; do sleep 60 & done",
    "escape": 'setsid sh -c "sleep 60 # $1" & (setsid sh -c "sleep 61 # $1" &) ; echo OK; exit 0',
    "chain": 'setsid sh -c "(sleep 60; : $1) & (sleep 61; : $1) & sleep 62; : $1" & sleep 60',
    "gigabyte": "yes 0123456789012345678901234567890123456789 | head -c 1000000000",
    "complain": "yes 0123456789012345678901234567890123456789 | head -c 1000000000 >&2",
    "mute": "exec >&- 2>&- <&-; sleep 60",
    "memory": "tail /dev/zero",
}
"""Plugins that misbehave; $1 is a mark by which they are found."""

LUA: Final = {
    "spin": "return function() while true do end end",
    "load_spin": "while true do end",
    "pattern": 'return function() return {state = "ok", message = ("a"):rep(60000):match((".-"):rep(40) .. "b")} end',
    "string": 'return function() local s = "x" while true do s = s .. s end end',
    "rep": 'return function() return {state = "ok", message = ("x"):rep(2^40)} end',
    "table": "return function() local t = {} while true do t[#t + 1] = {} end end",
    "caught": """return function()
        while true do pcall(function() local s = "x" while true do s = s .. s end end) end
    end""",
    "recursion": "return function() local function f() return 1 + f() end return f() end",
    "c_recursion": 'local function f() return ("x"):gsub(".", f) end return f',
    "coroutines": "local function f() return coroutine.wrap(f)() end return f",
    "index": "return function() return setmetatable({}, {__index = function() while true do end end}) end",
    "sort": """return function()
        local t = {}
        for i = 1, 1e5 do t[i] = i end
        while true do table.sort(t, function(a, b) return a > b end) end
    end""",
}
"""Lua checks that misbehave."""

FINE: Final = (
    'return function(args) return {state = "ok", message = args.say or "fine", metrics = {{name = "n", value = 1}}} end'
)


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that the user of checks can read: pytest's own are for one user only."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


def write_shell(folder: Path, mark: str) -> list[Plugin]:
    """Every hostile plugin as a file and its entry in an agent's file."""
    out = []
    for name, text in SHELL.items():
        path = folder / f"{name}.sh"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        out.append(Plugin(name=name, command=(str(path), mark)))
    return out


def write_lua(folder: Path) -> None:
    """Every hostile Lua check, and one that is fine."""
    for name, text in {**LUA, "fine": FINE}.items():
        (folder / f"{name}.lua").write_text(text)


def marked(mark: str) -> list[str]:
    """Command lines of everybody alive who has the mark, ourselves left out."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if mark.encode() in line and pid != str(os.getpid()):
            found.append(line.replace(b"\0", b" ").decode(errors="replace"))
    return found


def children(pid: int) -> list[int]:
    """Its children."""
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def launchers(pid: int | None = None) -> list[int]:
    """Launchers among a process' children; ours, if it is not said whose."""
    mark = b"scale0.monitoring.agent.edge.launcher_process"
    return [one for one in children(pid or os.getpid()) if mark in Path(f"/proc/{one}/cmdline").read_bytes()]


def resident_bytes(pid: int | str = "self") -> int:
    """What a process holds in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

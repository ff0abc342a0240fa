"""An agent process and the raw Helen that it connects to."""

from __future__ import annotations

import shutil
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.wire.monitoring.authority import Authority, Papers, new_authority
from tests.wire.monitoring.helen_1 import Helen1, Line
from tests.wire.monitoring.processes import Process

LUA = {
    "fine": 'return function(args) return {state = "ok", message = "fine", metrics = {{name = "n", value = 1}}} end',
    "echo": 'return function(args) return {state = "ok", message = tostring(args.x)} end',
    "broken": 'return function(args) error("it broke") end',
    "nonsense": "this is not lua (",
    "nothing": "return 5",
    "spins": "return function(args) while true do end end",
    "eats": 'return function(args) local t = {} while true do t[#t + 1] = string.rep("x", 1e6) .. #t end end',
    "pattern": 'return function(args) string.find(string.rep("a", 40), string.rep("a?", 40) .. string.rep("a", 40)) '
    'return {state = "ok"} end',
    "sees": """return function(args)
        local seen = {}
        for _, name in ipairs({"io", "package", "require", "debug", "python", "dofile", "loadfile", "load"}) do
            if _G[name] ~= nil then seen[#seen + 1] = name end
        end
        for _, name in ipairs({"execute", "remove", "rename", "exit", "getenv", "tmpname"}) do
            if os and os[name] ~= nil then seen[#seen + 1] = "os." .. name end
        end
        return {state = "ok", message = table.concat(seen, " ") .. "|" .. type(host)}
    end""",
    "both": 'return function(args) return {state = "ok", message = "lua"} end',
}


def plugins(place: Path) -> list[dict[str, Any]]:
    """What the agent's file allows; scripts are the file's own words, so a shell that they name is the file's wish."""

    def shell(name: str, script: str) -> dict[str, Any]:
        return {"name": name, "command": ["/bin/sh", "-c", script]}

    return [
        {"name": "plain", "command": ["/bin/echo", "DISK OK - free | '/'=2643MB;5948;5958;0;5968 time=0.5s"]},
        {"name": "metas", "command": f"/bin/echo $HOME `id` $(id) ; touch {place}/by-line & > {place}/by-redirect"},
        {"name": "word", "command": ["/bin/echo", "got:{value}:"]},
        {"name": "state", "command": ["/bin/sh", "-c", "echo state $0; exit $0", "{code}"]},
        {"name": "sleepy", "command": ["/bin/sleep", "{seconds}"]},
        {"name": "missing", "command": ["/nonexistent/plugin"]},
        shell("dies", "kill -9 $$"),
        shell("chatty", "yes 0123456789 | head -c 20000000"),
        shell("deaf", "trap '' TERM; while :; do sleep 0.1; done"),
        shell("leaves", f"(setsid sleep 77 </dev/null >/dev/null 2>&1 & echo $! > {place}/left); echo left one"),
        shell("binary", "printf 'a\\377\\000b\\nresult 1 x 0\\n'"),
    ]


class House:
    """One agent, its folder, its authority and where it connects."""

    def __init__(self, folder: Path, authority: Authority, ports: list[int], **config: Any) -> None:
        self.folder, self.place = folder, folder / "place"
        self.checks = folder / "checks"
        self.checks.mkdir(parents=True)
        self.place.mkdir()
        self.place.chmod(0o777)
        for name, text in LUA.items():
            (self.checks / f"{name}.lua").write_text(text)
        self.papers: Papers = authority.agent("web-1", days=config.pop("days", 300))
        settings = {
            "helen": [f"127.0.0.1:{port}" for port in ports],
            "certificate": str(self.papers.certificate),
            "private_key": str(self.papers.key),
            "server_ca": str(authority.file),
            "checks_dir": str(self.checks),
            "plugins": plugins(self.place),
            "check_timeout": 2,
            "data_dir": str(folder / "data"),
            "labels": {"role": "db"},
            **config,
        }
        self.process = Process("agent", folder, settings)
        self.line: Line | None = None

    @staticmethod
    def _welcomed(helen: Helen1) -> Line:
        """The agent that is there; one that was killed while it knocked may have left its knock behind."""
        while True:
            try:
                return helen.welcome()
            except (ssl.SSLEOFError, ConnectionResetError):
                continue

    def on_line(self, helen: Helen1) -> Line:
        """The connection that is there, else the next one."""
        if self.line is None or self.line.is_over():
            self.hang_up()
            self.line = self._welcomed(helen)
        return self.line

    def anew(self) -> None:
        """A fresh process, which has not been sent away yet and so comes at once."""
        self.hang_up()
        self.process.close()
        self.process.start()

    def hang_up(self) -> None:
        if self.line is not None:
            self.line.close()
            self.line = None


@contextmanager
def house(helen_kind: type[Helen1], helens: int = 1, **config: Any) -> Iterator[tuple[House, list[Helen1]]]:
    """A running agent that knows the first of these Helens; anybody may enter its folder, as plugins do."""
    folder = Path(tempfile.mkdtemp(prefix="equus-"))
    folder.chmod(0o755)
    authority = new_authority(folder / "ca")
    listening = [helen_kind(authority, authority.helen()) for _ in range(helens)]
    made = House(folder / "agent", authority, [listening[0].port], **config)
    made.folder.chmod(0o755)
    try:
        made.process.start()
        yield made, listening
    finally:
        made.hang_up()
        made.process.close()
        for helen in listening:
            helen.close()
        shutil.rmtree(folder)

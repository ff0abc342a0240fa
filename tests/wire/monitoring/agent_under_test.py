"""The agent process under test, and the fake Helens that it connects to."""

from __future__ import annotations

import shutil
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.fakes.agent_process import AgentProcess
from tests.fakes.certificates import Authority
from tests.fakes.fake_helen import AgentConnection, FakeHelen

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


def plugins(scratch: Path) -> list[dict[str, Any]]:
    """What the agent's file allows; a script runs in a shell because the file names one."""

    def shell(name: str, script: str) -> dict[str, Any]:
        return {"name": name, "command": ["/bin/sh", "-c", script]}

    return [
        {"name": "plain", "command": ["/bin/echo", "DISK OK - free | '/'=2643MB;5948;5958;0;5968 time=0.5s"]},
        {"name": "metas", "command": f"/bin/echo $HOME `id` $(id) ; touch {scratch}/by-line & > {scratch}/by-redirect"},
        {"name": "word", "command": ["/bin/echo", "got:{value}:"]},
        {"name": "state", "command": ["/bin/sh", "-c", "echo state $0; exit $0", "{code}"]},
        {"name": "sleepy", "command": ["/bin/sleep", "{seconds}"]},
        {"name": "missing", "command": ["/nonexistent/plugin"]},
        shell("dies", "kill -9 $$"),
        shell("chatty", "yes 0123456789 | head -c 20000000"),
        shell("deaf", "trap '' TERM; while :; do sleep 0.1; done"),
        shell("leaves", f"(setsid sleep 77 </dev/null >/dev/null 2>&1 & echo $! > {scratch}/left); echo left one"),
        shell("binary", "printf 'a\\377\\000b\\nresult 1 x 0\\n'"),
    ]


class AgentUnderTest(AgentProcess):
    """An agent with checks of each kind, and its connection to a fake Helen."""

    def __init__(self, folder: Path, authority: Authority, port: int, **config: Any) -> None:
        folder.mkdir(mode=0o755)
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        self.scratch.chmod(0o777)
        settings = {"plugins": plugins(self.scratch), "check_timeout": 2, "labels": {"role": "db"}, **config}
        super().__init__(folder, authority, port, **settings)
        for name, text in LUA.items():
            (self.checks_dir / f"{name}.lua").write_text(text)
        self.connection: AgentConnection | None = None

    def connected_to(self, helen: FakeHelen, version: int = 1) -> AgentConnection:
        """The connection that is there, else the next one; a killed agent may have left one that is closed."""
        while self.connection is None or self.connection.is_closed():
            self.disconnect()
            try:
                self.connection = helen.welcome(version)
            except (ssl.SSLEOFError, ConnectionResetError):
                continue
        return self.connection

    def restart(self) -> None:
        """A new process, which was not sent away yet and so connects at once."""
        self.disconnect()
        self.close()
        self.start()

    def disconnect(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None


@contextmanager
def agent_under_test(helens: int = 1, **config: Any) -> Iterator[tuple[AgentUnderTest, list[FakeHelen]]]:
    """A running agent that knows the first of these Helens; every user may enter its folder, as plugins do."""
    folder = Path(tempfile.mkdtemp(prefix="equus-"))
    folder.chmod(0o755)
    authority = Authority(folder / "ca")
    listening = [FakeHelen(authority.helen_context()) for _ in range(helens)]
    agent = AgentUnderTest(folder / "agent", authority, listening[0].port, **config)
    try:
        agent.start()
        yield agent, listening
    finally:
        agent.disconnect()
        agent.close()
        for helen in listening:
            helen.close()
        shutil.rmtree(folder)

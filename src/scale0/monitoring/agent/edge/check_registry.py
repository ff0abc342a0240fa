"""What an agent can run: plugins of its own file, built-in checks, Lua files; one name space.

Lives here: who answers to a name. Never here: how a check runs. Invariant: a name means one check; two that want the
same name are a fault that is told before the agent starts.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from scale0.kernel.errors import ConfigError
from scale0.monitoring.agent.edge.running_checks import Inline, InProcess, InThread, Run
from scale0.monitoring.checks.registry import BuiltIn
from scale0.monitoring.protocol.results import CheckFinding

log = logging.getLogger("scale0.agent")


class CheckProcesses(Protocol):
    """Checks in processes of their own."""

    @property
    def names(self) -> tuple[str, ...]: ...
    async def start(self) -> None: ...
    async def run(self, name: str, args: bytes, timeout: float) -> CheckFinding: ...
    def close(self) -> None: ...


class NoCheckProcesses:
    """None: an agent without plugins pays nothing for them."""

    names: tuple[str, ...] = ()

    async def start(self) -> None: ...

    async def run(self, name: str, args: bytes, timeout: float) -> CheckFinding:
        raise KeyError(name)

    def close(self) -> None: ...


class CheckRegistry:
    """Every check of this agent, by name."""

    def __init__(self, plugins: CheckProcesses, built_in: Mapping[str, BuiltIn], lua: CheckProcesses) -> None:
        self._plugins = plugins
        self._lua = lua
        self._table: dict[str, Run] = {
            name: Inline(one.run) if one.quick else InThread(one.run) for name, one in built_in.items()
        }
        faults = [f"plugins: {name} is a built-in check" for name in plugins.names if name in self._table]
        faults += [f"checks_dir: {name}.lua: {name} is a built-in check" for name in lua.names if name in self._table]
        faults += [f"checks_dir: {name}.lua: {name} is a plugin" for name in lua.names if name in plugins.names]
        if faults:
            raise ConfigError(faults)
        for name in plugins.names:
            self._table[name] = InProcess(bound(plugins, name))

    @property
    def names(self) -> list[str]:
        """All of them, as they are now."""
        return sorted({*self._table, *self._lua.names})

    def find(self, name: str) -> Run | None:
        """How to run it; None: there is no such check."""
        run = self._table.get(name)
        if run is None and name in self._lua.names:
            run = InProcess(bound(self._lua, name))
        return run


def bound(children: CheckProcesses, name: str) -> Callable[[bytes, float], Awaitable[CheckFinding]]:
    """Run the check of this name."""
    return lambda args, timeout: children.run(name, args, timeout)

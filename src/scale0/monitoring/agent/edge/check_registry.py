"""The checks that an agent can run, by name: plugins, built-in checks and Lua files.

Invariant: a name means one check; a name that is used twice is a configuration error when the agent starts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from scale0.kernel.errors import ConfigError
from scale0.monitoring.agent.edge.running_checks import Inline, InProcess, InThread, Run
from scale0.monitoring.checks.registry import BuiltIn
from scale0.monitoring.protocol.results import CheckFinding


class CheckProcesses(Protocol):
    """Checks that run in processes of their own."""

    @property
    def names(self) -> tuple[str, ...]: ...
    async def run(self, name: str, args: bytes, timeout: float) -> CheckFinding: ...
    def close(self) -> None: ...


class NoCheckProcesses:
    """For an agent without plugins."""

    names: tuple[str, ...] = ()

    async def run(self, name: str, args: bytes, timeout: float) -> CheckFinding:
        raise KeyError(name)

    def close(self) -> None: ...


class CheckRegistry:
    def __init__(self, plugins: CheckProcesses, built_in: Mapping[str, BuiltIn], lua: CheckProcesses) -> None:
        self._lua = lua
        self._table: dict[str, Run] = {
            name: Inline(one.run) if one.quick else InThread(one.run) for name, one in built_in.items()
        }
        errors = [f"plugins: {name} is a built-in check" for name in plugins.names if name in self._table]
        errors += [f"checks_dir: {name}.lua: {name} is a built-in check" for name in lua.names if name in self._table]
        errors += [f"checks_dir: {name}.lua: {name} is a plugin" for name in lua.names if name in plugins.names]
        if errors:
            raise ConfigError(errors)
        for name in plugins.names:
            self._table[name] = InProcess(_runner_of(plugins, name))

    @property
    def names(self) -> list[str]:
        """The names of all checks; Lua files may come and go."""
        return sorted({*self._table, *self._lua.names})

    def find(self, name: str) -> Run | None:
        """How to run a check; None: there is no such check."""
        run = self._table.get(name)
        if run is None and name in self._lua.names:
            run = InProcess(_runner_of(self._lua, name))
        return run


def _runner_of(processes: CheckProcesses, name: str) -> Callable[[bytes, float], Awaitable[CheckFinding]]:
    return lambda args, timeout: processes.run(name, args, timeout)

"""The commands below `scale0`, each imported only when it is needed.

One command costs the import of its own module; help, completion and suggestions read the names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Final

import click

MODULES: Final[Mapping[str, str]] = {
    "up": "demo.up",
    "broker": "broker.command",
    "worker": "tasks.worker",
    "helen": "monitoring.helen",
    "agent": "monitoring.agent",
    "call": "network.call",
    "task": "tasks.task",
    "services": "network.listing",
    "queues": "network.queues",
    "clients": "network.listing",
    "error-clients": "network.queues",
    "status": "network.status",
    "top": "top.command",
    "peers": "broker.peers",
    "groups": "broker.peers",
    "topology": "broker.peers",
    "agents": "monitoring.listing",
    "checks": "monitoring.listing",
    "check": "monitoring.check",
    "incidents": "monitoring.listing",
    "events": "network.events",
    "audit": "network.audit",
    "explain": "network.explain",
    "report": "pipeline.report",
    "handler": "monitoring.handler",
    "silence": "monitoring.silences",
    "downtime": "monitoring.silences",
    "pipeline": "pipeline.pipeline",
    "config": "network.config",
    "enable": "broker.state_commands",
    "disable": "broker.state_commands",
    "drain": "broker.state_commands",
    "reload": "broker.state_commands",
    "store": "broker.store",
    "keys": "keys.keys",
    "token": "keys.keys",
    "access": "keys.access",
    "management": "network.http",
    "password": "keys.access",
    "completion": "completion",
    "doctor": "network.doctor",
    "demo": "demo.command",
    "chaos": "demo.chaos",
    "bench": "bench.command",
}
"""The module of each command below `scale0.cli`; in it the command is called as on the command line, with _ for -."""


EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "up": ("agent", "http", "segments"),
    "demo": ("agent", "segments"),
    "helen": ("agent",),
    "agent": ("agent",),
    "management": ("http",),
    "top": ("tui",),
    "events": ("segments",),
    "audit": ("segments",),
    "explain": ("segments",),
    "pipeline": ("pipeline",),
}
"""The extras of the package that a command needs; see pyproject.toml."""


class CommandTable(MutableMapping[str, click.Command]):
    def __init__(self, modules: Mapping[str, str] = MODULES) -> None:
        self._modules = dict(modules)
        self._imported: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._imported:
            module = import_module(f"scale0.cli.{self._modules[name]}")
            self._imported[name] = getattr(module, name.replace("-", "_"))
        return self._imported[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._modules[name] = ""
        self._imported[name] = command

    def __delitem__(self, name: str) -> None:
        del self._modules[name]
        self._imported.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)

"""The commands below `scale0`, each imported when somebody asks for it.

Lives here: where each of them is. Never here: a command. Invariant: who types one command waits for the import of that
one; help, completion and guesses at what was meant read the names, and import what they show.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Final

import click

PLACES: Final[Mapping[str, str]] = {
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
    "keys": "keys.keys",
    "token": "keys.keys",
    "access": "keys.access",
    "management": "network.http",
    "password": "keys.password",
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
    "report": ("pipeline",),
    "pipeline": ("pipeline",),
}
"""The extras of the package that a command needs; see pyproject.toml."""


class CommandTable(MutableMapping[str, click.Command]):
    """What click takes for a dict of commands."""

    def __init__(self, places: Mapping[str, str] = PLACES) -> None:
        self._places = dict(places)
        self._found: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._found:
            module = import_module(f"scale0.cli.{self._places[name]}")
            self._found[name] = getattr(module, name.replace("-", "_"))
        return self._found[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._places[name] = ""
        self._found[name] = command

    def __delitem__(self, name: str) -> None:
        del self._places[name]
        self._found.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

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
    "up": "up",
    "broker": "broker",
    "worker": "worker",
    "helen": "helen",
    "agent": "agent",
    "call": "call",
    "task": "task",
    "services": "look",
    "queues": "queues",
    "clients": "look",
    "error-clients": "queues",
    "status": "status",
    "top": "top",
    "peers": "brokers",
    "groups": "brokers",
    "topology": "brokers",
    "agents": "watching",
    "checks": "watching",
    "check": "check",
    "incidents": "watching",
    "events": "events",
    "audit": "audit",
    "explain": "explain",
    "report": "report",
    "handler": "handler",
    "silence": "quiet",
    "downtime": "quiet",
    "pipeline": "pipeline",
    "config": "configuration",
    "enable": "command",
    "disable": "command",
    "drain": "command",
    "reload": "command",
    "keys": "keys",
    "token": "keys",
    "access": "access",
    "management": "management",
    "password": "password",
    "completion": "completion",
    "doctor": "doctor",
    "demo": "demo",
    "chaos": "chaos",
    "bench": "bench",
}
"""The file of each command below cli; in it the command is called as on the command line, with _ for -."""


class Commands(MutableMapping[str, click.Command]):
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

"""The commands as a tree, and the tables of docs/parity.md.

Lives here: words to commands. Never here: what a command should do.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click

from scale0.cli.main import cli
from tests.docs import pages

REPOSITORY = Path(__file__).resolve().parents[3]
CONSOLE = REPOSITORY / "console" / "src"
PARITY = (REPOSITORY / "docs" / "parity.md").read_text(encoding="utf-8")
_QUOTED = re.compile(r"`(scale0 [^`]+)`")
_FIELD = r'{name}: "([^"]*)"'


def leaves(group: click.Group = cli, *words: str) -> Iterator[tuple[str, click.Command]]:
    """Everything that can be run: also a group that does something by itself."""
    for name, command in group.commands.items():
        path = " ".join((*words, name))
        if isinstance(command, click.Group):
            if command.invoke_without_command:
                yield path, command
            yield from leaves(command, *words, name)
        else:
            yield path, command


LEAVES = dict(leaves())


def options(command: click.Command) -> set[str]:
    return {word for parameter in command.params for word in (*parameter.opts, *parameter.secondary_opts)}


def named(line: str) -> tuple[str, list[str]]:
    """`scale0 task list --all`: the command, and the words after it."""
    words = shlex.split(line)[1:]
    for count in range(len(words), 0, -1):
        if " ".join(words[:count]) in LEAVES:
            return " ".join(words[:count]), words[count:]
    raise AssertionError(f"there is no such command: {line}")


def section(title: str) -> str:
    return PARITY.split(f"\n## {title}\n")[1].split("\n## ")[0]


def table(title: str) -> dict[str, list[str]]:
    """By the first cell, the commands of the second; headless."""
    rows = [cells for cells in pages.table_rows(section(title)) if len(cells) == 2]
    return {cells[0]: _QUOTED.findall(cells[1]) for cells in rows if _QUOTED.findall(cells[1])}


def alone() -> dict[str, str]:
    """Commands without an action, with the reason."""
    rows = [cells for cells in pages.table_rows(section("On the command line alone")) if _QUOTED.findall(cells[0])]
    return {_QUOTED.findall(cells[0])[0].removeprefix("scale0 "): cells[1] for cells in rows}


def of_console(file: str, *names: str) -> list[tuple[str, ...]]:
    """The rows of a table of the console's source, by these fields; none before the console is there."""
    path = CONSOLE / file
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        fields = [re.search(_FIELD.format(name=name), line) for name in names]
        if all(fields):
            found.append(tuple(field[1] for field in fields if field))
    return found

"""Every command reads with --json and --watch, or is known to change something; the console does the same."""

from __future__ import annotations

import re
import shlex

import click

from tests.docs import pages
from tests.docs.blocks import REPOSITORY
from tests.docs.commands import walk

CONSOLE = REPOSITORY / "console" / "src"
PARITY = (REPOSITORY / "docs" / "parity.md").read_text(encoding="utf-8")
_QUOTED = re.compile(r"`(scale0 [^`]+)`")
_FIELD = r'{name}: "([^"]*)"'


LEAVES = {
    path.removeprefix("scale0 "): command
    for path, command in walk()
    if path != "scale0" and (not isinstance(command, click.Group) or command.invoke_without_command)
}
"""Everything that can be run: also a group that does something by itself."""


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


PAGES, ACTIONS, ALONE = table("Pages"), table("Actions"), alone()
CHANGING = {named(line)[0] for lines in ACTIONS.values() for line in lines} | ALONE.keys()
READING = LEAVES.keys() - CHANGING


def by_first(rows: list[tuple[str, ...]]) -> dict[str, str]:
    return {row[0]: row[1] for row in rows}


# Promise: TERM-3
def test_every_reading_command_has_json_and_watch():
    assert [name for name in sorted(READING) if not {"--json", "--watch"} <= options(LEAVES[name])] == []


# Promise: TERM-3
def test_top_is_live_by_itself_and_has_json():
    assert {"--json", "--once"} <= options(LEAVES["top"])


# Promise: TERM-6
def test_every_command_has_an_example_that_names_it():
    documented = {name: (leaf.help or "").partition("Example")[2] for name, leaf in LEAVES.items()}
    assert [name for name, example in documented.items() if f"scale0 {name}" not in example] == []


# Promise: TERM-7
def test_every_command_of_the_table_is_there_with_its_options():
    for line in (line for found in (PAGES, ACTIONS) for lines in found.values() for line in lines):
        name, rest = named(line)
        assert {word for word in rest if word.startswith("-")} <= options(LEAVES[name]), line


# Promise: TERM-7
def test_every_command_without_an_action_is_there_and_has_a_reason():
    assert set(ALONE) <= set(LEAVES)
    assert all(ALONE.values())
    assert not set(ALONE) & {named(line)[0] for lines in ACTIONS.values() for line in lines}


# Promise: TERM-7
def test_every_action_of_the_console_stands_in_the_table_with_its_command():
    documented = by_first(of_console("actions.ts", "id", "command"))
    if documented:  # a source tree has the console; a wheel's tests would not
        assert {action: [command] for action, command in documented.items()} == ACTIONS


# Promise: TERM-7
def test_every_page_of_the_console_stands_in_the_table_with_its_command():
    documented = by_first(of_console("pages.ts", "page", "command"))
    assert documented.keys() <= PAGES.keys()
    for page, command in documented.items():
        assert command in PAGES[page], page


# Promise: TERM-6
def test_an_option_has_one_meaning():
    for name, leaf in LEAVES.items():
        words = [word for parameter in leaf.params for word in (*parameter.opts, *parameter.secondary_opts)]
        assert len(words) == len(set(words)), name

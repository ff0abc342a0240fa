"""Every command reads with --json and --watch, or is known to change something; the console does the same."""

from __future__ import annotations

from tests.processes.cli import tree
from tests.processes.cli.tree import LEAVES

PAGES, ACTIONS, ALONE = tree.table("Pages"), tree.table("Actions"), tree.alone()
CHANGING = {tree.named(line)[0] for lines in ACTIONS.values() for line in lines} | ALONE.keys()
READING = LEAVES.keys() - CHANGING


def by_first(rows: list[tuple[str, ...]]) -> dict[str, str]:
    return {row[0]: row[1] for row in rows}


# Promise: TERM-3
def test_every_reading_command_has_json_and_watch():
    assert [name for name in sorted(READING) if not {"--json", "--watch"} <= tree.options(LEAVES[name])] == []


# Promise: TERM-3
def test_top_is_live_by_itself_and_has_json():
    assert {"--json", "--once"} <= tree.options(LEAVES["top"])


# Promise: TERM-6
def test_every_command_has_an_example_that_names_it():
    told = {name: (leaf.help or "").partition("Example")[2] for name, leaf in LEAVES.items()}
    assert [name for name, example in told.items() if f"scale0 {name}" not in example] == []


# Promise: TERM-7
def test_every_command_of_the_table_is_there_with_its_options():
    for line in (line for found in (PAGES, ACTIONS) for lines in found.values() for line in lines):
        name, rest = tree.named(line)
        assert {word for word in rest if word.startswith("-")} <= tree.options(LEAVES[name]), line


# Promise: TERM-7
def test_every_command_without_an_action_is_there_and_has_a_reason():
    assert set(ALONE) <= set(LEAVES)
    assert all(ALONE.values())
    assert not set(ALONE) & {tree.named(line)[0] for lines in ACTIONS.values() for line in lines}


# Promise: TERM-7
def test_every_action_of_the_console_stands_in_the_table_with_its_command():
    told = by_first(tree.of_console("actions.ts", "id", "command"))
    if told:  # a source tree has the console; a wheel's tests would not
        assert {action: [command] for action, command in told.items()} == ACTIONS


# Promise: TERM-7
def test_every_page_of_the_console_stands_in_the_table_with_its_command():
    told = by_first(tree.of_console("pages.ts", "page", "command"))
    assert told.keys() <= PAGES.keys()
    for page, command in told.items():
        assert command in PAGES[page], page


# Promise: TERM-6
def test_an_option_has_one_meaning():
    for name, leaf in LEAVES.items():
        words = [word for parameter in leaf.params for word in (*parameter.opts, *parameter.secondary_opts)]
        assert len(words) == len(set(words)), name

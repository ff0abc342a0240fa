"""Examples are found in every help, and the tables that say what they need hold nothing that no example needs.

Promise: DOCS-4
"""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from scale0.cli.main import cli
from tests.docs.commands import HELPS, LINES, examples, to_type
from tests.docs.help_tables import CANNOT, NEEDS, STATUS, STAYS

EVERY = [line for lines in LINES.values() for line in lines]


@pytest.mark.parametrize("path", HELPS)
def test_every_command_has_an_example(path):
    assert LINES[path]


@pytest.mark.parametrize("path", HELPS)
def test_no_command_line_of_a_help_is_missed(path):
    shown = re.findall(r"^ +((?:scale0|make) .*?)(?:\s{2,}\S.*|\s*\\)?$", HELPS[path], re.MULTILINE)
    typed = [line for line in LINES[path] if line.startswith(("scale0 ", "make "))]
    # A line of the table of fields may begin with the word, too.
    assert [line for line in shown if not any(each.startswith(line) for each in typed)] == []


@pytest.mark.parametrize("path", HELPS)
def test_every_command_shows_its_help(path):
    shown = CliRunner().invoke(cli, [*path.split()[1:], "--help"], prog_name="scale0")
    assert (shown.exit_code, shown.output.startswith(f"Usage: {path} ")) == (0, True), shown.output


@pytest.mark.parametrize("table", [STATUS, CANNOT], ids=["STATUS", "CANNOT"])
def test_a_table_has_no_line_that_nobody_shows(table):
    assert [line for line in table if line not in EVERY] == []


def test_only_what_stands_somewhere_has_needs():
    assert [place for place in NEEDS if not LINES.get(place)] == []
    words = {word for needs in NEEDS.values() for word in needs.means}
    shown = [line for place, needs in NEEDS.items() if needs.means for line in LINES[place]]
    assert [word for word in sorted(words) if not any(word in line for line in shown)] == []
    assert [pattern for pattern in STAYS if not any(re.match(pattern, line) for line in EVERY)] == []


def test_examples_are_found_in_every_form():
    text = (
        "Do it.\n\n\b\nWith --json, an object:\n  scale0  or not\n\n\b\nExamples:\n  scale0 up  # no\n  a \\\n      b"
    )
    assert list(examples(text)) == ["scale0 up", "a b"]
    assert list(examples("\b\nStart here:\n  scale0 demo     see it\nThen:\n  scale0 top")) == ["scale0 demo"]


def test_the_root_comes_first_and_groups_before_what_is_in_them():
    paths = list(HELPS)
    assert paths[0] == "scale0"
    assert paths.index("scale0 task") < paths.index("scale0 task submit")


def test_a_bare_name_in_the_text_is_no_command_to_type():
    text = "Use `scale0 task` or `scale0 task show ID`, and `scale0 task show ID`.\n\n    $ scale0 top --once\n"
    assert list(to_type(text, {"scale0 task"})) == ["scale0 task show ID"]

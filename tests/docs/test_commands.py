"""Every command that README and docs name is one that there is, with the options that it has.

Promise: DOCS-2
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from scale0.cli.main import cli
from tests.docs import blocks, commands
from tests.docs.blocks import REPOSITORY

PAGES = sorted(
    [REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md"), *REPOSITORY.glob("examples/*/README.md")]
)
TARGETS = re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


def name_of(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_of_a_page_is_one_that_there_is(page):
    text = page.read_text(encoding="utf-8")
    found = [(str(line), one) for block in blocks.read_page(text).blocks for line, one in commands.in_block(block)]
    found += [("prose", one) for one in commands.in_prose(text)]
    wrong = [f"{line}: {one}: {why}" for line, one in found if (why := commands.complaint(one, cli, TARGETS))]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_python_block_of_a_page_can_be_read(page):
    for block in blocks.read_page(page.read_text(encoding="utf-8")).blocks:
        if block.language == "python":
            ast.parse("\n".join(block.lines))


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("scale0 nonsense", "no command nonsense"),
        ("scale0 task nonsense ID", "no command nonsense"),
        ("scale0 task list --nonsense", "No such option"),
        ("scale0 status extra words", "takes no"),
        ("scale0 token nobody", "none of frontend"),
        ("scale0 call 'unfinished", "No closing quotation"),
        ("make nonsense", "make knows no"),
    ],
)
def test_a_wrong_command_is_seen(command, why):
    assert why in (commands.complaint(command, cli, TARGETS) or "")


@pytest.mark.parametrize(
    "command",
    [
        "scale0",
        "scale0 task submit METHOD [ARGS]… --priority 5",
        "scale0 call hello Ada  # a comment",
        "scale0 top --json | jq .",
        "scale0 worker a.py > log 2>&1 &",
        'make test ARGS="-k lease"',
    ],
)
def test_a_right_command_is_left_alone(command):
    assert commands.complaint(command, cli, TARGETS) is None


def test_commands_are_found_in_blocks_of_every_form():
    text = "    $ scale0 status\n    scale0 is printed here\n\na\n\n    FOO=1 scale0 call \\\n        hello\n"
    text += "\n```sh\nmake demo\n```\n"
    found = [one for block in blocks.read_page(text).blocks for _, one in commands.in_block(block)]
    assert found == ["scale0 status", "scale0 call hello", "make demo"]


def test_a_word_that_nobody_knows_is_no_way_to_run_a_block():
    with pytest.raises(ValueError, match="nobody knows"):
        blocks.read_page("<!-- run: sometimes -->\n\n    $ true\n")
    with pytest.raises(ValueError, match="does not come"):
        blocks.read_page("<!-- run: stays -->\n")

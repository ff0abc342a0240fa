"""How a page is typed: in which shell, what is waited for, what is typed again, what differs; and all of it is ended.

Typed here, as an ordinary user would: test_transcripts types on machines.
"""

# Promise: DOCS-1
from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from tests.docs import blocks, machines, transcripts, typing_pages
from tests.fakes import namespaces

pytestmark = pytest.mark.processes

ALL = """<!-- run: this page in examples/two_groups -->

# One

    $ ls *.zpl
    east.zpl
    west.zpl

<!-- run: file beat.sh -->

```sh
trap 'echo "ended $$"; exit' INT TERM
echo "begun $$"
while sleep 0.1; do :; done
```

A job goes on, and is killed; its number is the page's:

    $ bash beat.sh &
    begun 14711
    $ kill %1; wait %1
    $ bash beat.sh &
    begun 14712
    $ kill -9 14712
    $ printf 'no line ends'
    no line ends

## Two

Two shells stay, each with a number of its own, and one is ended:

<!-- run: shells a b, stays -->

    $ bash beat.sh
    begun 14713

<!-- run: shell a -->

    ^C
    ended …

What takes its time is typed again:

<!-- run: again for 20 s -->

    $ echo one >> lines; wc -l < lines
    3

<!-- run: not here: it is not there, and would fail -->

    $ no-such-command

# Three

    $ echo three; false
    three
"""


def test_a_page_is_typed_as_it_says(tmp_path):
    page = blocks.read_page(ALL)
    with machines.machines(page, tmp_path, here=True) as at:
        typing_pages.check(page, at)
        assert len(machines.Here(tmp_path).pids("laptop")) > 3, "three shells, and what stays in one"
    assert machines.Here(tmp_path).pids("laptop") == []


@pytest.mark.parametrize(
    ("block", "why"),
    [
        ("    $ echo two\n    one\n", "the page shows   'one'\nthe shell printed 'two'"),
        ("    $ false\n", "exit status 1"),
        ("    $ echo one &\n    two\n", "the page shows   'two'\nthe shell printed 'one'"),
        ("<!-- run: stays -->\n\n    $ sleep 60\n    two\n", "the page shows 'two', and the shell printed no more"),
    ],
)
def test_a_difference_is_reported(block, why, tmp_path, monkeypatch):
    monkeypatch.setattr(typing_pages, "STAY_SECONDS", 0.2)
    page = blocks.read_page("<!-- run: this page -->\n\n" + block)
    with machines.machines(page, tmp_path, here=True) as at:
        assert [saw.why for saw in typing_pages.play(page, at)] == [why]


def test_a_section_is_what_stands_below_its_heading():
    page = blocks.read_page(ALL)
    assert [block.lines[0] for block in page.section("Three").blocks] == ["$ echo three; false"]
    assert len(page.section("Two").blocks) == 4
    assert len(page.section("One").blocks) == 7
    assert page.section("Four").blocks == ()


@pytest.mark.parametrize("module", [blocks, machines, namespaces, transcripts, typing_pages])
def test_a_bare_machine_can_type(module):
    """What scripts/bare-root runs needs no package but Python's own."""
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    used = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    used |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    # The servers are imported where a page wants one, and a page that does is not for a bare machine.
    ours = {*(f"tests.docs.{name}" for name in ("blocks", "machines", "transcripts", "servers")), namespaces.__name__}
    assert {name for name in used - ours if str(name).partition(".")[0] not in sys.stdlib_module_names} == set()

"""What counts as the same between a README and a run, and what does not."""

# Promise: CLI-3
from __future__ import annotations

import pytest

from tests.examples.readme import Command, check_said, commands, same

PAGE = """
Prose.

    $ scale0 up &
    ready: broker …
    $ curl -s \\
        --json '{}'
    {"id": 1}

    two lines
    $ true

More prose, and `$ no command`.
"""


def test_commands_are_read_with_what_they_print():
    assert commands(PAGE) == [
        Command("scale0 up &", ("ready: broker …",)),
        Command("curl -s     --json '{}'", ('{"id": 1}', "two lines")),
        Command("true", ()),
    ]


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("web-1  backup  critical  1.1 s ago", "web-1   backup   critical   12 s ago"),
        ("task 47b0c17606190e6f326a.000000000001", "task 0123456789abcdef0123.00000000000a"),
        ("ready: broker …", "ready: broker vm, its data in /somewhere"),
        ("within 0.241 ms", "within 28 ms"),
        ("/tmp/scale0-example-k8x4aiai/backup.tar is old", "/tmp/scale0-example-_2z/backup.tar is old"),
    ],
)
def test_numbers_ids_and_widths_may_differ(printed, said):
    assert same(printed, said)


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("151 answers, no error", "151 answers, 3 errors"),
        ("web-1 backup critical", "web-1 backup ok"),
        ("ready: broker …", "not ready: broker vm"),
        ("done in this order: urgent, usual", "done in this order: usual, urgent"),
        ("progress null", "progress 1"),
    ],
)
def test_words_may_not(printed, said):
    assert not same(printed, said)


def test_lines_may_be_left_out_where_the_page_says_so_and_nowhere_else():
    check_said(("a", "…", "d"), "a\nb\n\nc\nd\n")
    check_said(("a", "…", "d"), "a\nd\n")
    for said in ("a\nb\n", "b\nd\n", "a\nd\ne\n", ""):
        with pytest.raises(AssertionError, match="the README"):
            check_said(("a", "…", "d"), said)
    with pytest.raises(AssertionError):
        check_said((), "a word\n")

"""What may differ between a page and a shell, and what may not; which pages are typed, and what is left out and why.

Promise: DOCS-2
"""

from __future__ import annotations

import pytest

from tests.docs import blocks
from tests.docs.transcripts import Bound, Typed, typed

PAGES = blocks.read_pages()
TYPED = {
    "README.md",
    "docs/checks.md",
    "docs/console.md",
    "docs/exports.md",
    "docs/monitoring.md",
    "docs/security.md",
    "docs/terminal.md",
    "docs/tutorial.md",
    "docs/architecture.md",
    "docs/deploy.md",
    "docs/howto/backup-and-restore.md",
    "docs/howto/moving-from-celery.md",
    "docs/howto/nagios-plugins.md",
    "docs/howto/spark-on-yarn-and-kubernetes.md",
    "docs/howto/three-machines.md",
    "docs/operations.md",
    "docs/pipeline.md",
    "docs/reports.md",
    "docs/running-the-pipeline.md",
}
"""These are typed; commands of all others are held against the command line (test_commands)."""


def test_the_pages_that_people_follow_are_typed():
    assert {name for name, page in PAGES.items() if page.hosts} == TYPED


def test_what_is_left_out_says_why():
    directives = [block.directives for name in TYPED for block in PAGES[name].blocks]
    assert [each for each in directives if each.parsed] == []
    assert [each for each in directives if each.reason and len(each.reason) < 20] == []


def test_a_page_says_what_its_machines_have_and_where_it_is_typed():
    page = blocks.read_page(
        "<!-- run: this page on a b with postgresql -->\n\n<!-- run: in the source -->\n\n    $ ls\n"
    )
    assert (page.hosts, page.has_postgresql, page.blocks[0].directives.in_source) == (("a", "b"), True, True)
    page = blocks.read_page("<!-- run: this page with postgresql -->\n\n    $ ls\n")
    assert (page.hosts, page.has_postgresql, page.blocks[0].directives.in_source) == (("laptop",), True, False)


@pytest.mark.parametrize("name", sorted(set(PAGES) - TYPED))
def test_a_page_that_is_not_typed_does_not_say_how_to(name):
    directives = [block.directives for block in PAGES[name].blocks]
    assert [each for each in directives if each != blocks.Directives() and not each.reason and not each.parsed] == []


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("hello  2", "hello       2"),
        ("up for 3 h", "up for 12 min"),
        ("ready backend-9ed91549d81f hello", "ready backend-0123456789ab hello"),
        ("at 2026-11-17 07:07:10,653 it", "at 2031-01-01 00:00:00,001 it"),
        ("busy 52.2 %, 3.5 GiB", "busy 1 %, 900 MiB"),
        ("(from process 14711)", "(from process 987)"),
        ("web …", "web whatever it says"),
        ("task 4cf946d62648a99362aa.000000000018", "task 9d37e276100f2a5284b0.00000000001c"),
        ("127.0.0.1:37815, or port=37815", "127.0.0.1:41000, or port=41000"),
        ("s0join.Am6rO6…", "s0join.abcdefghijklmnopqrstuvwxyz0123456789"),
    ],
)
def test_what_may_differ(shown, printed):
    assert Bound().difference([shown], [printed]) is None


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("hello 2", "hello 3"),
        ("tcp://127.0.0.1:5700", "tcp://127.0.0.1:5701"),
        ("version 0.1.0", "version 0.1.1"),
        ("state ok", "state critical"),
        ("took 3 s", "took 3 MiB"),
        ("10.0.0.1", "10.0.0.2"),
        ("127.0.0.1:37815, or port=37815", "127.0.0.1:41000, or port=41001"),
        ("port=8080", "port=41001"),
    ],
)
def test_what_may_not(shown, printed):
    assert Bound().difference([shown], [printed])


def test_an_id_is_the_same_wherever_the_page_shows_it():
    bound = Bound()
    assert bound.difference(["process 14711"], ["process 500"]) is None
    assert bound.fill("kill -9 14711") == "kill -9 500"
    assert bound.difference(["process 14711"], ["process 501"])
    assert bound.difference(["process 14711"], ["process 500"]) is None


def test_lines_that_are_missing_or_too_many_are_seen():
    assert Bound().difference(["one", "two"], ["one"])
    assert Bound().difference(["one"], ["one", "two"])
    assert Bound().difference(["one", "…", "four"], ["one", "two", "three", "four"]) is None
    assert Bound().difference(["one", "…"], ["one"]) is None
    assert Bound().difference(["…", "two"], ["one"])
    assert Bound().difference(["…", "one", "three"], ["one", "two", "one", "three"]) is None


def test_commands_and_their_output_are_separated():
    lines = ["$ scale0 call \\", "      hello", "Hello!", "", "$ true"]
    assert list(typed(lines, 7)) == [
        Typed(7, "scale0 call \\\n      hello", ("Hello!",)),
        Typed(11, "true", ()),
    ]


@pytest.mark.parametrize(
    ("command", "looks"),
    [
        ("scale0 services", True),
        ("scale0 task list --mine", True),
        ("scale0 task submit hello", False),
        ("cat log", True),
        ("kill -9 14711", False),
        ("scale0 call 'unfinished", False),
    ],
)
def test_only_what_looks_is_typed_again(command, looks):
    assert Typed(1, command, ()).looks is looks

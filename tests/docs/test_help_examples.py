"""Every example of every command's help is typed, in one network, and ends as it should.

Promise: DOCS-4
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import pytest

from tests.docs.commands import HELPS, LINES, TEXT_PAGES
from tests.docs.help_network import Ended, Network, network
from tests.docs.help_tables import CANNOT, NEEDS, STATUS, STAYS, Needs

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.extended]

WRONG = re.compile(r"^Traceback|^Usage: |^scale0: ", re.MULTILINE)


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with network(tmp_path_factory.mktemp("help")) as made:
        yield made


def complaint(line: str, ended: Ended) -> str | None:
    stays = [each.status for pattern, each in STAYS.items() if re.match(pattern, line)]
    right, _ = STATUS.get(line, ((*stays, 0)[:1], ""))
    if ended.status not in right:
        return f"$ {line}\n{ended.printed}\nexit status {ended.status}, not {right}"
    if WRONG.search(ended.printed):
        return f"$ {line}\n{ended.printed}\nit complains"
    return None


def meant(line: str, means: Mapping[str, str]) -> str:
    """A line with what its words stand for; the longest that fit."""
    words = "|".join(re.escape(word) for word in sorted(means, key=len, reverse=True))
    return re.sub(rf"(?<![\w-])(?:{words})(?![\w-])", lambda found: means[found[0]], line) if means else line


def type_one(net: Network, line: str, needs: Needs) -> str | None:
    """Type an example; what is wrong with its end, or None."""
    typed = meant(line, needs.means)
    for pattern, stays in STAYS.items():
        if re.match(pattern, line):
            return complaint(line, net.stay(stays.on or needs.on, typed, stays.says))
    return complaint(line, net.type(needs.on, f"( {typed} )"))


def stands_below(place: str, line: str) -> bool:
    """True if the help of a command in this group has this line, too: there it is typed."""
    return any(line in lines for path, lines in LINES.items() if path.startswith(f"{place} "))


def type_all(net: Network, place: str) -> None:
    """Type what a help or a page has, with what it needs."""
    needs = NEEDS.get(place, Needs())
    if needs.before:
        ended = net.type(needs.on, needs.before)
        assert ended.status == 0, f"before: $ {needs.before}\n{ended.printed}"
    try:
        for line in LINES[place]:
            if line not in CANNOT and not stands_below(place, line):
                assert (why := type_one(net, line, needs)) is None, why
    finally:
        if needs.after:
            net.type(needs.on, needs.after)


@pytest.mark.parametrize("path", HELPS)
def test_examples_of_a_help_end_as_they_should(typed, path):
    type_all(typed, path)


@pytest.mark.parametrize("page", TEXT_PAGES)
def test_commands_in_the_text_of_a_page_end_as_they_should(typed, page):
    type_all(typed, page)


def test_an_example_that_does_not_work_is_seen(typed):
    assert "exit status 1" in (type_one(typed, "scale0 task show 0f3a9c", Needs()) or "")
    assert "exit status 2" in (type_one(typed, "scale0 task nonsense", Needs()) or "")
    assert "it complains" in (type_one(typed, "scale0 task show 0f3a9c; true", Needs()) or "")
    assert "it never says" in (type_one(typed, "scale0 worker nonsense.py:worker", Needs()) or "")

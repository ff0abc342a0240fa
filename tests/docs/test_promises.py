"""Promises and tests: each promise is named by tests in its folders, and each id that a test names is a promise."""

from __future__ import annotations

import pytest

from simulator.promises import PROMISES
from tests.docs import pages
from tests.docs.blocks import REPOSITORY

TEXT = (REPOSITORY / "docs" / "promises.md").read_text(encoding="utf-8")
WHOLE = ("docs", "pipeline", "processes", "unit", "wire")
"""Folders whose tests name their promises already."""


def named() -> dict[str, set[str]]:
    out: dict[str, set[str]] = {}
    for file in sorted((REPOSITORY / "tests").rglob("*.py")):
        folder = "tests/" + file.relative_to(REPOSITORY / "tests").parts[0]
        out.setdefault(folder, set()).update(pages.named_promises(file.read_text(encoding="utf-8")))
    return out


# Promise: HOUSE-4
def test_every_promise_is_kept_by_a_test_and_every_id_is_a_promise():
    assert list(pages.complaints(pages.promises(TEXT), named())) == []


@pytest.mark.parametrize("folder", WHOLE)
def test_a_folder_that_names_its_promises_goes_on_to(folder):
    assert named()[f"tests/{folder}"]


def test_the_promises_of_the_simulated_world_are_documented_as_they_are():
    documented = {pages.words(cells[0])[0]: cells[1] for cells in pages.table_rows(TEXT) if pages.words(cells[0])}
    assert documented == PROMISES


ONE = pages.Promise("it holds", ("tests/a",))
WORD = "Prom" + "ise: "


def test_ids_are_read_from_comments_and_docstrings():
    assert pages.named_promises(f"# {WORD}AA-1, BB-22\ndef test(): ...\n") == {"AA-1", "BB-22"}
    assert pages.named_promises(f'"""All of it.\n\n{WORD}AA-1\n"""') == {"AA-1"}


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        ({"AA-1": ONE}, {"tests/a": {"AA-1", "AA-2"}}),
        ({"AA-1": ONE}, {"tests/a": {"AA-1"}, "tests/b": {"AA-1"}}),
        ({"AA-1": ONE, "AA-2": ONE}, {"tests/a": {"AA-2"}}),
        ({"AA-1": ONE._replace(folders=())}, {}),
    ],
)
def test_a_difference_is_seen(listed, names):
    assert list(pages.complaints(listed, names))


@pytest.mark.parametrize("names", [{}, {"tests/a": set()}, {"tests/a": {"AA-1"}}])
def test_a_folder_that_is_not_there_yet_is_no_difference(names):
    assert list(pages.complaints({"AA-1": ONE}, names)) == []


def test_an_id_stands_there_once():
    with pytest.raises(ValueError, match="twice"):
        pages.promises("| AA-1 | one | `tests/a` |\n| AA-1 | two | `tests/a` |\n")

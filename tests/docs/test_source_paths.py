"""Every path that the glossary and the architecture page name exists, and every quoted constant has its value."""

from __future__ import annotations

import importlib
import re

import pytest

from tests.docs import pages
from tests.docs.blocks import REPOSITORY
from tests.unit.repository import rules

SOURCE = REPOSITORY / "src" / "scale0"
TOP_FOLDERS = ("src", "tests", "simulator", "docs", "console", "benchmarks", "deploy", "scripts")
QUOTING_PAGES = sorted(
    page
    for page in [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *(REPOSITORY / "docs").rglob("*.md")]
    if page.exists()
)


def text_of(page: str) -> str:
    return (REPOSITORY / page).read_text(encoding="utf-8")


# Promise: HOUSE-4
def test_every_path_of_the_glossary_exists():
    named = [path for cells in pages.table_rows(text_of("docs/glossary.md")) for path in pages.paths(cells[-1])]
    assert len(named) > 100
    assert [path for path in named if not (SOURCE / path).exists() and not (REPOSITORY / path).exists()] == []


# Promise: HOUSE-4
def test_every_term_of_the_glossary_has_a_meaning_and_a_module():
    rows = [cells for cells in pages.table_rows(text_of("docs/glossary.md")) if len(cells) in {3, 4}]
    terms = [cells for cells in rows if cells[0] not in {"term", "the notes say"} and not cells[0].startswith("---")]
    assert [cells[0] for cells in terms if not cells[1] or not pages.paths(cells[-1])] == []
    per_table = [cells[0] for cells in terms if len(cells) == 4]
    assert sorted(set(per_table)) == sorted(per_table)


# Promise: HOUSE-4
def test_every_quoted_constant_has_the_value_of_the_source():
    wrong = []
    for page in QUOTING_PAGES:
        for quoted in pages.quoted_constants(page.read_text(encoding="utf-8")):
            value = getattr(importlib.import_module(quoted.module), quoted.name) * quoted.factor
            if quoted.shown != pytest.approx(value):
                wrong.append(f"{page.name}: {quoted.shown:g} is {quoted.module}:{quoted.name}, now {value:g}")
    assert wrong == []


def test_every_comment_that_names_a_constant_is_read():
    for page in QUOTING_PAGES:
        text = page.read_text(encoding="utf-8")
        named = re.findall(r"<!-- [\w.]+:[A-Z_]+\b", text)
        assert len(named) == len(list(pages.quoted_constants(text))), page.name


def test_numbers_are_read_with_unit_and_factor():
    text = "2 ms <!-- a.b:TURN*1000 --> and 1,000 messages <!-- a.b:MOST --> in 4 min <!-- a:B / 60 -->"
    assert list(pages.quoted_constants(text)) == [
        (2.0, "a.b", "TURN", 1000.0),
        (1000.0, "a.b", "MOST", 1.0),
        (4.0, "a", "B", pytest.approx(1 / 60)),
    ]


def test_steps_are_read_with_their_continuation_lines():
    text = "# One\n\n## Two\n\ntext\n\n1. a `x/y.py`\n   more\n2. b\n\n    code\n\n## Three\n\n1. c\n"
    assert pages.steps(pages.section(text, "## Two")) == ["1. a `x/y.py`\n   more\n", "2. b"]
    assert pages.paths(text) == ["x/y.py"]


ARCHITECTURE = "docs/architecture.md"
WALKS = ("## Walk 1: one request", "## Walk 2: one task", "## Walk 3: one check result", "## Walk 4: one event")
MOST_STEPS = 25


# Promise: HOUSE-4
def test_every_path_of_the_architecture_page_exists():
    named = [path for path in pages.paths(text_of(ARCHITECTURE)) if path.split("/")[0] in TOP_FOLDERS]
    assert len(named) > 100
    assert [path for path in named if not (REPOSITORY / path).exists()] == []


# Promise: HOUSE-4
@pytest.mark.parametrize("walk", WALKS)
def test_a_walk_is_short_and_names_a_file_in_each_step(walk):
    steps = pages.steps(pages.section(text_of(ARCHITECTURE), walk))
    assert 10 <= len(steps) <= MOST_STEPS
    assert [int(step.partition(".")[0]) for step in steps] == list(range(1, len(steps) + 1))
    assert [step for step in steps if not re.match(r"\d+\. `src/scale0/[\w/]+\.py`: ", step)] == []


# Promise: HOUSE-4
def test_the_architecture_page_shows_the_layers_of_the_rules():
    shown = pages.section(text_of(ARCHITECTURE), "## Subjects and layers")
    layers = [line.strip() for line in shown.splitlines() if line.startswith("    ")]
    assert layers == [", ".join(layer) for layer in reversed(rules.LAYERS)]

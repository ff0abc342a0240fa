"""Every relative link of README and docs leads to a file that is there, and to a heading that it has."""

from __future__ import annotations

from pathlib import Path

from tests.docs import pages
from tests.docs.blocks import REPOSITORY

PAGES = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])


def dead_links(page: Path) -> list[str]:
    out = []
    for link in pages.links(page.read_text(encoding="utf-8")):
        place, _, anchor = link.partition("#")
        target = page if not place else (page.parent / place).resolve()
        if not target.exists() or not target.is_relative_to(REPOSITORY):
            out.append(link)
        elif anchor and anchor not in pages.anchors(target.read_text(encoding="utf-8")):
            out.append(f"{link} (no such heading)")
    return out


# Promise: HOUSE-4
def test_every_link_leads_somewhere():
    dead = {str(page.relative_to(REPOSITORY)): dead_links(page) for page in PAGES}
    assert {page: links for page, links in dead.items() if links} == {}


def test_every_page_is_reached_from_the_readme():
    seen: set[Path] = set()
    left = [REPOSITORY / "README.md"]
    while left:
        page = left.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        found = (link.partition("#")[0] for link in pages.links(page.read_text(encoding="utf-8")))
        left += [(page.parent / place).resolve() for place in found if place]
    # Measurements are written by the tools that make them.
    made = {REPOSITORY / "docs" / "performance.md", REPOSITORY / "docs" / "soak.md"}
    assert [str(page) for page in PAGES if page not in seen | made] == []


def test_the_two_commands_stand_in_the_readme_as_they_are_typed():
    lines = (REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()
    assert "    make demo" in lines
    assert "    make test" in lines


def test_links_and_anchors_are_read_as_a_renderer_does():
    text = "# One `two`, three\n\nsee [it](a.md#b) and [far](https://example.org)\n\n    [code](nowhere.md)\n"
    assert pages.links(text) == ["a.md#b"]
    assert pages.anchors(text) == {"one-two-three"}

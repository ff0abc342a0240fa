"""Pages as data: links, headings, tables and promises, as pure functions of text.

Lives here: reading Markdown as far as these tests need it. Never here: a file. Invariant: what stands in a block of
code is no link and no heading.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

_FENCED: Final = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_INDENTED: Final = re.compile(r"^ {4}.*$", re.MULTILINE)
_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
_HEADING: Final = re.compile(r"^#+ (.+)$", re.MULTILINE)
_ROWS: Final = re.compile(r"^\|.*\|$", re.MULTILINE)
_WORD: Final = re.compile(r"`([^`\n]+)`")
_ID: Final = re.compile(r"[A-Z]+-[1-9][0-9]*")
_NAMED: Final = re.compile(r"Promise: ([A-Z]+-[0-9]+(?:, [A-Z]+-[0-9]+)*)")


class Promise(NamedTuple):
    """One row of the page of promises."""

    text: str
    folders: tuple[str, ...]


def prose(text: str) -> str:
    """A page without its blocks of code."""
    return _INDENTED.sub("", _FENCED.sub("", text))


def links(text: str) -> list[str]:
    """Where a page leads to, other hosts left out."""
    return [place for place in _LINK.findall(prose(text)) if "://" not in place and not place.startswith("mailto:")]


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as the usual renderers make them."""
    out = set()
    for heading in _HEADING.findall(prose(text)):
        kept = re.sub(r"[^\w\- ]", "", heading.lower().replace("`", ""))
        out.add(kept.replace(" ", "-"))
    return out


def table_rows(text: str) -> Iterator[list[str]]:
    """The cells of every row of every table, heads included."""
    for row in _ROWS.findall(text):
        yield [cell.strip() for cell in row[1:-1].split("|")]


def words(cell: str) -> list[str]:
    """What stands in backticks."""
    return _WORD.findall(cell)


def promises(text: str) -> dict[str, Promise]:
    """The promises of the page, by id."""
    out: dict[str, Promise] = {}
    for cells in table_rows(text):
        if len(cells) == 3 and _ID.fullmatch(cells[0]):
            if cells[0] in out:
                raise ValueError(f"{cells[0]} stands there twice")
            out[cells[0]] = Promise(cells[1], tuple(words(cells[2])))
    return out


def named_promises(source: str) -> set[str]:
    """The ids that a test file names."""
    return {one for found in _NAMED.findall(source) for one in found.split(", ")}


def complaints(listed: Mapping[str, Promise], named: Mapping[str, set[str]]) -> Iterator[str]:
    """Where page and tests differ. `named`: the ids that the tests of each folder name."""
    for folder, ids in named.items():
        for one in sorted(ids):
            if one not in listed:
                yield f"{folder} names {one}, which is no promise"
            elif folder not in listed[one].folders:
                yield f"{folder} names {one}, but the page does not list it there"
    for one, promise in listed.items():
        if not promise.folders:
            yield f"{one} has no folder"
        for folder in promise.folders:
            # A folder that names no promise at all is still being written.
            if named.get(folder) and one not in named[folder]:
                yield f"{one} is named by no test in {folder}"

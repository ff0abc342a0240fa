"""Pages as data: links, headings, tables, promises, paths and constants of the source, as pure functions of text.

What stands in a block of code is no link and no heading.
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

_IN_BACKTICKS: Final = re.compile(r"`([\w./-]+/[\w.-]+)`")
_NUMBERED_STEP: Final = re.compile(r"^(\d+)\. ", re.MULTILINE)
_QUOTED_CONSTANT: Final = re.compile(
    r"([0-9][0-9,.]*)(?: ?[^\s<|]+)?\s*<!-- ([\w.]+):(\w+)(?: ?([*/]) ?([0-9.]+))? -->"
)


class Promise(NamedTuple):
    text: str
    folders: tuple[str, ...]


def prose(text: str) -> str:
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
    return _WORD.findall(cell)


def promises(text: str) -> dict[str, Promise]:
    out: dict[str, Promise] = {}
    for cells in table_rows(text):
        if len(cells) == 3 and _ID.fullmatch(cells[0]):
            if cells[0] in out:
                raise ValueError(f"{cells[0]} stands there twice")
            out[cells[0]] = Promise(cells[1], tuple(words(cells[2])))
    return out


def named_promises(source: str) -> set[str]:
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


class QuotedConstant(NamedTuple):
    """A number of a page, with the module, the name and the factor that give it."""

    shown: float
    module: str
    name: str
    factor: float


def paths(text: str) -> list[str]:
    """Everything in backticks that contains a slash and is a path by its form."""
    return _IN_BACKTICKS.findall(text)


def section(text: str, heading: str) -> str:
    """The text below a heading, up to the next heading of any level."""
    _, _, after = text.partition(f"\n{heading}\n")
    return re.split(r"^#", after, maxsplit=1, flags=re.MULTILINE)[0]


def steps(text: str) -> list[str]:
    """The items of the numbered list of a section, each with its continuation lines."""
    starts = [found.start() for found in _NUMBERED_STEP.finditer(text)]
    ends = [*starts[1:], len(text)]
    return [text[start:end].split("\n\n", maxsplit=1)[0] for start, end in zip(starts, ends, strict=True)]


def quoted_constants(text: str) -> Iterator[QuotedConstant]:
    """The numbers that are followed by `<!-- module:NAME -->`, optionally with `*1000` or `/60`."""
    for shown, module, name, operator, operand in _QUOTED_CONSTANT.findall(text):
        factor = float(operand or 1)
        yield QuotedConstant(float(shown.replace(",", "")), module, name, 1 / factor if operator == "/" else factor)

"""The blocks of code of a page, and what its comments say about typing them.

A comment applies to the block that follows it, and to no other. Unknown words are an error.

    <!-- run: this page -->                  the page is typed, in order, on a machine of its own
    <!-- run: this page on east-1 east-2 --> the same on several machines: 10.0.0.1, 10.0.0.2
    <!-- run: this page in examples/app -->  its home is a copy of that folder of the repository
    <!-- run: this page with postgresql -->  … and the first of them has a server, with an empty database
    <!-- run: shell 2 -->                    the next block is typed in another terminal; `shells a b`: in both
    <!-- run: on east-2 -->                  … on that machine
    <!-- run: in the source -->              … in the folder of this repository
    <!-- run: stays -->                      the last command of the block goes on, and the page with it
    <!-- run: again for 90 s -->             … and typed again until it shows what the page shows, as if it only looked
    <!-- run: file hello.py -->              the next block is the content of a file; `append FILE` adds to one
    <!-- run: not here: why -->              the next block cannot be typed here
    <!-- run: only parsed -->                the next block is held against the command line, and not run
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
_COMMENT: Final = re.compile(r"^ {0,3}<!-- run: (.+?) -->$")
_THIS_PAGE: Final = re.compile(r"this page(?: in (\S+))?(?: on (.+?))?( with postgresql)?")
_HEADING: Final = re.compile(r"^#+ ")
_FENCE: Final = re.compile(r"^```(\w*)$")
_INDENT: Final = "    "


@dataclass(frozen=True)
class Directives:
    """What the comments before a block say about it."""

    shells: tuple[str, ...] = ("1",)
    host: str = ""
    stays: bool = False
    again: float = 0.0
    in_source: bool = False
    file: str = ""
    appends: bool = False
    reason: str = ""
    parsed: bool = False


@dataclass(frozen=True)
class Block:
    """One block of code: where it begins, its lines without their indent, its directives, the headings above it."""

    line: int
    lines: tuple[str, ...]
    language: str
    directives: Directives
    under: tuple[str, ...]

    @property
    def is_transcript(self) -> bool:
        """True if it shows commands after a prompt."""
        return not self.directives.file and any(line.startswith("$ ") for line in self.lines)

    @property
    def is_left_out(self) -> bool:
        """True if the page says that it is not typed."""
        return bool(self.directives.reason or self.directives.parsed)


@dataclass(frozen=True)
class Page:
    """The blocks of a page; `hosts` are the machines that it is typed on, none if it is not; `folder` is its home."""

    hosts: tuple[str, ...]
    folder: str
    blocks: tuple[Block, ...]
    has_postgresql: bool = False

    def section(self, title: str) -> Page:
        """What stands below a heading, and the headings below that."""
        below = (block for block in self.blocks if title in (above.lstrip("# ") for above in block.under))
        return replace(self, blocks=tuple(below))


def read_pages() -> dict[str, Page]:
    """The README and every page of docs, by name."""
    found = sorted([REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")])
    return {str(page.relative_to(REPOSITORY)): read_page(page.read_text(encoding="utf-8")) for page in found}


def read_page(text: str) -> Page:
    page = Page((), "", ())
    directives = Directives()
    under: tuple[str, ...] = ()
    for line, kind, lines in _parts(text.splitlines()):
        if kind == "heading":
            under = (*(above for above in under if above.index(" ") < lines[0].index(" ")), lines[0])
        elif kind != "comment":
            page = replace(page, blocks=(*page.blocks, Block(line, tuple(lines), kind, directives, under)))
            directives = Directives()
        elif found := _THIS_PAGE.fullmatch(lines[0]):
            hosts = tuple((found[2] or "laptop").split())
            page = replace(page, hosts=hosts, folder=found[1] or "", has_postgresql=bool(found[3]))
        else:
            directives = _with(directives, lines[0])
    if directives != Directives():
        raise ValueError(f"{directives} apply to a block that does not come")
    return page


def _parts(lines: list[str]) -> Iterator[tuple[int, str, list[str]]]:
    """Comments, headings and blocks with the number of their first line; the kind of a block is its language."""
    at = 0
    while at < len(lines):
        start = at
        if found := _COMMENT.match(lines[at]):
            yield start + 1, "comment", [found[1]]
        elif _HEADING.match(lines[at]):
            yield start + 1, "heading", [lines[at]]
        elif found := _FENCE.match(lines[at]):
            end = lines.index("```", at + 1)
            yield start + 2, found[1] or "text", lines[at + 1 : end]
            at = end
        elif _opens(lines, at):
            while at < len(lines) and (lines[at].startswith(_INDENT) or not lines[at].strip()):
                at += 1
            body = [line.removeprefix(_INDENT) for line in lines[start:at]]
            while not body[-1].strip():
                body.pop()
            yield start + 1, "", body
            continue
        at += 1


def _opens(lines: list[str], at: int) -> bool:
    """Is this the first line of an indented block? One inside a list item's text is not."""
    return lines[at].startswith(_INDENT) and (at == 0 or not lines[at - 1].strip())


def _with(directives: Directives, words: str) -> Directives:
    for part in words.split(", ") if not words.startswith("not here") else [words]:
        word, _, rest = part.partition(" ")
        match word:
            case "shell" | "shells":
                directives = replace(directives, shells=tuple(rest.split()))
            case "on":
                directives = replace(directives, host=rest)
            case "in":
                directives = replace(directives, in_source=True)
            case "stays":
                directives = replace(directives, stays=True)
            case "again":
                directives = replace(directives, again=float(rest.removeprefix("for ").removesuffix(" s")))
            case "file" | "append":
                directives = replace(directives, file=rest, appends=word == "append")
            case "not":
                directives = replace(directives, reason=rest.removeprefix("here:").strip())
            case "only":
                directives = replace(directives, parsed=True)
            case _:
                raise ValueError(f"nobody knows what `run: {words}` means")
    return directives

"""The examples of the command line's own help, and the commands in the text of pages, as pure functions of text.

Lives here: finding them. Never here: running one. Invariant: whatever stands under `Examples:` in a help is one, be it
a command of ours or not; a line that ends with a backslash goes on in the next.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Final

import click

from tests.docs import pages

_TITLE: Final = re.compile(r"(?:Examples?|Start here):$")
_COMMENT: Final = re.compile(r"\s{2,}\S.*$")
_IN_TEXT: Final = re.compile(r"`(scale0 [^`\n]+)`")


def helps(command: click.Command, path: str = "scale0") -> Iterator[tuple[str, str]]:
    """Every command with its help, the root first."""
    yield path, inspect.cleandoc(command.help or "")
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from helps(inner, f"{path} {name}")


def examples(text: str) -> Iterator[str]:
    """The examples of a help; what stands in a column beside one explains it."""
    title: int | None = None
    begun = ""
    for line in text.splitlines():
        depth = len(line) - len(line.lstrip())
        if _TITLE.match(line.strip()):
            title = depth
        elif title is None or not line.strip() or depth <= title:
            title = None
        elif line.endswith("\\"):
            begun += line.strip().removesuffix("\\")
        else:
            yield begun + _COMMENT.sub("", line.strip())
            begun = ""


def in_text(text: str, names: set[str]) -> Iterator[str]:
    """Commands in the text of a page, each once; one that is no more than its name is spoken of, and not typed."""
    yield from dict.fromkeys(one for one in _IN_TEXT.findall(pages.prose(text)) if one not in names)

"""Paths and constants that pages quote from the source, as pure functions of text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_IN_BACKTICKS: Final = re.compile(r"`([\w./-]+/[\w.-]+)`")
_NUMBERED_STEP: Final = re.compile(r"^(\d+)\. ", re.MULTILINE)
_QUOTED_CONSTANT: Final = re.compile(
    r"([0-9][0-9,.]*)(?: ?[^\s<|]+)?\s*<!-- ([\w.]+):(\w+)(?: ?([*/]) ?([0-9.]+))? -->"
)


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

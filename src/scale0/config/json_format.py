"""The JSON format, read strictly: no duplicate keys, no NaN, bounded depth; and the line of each value.

A number that JSON does not allow is read as an infinite float, which validation refuses.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any, Final

from scale0.config.tree import MAX_DEPTH, Path
from scale0.kernel.errors import ConfigError

MAX_INTEGER_CHARS: Final = 20
"""Sign and digits of the largest 64-bit number; reading longer ones costs quadratic time."""

_STRING: Final = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_DEPTH_TOKEN: Final = re.compile(rf"{_STRING}|[\[{{}}\]]", re.DOTALL)
_TOKEN: Final = re.compile(rf'{_STRING}|[\[{{}}\],:]|[^\s\[{{}}\],:"]+', re.DOTALL)


def _refuse_depth(text: str) -> None:
    depth = 0
    for match in _DEPTH_TOKEN.finditer(text):
        token = match[0]
        if token in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                line = text.count("\n", 0, match.start()) + 1
                raise ConfigError([f"line {line}: nested deeper than {MAX_DEPTH}"])
        elif token in "]}":
            depth -= 1


def _integer(text: str) -> int | float:
    return int(text) if len(text) <= MAX_INTEGER_CHARS else math.inf


def _number(text: str) -> float:
    """`float`, in Python: between two numbers of a large document, other threads can run."""
    return float(text)


def _constant(_name: str) -> float:
    return math.inf


NUMBERS: Final[dict[str, Any]] = {"parse_int": _integer, "parse_float": _number, "parse_constant": _constant}


def _finite(read: Callable[[str], int | float]) -> Callable[[str], int | float]:
    def checked(text: str) -> int | float:
        number = read(text)
        if math.isinf(number):
            raise ConfigError([f"{text[:40]} is not a number of JSON, or is out of range"])
        return number

    return checked


FINITE_NUMBERS: Final = {name: _finite(read) for name, read in NUMBERS.items()}
"""For values that no validation sees."""


def load(text: str, is_validated: bool = True) -> tuple[Any, bool]:
    """The value, and whether some object has a key twice (`line_numbers` says which). Unless it `is_validated` later,
    a number that would be infinite is refused here."""
    _refuse_depth(text)
    numbers = NUMBERS if is_validated else FINITE_NUMBERS
    twice = False

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal twice
        out = dict(found)
        twice = twice or len(out) < len(found)
        return out

    try:
        value = json.loads(text, object_pairs_hook=pairs, **numbers)
    except json.JSONDecodeError as error:
        raise ConfigError([f"line {error.lineno}: not JSON: {error.msg} (column {error.colno})"]) from None
    return value, twice


class _Position:
    """The position in a stream of JSON tokens."""

    def __init__(self) -> None:
        self.path: list[str | int] = []
        self.keys: list[set[str] | None] = []
        self.at_key = False
        self.lines: dict[Path, int] = {(): 1}
        self.twice: list[tuple[Path, int]] = []

    def open(self, token: str) -> None:
        self.at_key = token == "{"
        self.keys.append(set() if self.at_key else None)
        self.path.append("" if self.at_key else 0)

    def close(self) -> None:
        self.keys.pop()
        self.path.pop()
        self.at_key = False

    def comma(self) -> None:
        last = self.path[-1]
        if isinstance(last, int):
            self.path[-1] = last + 1
        else:
            self.at_key = True

    def key(self, name: str, line: int) -> None:
        self.path[-1] = name
        here = tuple(self.path)
        self.lines[here] = line
        seen = self.keys[-1]
        if seen is not None:
            if name in seen:
                self.twice.append((here, line))
            seen.add(name)
        self.at_key = False


def line_numbers(text: str, max_duplicates: int | None = None) -> tuple[dict[Path, int], list[tuple[Path, int]]]:
    """The line of every value, and every duplicate key; it ends after `max_duplicates` of them. Only for text that
    `load` accepted."""
    position = _Position()
    line, at = 1, 0
    for match in _TOKEN.finditer(text):
        line += text.count("\n", at, match.start())
        at = match.start()
        token = match[0]
        if token in "[{":
            position.lines.setdefault(tuple(position.path), line)
            position.open(token)
        elif token in "]}":
            position.close()
        elif token == ",":
            position.comma()
        elif position.at_key:
            position.key(json.loads(token), line)
            if len(position.twice) == max_duplicates:
                break
        elif token != ":":
            position.lines.setdefault(tuple(position.path), line)
    return position.lines, position.twice

"""The item tree that XML and ZPL share, the paths in a document, and the list of its errors.

A reason is one printable line of bounded length, whatever the document contains.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from scale0.kernel.errors import ConfigError

MAX_DEPTH: Final = 64
"""The nesting of a document in any format. A deeper one is an attack or an accident."""


class Item(msgspec.Struct, frozen=True):
    """One property: a name with a text, with children, or with neither."""

    name: str
    text: str = ""
    items: tuple[Item, ...] = ()
    line: int = 0


class ItemBuilder:
    """An item whose children are still being read."""

    def __init__(self, name: str, line: int) -> None:
        self.name = name
        self.line = line
        self.pieces: list[str] = []
        self.items: list[Item] = []

    def build(self) -> Item:
        return Item(self.name, "".join(self.pieces), tuple(self.items), self.line)


MAX_REASONS: Final = 100
"""The most reasons for one document: nobody reads more, and each costs time."""
MAX_EXCERPT_CHARS: Final = 60
"""How much of a foreign value a reason repeats."""

Path = tuple[str | int, ...]
"""Keys and list positions from the root."""


def excerpt(text: str) -> str:
    """A quoted excerpt of foreign text that is safe to print."""
    cut = text if len(text) <= MAX_EXCERPT_CHARS else text[:MAX_EXCERPT_CHARS] + "…"
    return json.dumps(cut, ensure_ascii=not cut.isprintable())


def path_text(path: Path) -> str:
    """`group_config[0].name`, or `document` for the root."""
    out = ""
    for part in path:
        if isinstance(part, int):
            out += f"[{part}]"
        else:
            plain = part.isprintable() and 0 < len(part) <= MAX_EXCERPT_CHARS
            word = part if plain else excerpt(part)
            out += f".{word}" if out else word
    return out or "document"


class LineNumbers:
    """Line numbers by path, computed for the first reason: a valid document does not pay for them."""

    def __init__(self, make: Callable[[], dict[Path, int]]) -> None:
        self._make = make
        self._lines: dict[Path, int] | None = None

    def of(self, path: Path) -> int:
        """The line of a path or of its nearest ancestor; 0: unknown."""
        if self._lines is None:
            self._lines = self._make()
        for end in range(len(path), -1, -1):
            line = self._lines.get(path[:end])
            if line:
                return line
        return 0


class Reasons:
    """The errors that were found in one document so far."""

    def __init__(self, lines: LineNumbers, lowers: bool = False) -> None:
        """`lowers`: a number above its upper bound becomes that bound, and is no error."""
        self._lines = lines
        self.lowers = lowers
        self._found: list[tuple[int, str]] = []

    def add(self, path: Path, text: str, line: int = 0) -> None:
        """Add one reason; at `MAX_REASONS` the validation ends."""
        at = line or self._lines.of(path)
        prefix = f"line {at}: " if at else ""
        self._found.append((at, f"{prefix}{path_text(path)}: {text}"))
        if len(self._found) >= MAX_REASONS:
            raise ConfigError([*self.texts(), f"there may be more errors: only the first {MAX_REASONS} are listed"])

    def __len__(self) -> int:
        return len(self._found)

    def texts(self) -> list[str]:
        """All reasons, by line."""
        return [reason for _line, reason in sorted(self._found, key=lambda pair: pair[0])]

    def raise_if_any(self) -> None:
        if self._found:
            raise ConfigError(self.texts())


def duplicates(key: str, names: Iterable[str]) -> list[str]:
    """A reason for each name that a list holds more than once."""
    seen: set[str] = set()
    twice: dict[str, None] = {}
    for name in names:
        if name in seen:
            twice[name] = None
        seen.add(name)
    return [f"{key}: {name or 'the blank name'} is listed more than once" for name in twice]

"""The tree that XML and ZPL have in common: names, text, children.

Lives here: `Item`, and how one grows while a parser reads. Never here: types of values; the schema gives those.
Invariant: an `Item` that left here no longer changes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from scale0.kernel.errors import ConfigError

MAX_DEPTH: Final = 64
"""Nesting of a document in any form. Deeper is an attack or an accident."""


class Item(msgspec.Struct, frozen=True):
    """One property: a name with a text, with children, or with neither."""

    name: str
    text: str = ""
    items: tuple[Item, ...] = ()
    line: int = 0


class ItemBuilder:
    """An item whose children are still being read."""

    __slots__ = ("items", "line", "name", "pieces")

    def __init__(self, name: str, line: int) -> None:
        self.name = name
        self.line = line
        self.pieces: list[str] = []
        self.items: list[Item] = []

    def grown(self) -> Item:
        """The item as it stays."""
        return Item(self.name, "".join(self.pieces), tuple(self.items), self.line)


MAX_REASONS: Final = 100
"""Reasons told about one document: nobody reads more, and each costs time to find."""
MAX_EXCERPT_CHARS: Final = 60
"""How much of a foreign value a reason repeats."""

Path = tuple[str | int, ...]
"""Keys and list positions from the root."""


def excerpt(text: str) -> str:
    """A quoted piece of foreign text that is safe to print."""
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
    """Line numbers by path, made only when the first reason asks: a good document never pays."""

    __slots__ = ("_found", "_make")

    def __init__(self, make: Callable[[], dict[Path, int]]) -> None:
        self._make = make
        self._found: dict[Path, int] | None = None

    def of(self, path: Path) -> int:
        """The line of a path or of its nearest ancestor; 0 if nobody knows."""
        if self._found is None:
            self._found = self._make()
        for end in range(len(path), -1, -1):
            line = self._found.get(path[:end])
            if line:
                return line
        return 0


class Reasons:
    """Everything found wrong with one document so far."""

    __slots__ = ("_found", "_lines")

    def __init__(self, lines: LineNumbers) -> None:
        self._lines = lines
        self._found: list[tuple[int, str]] = []

    def add(self, path: Path, text: str, line: int = 0) -> None:
        """Note one reason; at `MAX_REASONS` the search ends."""
        at = line or self._lines.of(path)
        place = f"line {at}: " if at else ""
        self._found.append((at, f"{place}{path_text(path)}: {text}"))
        if len(self._found) >= MAX_REASONS:
            raise ConfigError([*self.told(), f"there may be more: only {MAX_REASONS} are told"])

    def __len__(self) -> int:
        return len(self._found)

    def told(self) -> list[str]:
        """All reasons, in the order of their lines."""
        return [reason for _line, reason in sorted(self._found, key=lambda pair: pair[0])]

    def settle(self) -> None:
        """Raise if anything was found."""
        if self._found:
            raise ConfigError(self.told())


def duplicates(key: str, names: Iterable[str]) -> list[str]:
    """A reason for each name that a list holds more than once."""
    seen: set[str] = set()
    twice: dict[str, None] = {}
    for name in names:
        if name in seen:
            twice[name] = None
        seen.add(name)
    return [f"{key}: {name or 'the blank name'} is there more than once" for name in twice]

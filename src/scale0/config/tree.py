"""The tree that XML and ZPL have in common: names, text, children.

Lives here: `Item`, and how one grows while a parser reads. Never here: types of values; the schema gives those.
Invariant: an `Item` that left here no longer changes.
"""

from __future__ import annotations

from typing import Final

import msgspec

MAX_DEPTH: Final = 64
"""Nesting of a document in any form. Deeper is an attack or an accident."""


class Item(msgspec.Struct, frozen=True):
    """One property: a name with a text, with children, or with neither."""

    name: str
    text: str = ""
    items: tuple[Item, ...] = ()
    line: int = 0


class Growing:
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

"""The XML format: root `<config>`, an element per key, repeated elements for lists, and nothing else of XML.

No entity, DTD, attribute or namespace is accepted, and nothing is fetched.
"""

from __future__ import annotations

import re
from typing import Any, Final

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import DefusedXMLParser, ParseError

from scale0.config.tree import MAX_DEPTH, Item, ItemBuilder, Path, excerpt, path_text
from scale0.kernel.errors import ConfigError

ROOT: Final = "config"

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)
_NOT_XML: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_INDENT: Final = "    "
_HEAD: Final = '<?xml version="1.0" encoding="UTF-8"?>\n'


def is_name(text: str) -> bool:
    """True for a name that an element may have."""
    return _NAME.fullmatch(text) is not None


class _Target:
    """The target of the parser: builds the tree, and refuses what the format does not use."""

    def __init__(self) -> None:
        self.parser: Any = None
        self.open_items = [ItemBuilder("", 0)]

    def _line(self) -> int:
        return int(self.parser.CurrentLineNumber)

    def refuse(self, text: str) -> ConfigError:
        """An error at the current line."""
        return ConfigError([f"line {self._line()}: {text}"])

    def declaration(self, _version: str, encoding: str | None, _standalone: int) -> None:
        """`<?xml …?>`: the document is UTF-8, so no other encoding may be declared."""
        if encoding is not None and encoding.upper() not in ("UTF-8", "US-ASCII", "ASCII"):
            raise self.refuse(f"encoding {excerpt(encoding)}: only UTF-8 is supported")

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        parent = self.open_items[-1]
        if not is_name(tag):
            raise self.refuse(f"element {excerpt(tag)}: not a valid name of a key")
        if attributes:
            raise self.refuse(f"<{tag}> has attributes; write keys as elements")
        if len(self.open_items) == 1 and tag != ROOT:
            raise self.refuse(f"the root must be <{ROOT}>, not <{tag}>")
        if len(self.open_items) > MAX_DEPTH + 1:
            raise self.refuse(f"nested deeper than {MAX_DEPTH}")
        if "".join(parent.pieces).strip():
            raise self.refuse(f"<{parent.name}> has both text and elements")
        parent.pieces.clear()
        self.open_items.append(ItemBuilder(tag, self._line()))

    def data(self, text: str) -> None:
        item = self.open_items[-1]
        if not item.items:
            item.pieces.append(text)
        elif text.strip():
            raise self.refuse(f"<{item.name}> has both text and elements")

    def end(self, _tag: str) -> None:
        done = self.open_items.pop()
        self.open_items[-1].items.append(done.build())

    def close(self) -> Item:
        return self.open_items[0].items[0]


def read(text: str) -> Item:
    """The tree below `<config>`."""
    target = _Target()
    parser = DefusedXMLParser(target=target, encoding="utf-8", forbid_dtd=True)
    target.parser = parser.parser
    target.parser.XmlDeclHandler = target.declaration
    try:
        parser.feed(text.encode())
        root: Any = parser.close()
    except ParseError as error:
        line = error.position[0]
        raise ConfigError([f"line {line}: not XML: {str(error).partition(':')[0]}"]) from None
    except DefusedXmlException:
        raise target.refuse("a DTD or an entity is not allowed") from None
    if not isinstance(root, Item):
        raise ConfigError(["line 1: not XML: no root element"])
    if not root.items and root.text.strip():
        raise ConfigError([f"line {root.line}: <{ROOT}> contains text instead of elements"])
    return root


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\r", "&#13;")


def _write(item: Item, level: int, path: Path, out: list[str], reasons: list[str]) -> None:
    pad = _INDENT * level
    if not is_name(item.name):
        reasons.append(f"{path_text(path)}: not a valid name in XML")
    if item.items:
        out.append(f"{pad}<{item.name}>\n")
        for child in item.items:
            _write(child, level + 1, (*path, child.name), out, reasons)
        out.append(f"{pad}</{item.name}>\n")
        return
    found = _NOT_XML.search(item.text)
    if found:
        reasons.append(f"{path_text(path)}: XML cannot contain U+{ord(found[0]):04X}")
    out.append(f"{pad}<{item.name}>{_escaped(item.text)}</{item.name}>\n")


def write(root: Item) -> str:
    """The text of a tree."""
    out: list[str] = [_HEAD, f"<{ROOT}>\n"]
    reasons: list[str] = []
    for item in root.items:
        _write(item, 1, (item.name,), out, reasons)
    if reasons:
        raise ConfigError(reasons)
    out.append(f"</{ROOT}>\n")
    return "".join(out)

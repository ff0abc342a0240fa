"""The ZPL format: ZeroMQ RFC 4 as czmq reads it; what the two read differently is refused.

czmq's zconfig reads every accepted and every written document to the same tree.
"""

from __future__ import annotations

import re
from typing import Final

from scale0.config.tree import MAX_DEPTH, MAX_REASONS, Item, ItemBuilder, Path, excerpt, path_text
from scale0.config.value_types import is_line
from scale0.kernel.errors import ConfigError

INDENT: Final = "    "
MAX_LINE_BYTES: Final = 1024
"""czmq truncates longer lines, and then reads past the end of its buffer."""

_NAME: Final = re.compile(r"[A-Za-z0-9$\-_@.&+/]*", re.ASCII)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./:@+*,-]+", re.ASCII)
_BLANK: Final = " \t"


class _Fault(Exception):
    """One line that cannot be read; only within this module."""


def is_name(text: str) -> bool:
    """True for a name that RFC 4 and czmq both accept."""
    return bool(text) and _NAME.fullmatch(text) is not None and text[0] != "/" and text[-1] != "/"


def _only_comment(rest: str) -> bool:
    rest = rest.lstrip(_BLANK)
    return not rest or rest[0] == "#"


def _value(text: str) -> str:
    """The value after `=`, without quotes and comment."""
    text = text.lstrip(_BLANK)
    if text[:1] == "#":
        # RFC 4 reads an empty value and a comment, czmq the value "#…": ambiguous.
        raise _Fault("`#` right after `=`: quote the value, or leave the comment out")
    if text[:1] in ("'", '"'):
        end = text.find(text[0], 1)
        if end < 0:
            raise _Fault(f"no closing {text[0]}")
        if not _only_comment(text[end + 1 :]):
            raise _Fault(f"text after the closing {text[0]}")
        value = text[1:end]
    else:
        value = text.partition("#")[0].rstrip(_BLANK)
    if "\t" in value:
        raise _Fault("a tab inside a value")
    return value


def _read_line(raw: str) -> tuple[int, str, str] | None:
    """Level, name and value of a line; None for an empty one."""
    if len(raw.encode()) > MAX_LINE_BYTES:
        raise _Fault(f"longer than {MAX_LINE_BYTES} bytes")
    line = raw.removesuffix("\r")
    found = _CONTROL.search(line)
    if found:
        raise _Fault(f"control character U+{ord(found[0]):04X}")
    line = line.rstrip(_BLANK)
    body = line.lstrip(" ")
    level, odd = divmod(len(line) - len(body), len(INDENT))
    if odd:
        raise _Fault(f"indented by {len(line) - len(body)} spaces: indent by {len(INDENT)} at a time")
    name = _NAME.match(body)
    word = name[0] if name else ""
    rest = body[len(word) :].lstrip(_BLANK)
    if not word:
        if _only_comment(rest):
            return None
        raise _Fault(f"a line starts with a name or with #, not with {excerpt(rest[:1])}")
    if not is_name(word):
        raise _Fault(f"`/` at the start or the end of the name {excerpt(word)}")
    if rest[:1] == "=":
        return level, word, _value(rest[1:])
    if not _only_comment(rest):
        raise _Fault(f"= expected after the name {excerpt(word)}")
    return level, word, ""


def _close(open_items: list[ItemBuilder], depth: int) -> None:
    while len(open_items) > depth:
        done = open_items.pop()
        open_items[-1].items.append(done.build())


def read(text: str) -> Item:
    """The tree of a ZPL text; every invalid line is a reason."""
    open_items = [ItemBuilder("", 0)]
    reasons: list[str] = []
    for number, raw in enumerate(text.split("\n"), 1):
        if len(reasons) >= MAX_REASONS:
            break
        try:
            found = _read_line(raw)
            if found is None:
                continue
            level, name, value = found
            if level >= MAX_DEPTH:
                raise _Fault(f"nested deeper than {MAX_DEPTH}")
            if level >= len(open_items):
                raise _Fault(f"{name} is indented deeper than a child of the line above")
        except _Fault as fault:
            reasons.append(f"line {number}: {fault}")
            continue
        _close(open_items, level + 1)
        item = ItemBuilder(name, number)
        item.pieces.append(value)
        open_items.append(item)
    if reasons:
        raise ConfigError(reasons)
    _close(open_items, 1)
    return open_items[0].build()


def quoted(value: str) -> str | None:
    """A value with quotes if it needs them, or None if ZPL cannot contain it."""
    if not is_line(value):
        return None
    if _PLAIN.fullmatch(value):
        return value
    for quote in ('"', "'"):
        if quote not in value:
            return f"{quote}{value}{quote}"
    return None


def _why_not(value: str) -> str:
    if "\n" in value or "\r" in value:
        return "ZPL cannot contain a value of several lines"
    if is_line(value):
        return "ZPL cannot contain a value with both kinds of quotes"
    return "ZPL cannot contain control characters"


def _write(item: Item, level: int, path: Path, out: list[str], reasons: list[str]) -> None:
    line = INDENT * level + item.name
    if not item.items:
        value = quoted(item.text)
        if value is None:
            reasons.append(f"{path_text(path)}: {_why_not(item.text)}")
            return
        line += f" = {value}"
    if not is_name(item.name):
        reasons.append(f"{path_text(path)}: not a valid name in ZPL")
    if len(line.encode()) > MAX_LINE_BYTES:
        reasons.append(f"{path_text(path)}: longer than a line of ZPL may be, {MAX_LINE_BYTES} bytes")
    out.append(line)
    for child in item.items:
        _write(child, level + 1, (*path, child.name), out, reasons)


def write(root: Item) -> str:
    """The text of a tree."""
    out: list[str] = []
    reasons: list[str] = []
    for item in root.items:
        _write(item, 0, (item.name,), out, reasons)
    if reasons:
        raise ConfigError(reasons)
    return "".join(f"{line}\n" for line in out)

"""Values without a schema (for example the arguments of a check) as text, and back.

A number, `true`, `false` and `null` are themselves; text that starts with `{`, `[` or `"` is JSON; children make an
object; everything else is a string. `read(write(x)) == x`, and the text is one line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

from scale0.config import json_format
from scale0.config.tree import Item, Path, Reasons, excerpt
from scale0.config.value_types import is_line
from scale0.kernel.errors import ConfigError

NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?", re.ASCII)
KEY_IS_NO_TEXT: Final = "a key that is no text"
_WORDS: Final = ("true", "false", "null")
_NOT_IN_TEXT: Final = re.compile("['\x7f-\x9f\u2028\u2029\ufffe\uffff]")


def _is_json(text: str) -> bool:
    return text in _WORDS or text[:1] in ("{", "[", '"') or NUMBER.fullmatch(text) is not None


def read(item: Item, path: Path, reasons: Reasons, lines: dict[Path, int]) -> Any:
    """The value of an item."""
    lines[path] = item.line
    if item.items:
        return read_object(item, path, reasons, lines)
    if not _is_json(item.text):
        return item.text
    try:
        value, twice = json_format.load(item.text)
    except ConfigError as error:
        reasons.add(path, f"starts like JSON but is invalid: {error.reasons[0].partition(': ')[2]}", item.line)
        return None
    if twice:
        reasons.add(path, "a key of the JSON in it is there twice", item.line)
    return value


def read_object(item: Item, path: Path, reasons: Reasons, lines: dict[Path, int]) -> dict[str, Any]:
    """The object that an item's children make."""
    out: dict[str, Any] = {}
    if item.text.strip():
        reasons.add(path, "has both a value and children", item.line)
    for child in item.items:
        here = (*path, child.name)
        if child.name in out:
            reasons.add(here, "is there twice; write a list as JSON, [1, 2]", child.line)
        out[child.name] = read(child, here, reasons, lines)
    return out


def json_text(value: Any) -> str:
    """JSON on one line, without apostrophes and characters that a format cannot represent."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return _NOT_IN_TEXT.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        both_quotes = "'" in value and '"' in value
        bare = is_line(value) and not _is_json(value) and not both_quotes and value.isprintable()
        return value if bare else json_text(value)
    return json_text(value)


def write(name: str, value: Any, is_name: Callable[[str], bool]) -> Item:
    """The item of a value; `is_name` says which keys the format allows."""
    if isinstance(value, dict) and value and all(is_name(key) for key in value):
        return Item(name, items=tuple(write(key, inner, is_name) for key, inner in value.items()))
    return Item(name, _scalar(value))


def check(value: Any, path: Path, reasons: Reasons, max_depth: int, max_integer: int) -> None:
    """Add what no format can represent: lone surrogates, numbers out of range, depth."""
    if isinstance(value, str):
        if not value.isprintable() and any("\ud800" <= char <= "\udfff" for char in value):
            reasons.add(path, "half of a surrogate pair")
    elif isinstance(value, bool) or value is None:
        return
    elif isinstance(value, int):
        if not -max_integer <= value <= max_integer:
            reasons.add(path, "a number out of range")
    elif isinstance(value, float):
        if value - value != 0:
            reasons.add(path, "not a finite number in range")
    elif len(path) >= max_depth:
        reasons.add(path, f"nested deeper than {max_depth}")
    elif isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                reasons.add(path, KEY_IS_NO_TEXT)
                continue
            check(key, (*path, key), reasons, max_depth, max_integer)
            check(inner, (*path, key), reasons, max_depth, max_integer)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            check(inner, (*path, index), reasons, max_depth, max_integer)
    else:
        reasons.add(path, f"{excerpt(type(value).__name__)} is nothing that JSON has")

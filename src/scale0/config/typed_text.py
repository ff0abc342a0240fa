"""Between items and plain values, for XML and ZPL: the schema gives texts their types.

Text that does not fit its type stays text, and the validation reports it. A list of one entry stays a list.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import inspect

from scale0.config import json_format, untyped_values
from scale0.config.schema import OLD_SPELLINGS
from scale0.config.tree import Item, Path, Reasons
from scale0.config.validation import bare, is_command, type_info
from scale0.config.value_types import ALL, word_line

_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}


def _scalar(info: inspect.Type, text: str) -> Any:
    if isinstance(info, inspect.BoolType):
        return _BOOLEANS.get(text, text)
    if isinstance(info, inspect.IntType | inspect.FloatType) and untyped_values.NUMBER.fullmatch(text):
        if isinstance(info, inspect.FloatType):
            number = float(text)
            return number if math.isfinite(number) else text
        if text.lstrip("-").isdigit() and len(text) <= json_format.MAX_INTEGER_CHARS:
            return int(text)
    return text


def _is_empty(info: inspect.VarTupleType, item: Item) -> bool:
    """A name alone is an empty list. Blanks may be a text entry; for other types they are only layout."""
    text = item.text if isinstance(bare(info.item_type), inspect.StrType) else item.text.strip()
    return not item.items and not text


class _Reader:
    """Reads one document, and collects its lines and reasons."""

    def __init__(self, reasons: Reasons, lines: dict[Path, int]) -> None:
        self.reasons = reasons
        self.lines = lines

    def struct(self, info: inspect.StructType, item: Item, path: Path) -> Any:
        if not item.items and item.text.strip():
            return item.text
        if item.items and item.text.strip():
            self.reasons.add(path, "has both a value and children", item.line)
        types = {field.name: field.type for field in info.fields}
        groups: dict[str, list[Item]] = {}
        for child in item.items:
            groups.setdefault(child.name, []).append(child)
        out: dict[str, Any] = {}
        for name, items in groups.items():
            here = (*path, name)
            self.lines[here] = items[0].line
            known = types.get(name) or types.get(OLD_SPELLINGS.get(name, ""))
            out[name] = items[0].text if known is None else self.key(known, items, here)
        return out

    def key(self, info: inspect.Type, items: list[Item], path: Path) -> Any:
        """The value of one key, from all items with its name."""
        kind = bare(info)
        if isinstance(kind, inspect.UnionType):
            if len(items) == 1 and items[0].text == ALL and not items[0].items:
                return ALL
            (kind,) = (option for option in kind.types if isinstance(option, inspect.VarTupleType))
        if isinstance(kind, inspect.VarTupleType):
            if len(items) == 1 and _is_empty(kind, items[0]):
                return []
            if len(items) == 1 and not items[0].items and is_command(info):
                return items[0].text
            return [self.single(kind.item_type, item, (*path, index)) for index, item in enumerate(items)]
        for item in items[1:]:
            self.reasons.add(path, "is there twice", item.line)
        return self.single(info, items[0], path)

    def single(self, info: inspect.Type, item: Item, path: Path) -> Any:
        self.lines[path] = item.line
        kind = bare(info)
        if isinstance(kind, inspect.StructType):
            return self.struct(kind, item, path)
        if isinstance(kind, inspect.DictType):
            return self.mapping(kind, item, path)
        if item.items:
            self.reasons.add(path, "must be a value, not a section", item.line)
        return _scalar(kind, item.text)

    def mapping(self, info: inspect.DictType, item: Item, path: Path) -> Any:
        if not item.items and not item.text.strip():
            return {}
        if isinstance(info.value_type, inspect.AnyType):
            return untyped_values.read(item, path, self.reasons, self.lines)
        if item.text.strip():
            return item.text
        out: dict[str, Any] = {}
        for child in item.items:
            here = (*path, child.name)
            if child.name in out:
                self.reasons.add(here, "is there twice", child.line)
            out[child.name] = self.single(info.value_type, child, here)
        return out


def plain_of(root: Item, schema: type, reasons: Reasons, lines: dict[Path, int]) -> Any:
    """Plain values of the items of a document, typed by the schema; adds their lines to `lines`."""
    info = type_info(schema)
    if not isinstance(info, inspect.StructType):
        raise TypeError(f"{schema!r} is not a schema")
    return _Reader(reasons, lines).struct(info, root, ())


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, int | float) else str(value)


def _written(name: str, info: inspect.Type, value: Any, is_name: Callable[[str], bool]) -> list[Item]:
    kind = bare(info)
    if isinstance(value, tuple):
        if not value:
            return [Item(name)]
        if is_command(info) and len(value) == 1:
            return [Item(name, word_line(value[0]))]
        if isinstance(kind, inspect.UnionType):
            (kind,) = (option for option in kind.types if isinstance(option, inspect.VarTupleType))
        inner = kind.item_type if isinstance(kind, inspect.VarTupleType) else kind
        return [item for one in value for item in _written(name, inner, one, is_name)]
    if isinstance(kind, inspect.StructType):
        return [Item(name, items=tuple(_fields(kind, value, is_name)))]
    if isinstance(kind, inspect.DictType):
        if isinstance(kind.value_type, inspect.AnyType):
            return [untyped_values.write(name, value, is_name)]
        return [Item(name, items=tuple(Item(key, _text(inner)) for key, inner in value.items()))]
    return [Item(name, _text(value))]


def _fields(info: inspect.StructType, value: Any, is_name: Callable[[str], bool]) -> list[Item]:
    out: list[Item] = []
    for field in info.fields:
        inner = getattr(value, field.name)
        if inner is None or inner == {} or inner == field.default == ():
            continue
        out += _written(field.name, field.type, inner, is_name)
    return out


def items_of(document: msgspec.Struct, is_name: Callable[[str], bool]) -> Item:
    """The items of a document; `is_name` says which keys the format allows."""
    info = type_info(type(document))
    if not isinstance(info, inspect.StructType):
        raise TypeError(f"{type(document)!r} is not a schema")
    return Item("", items=tuple(_fields(info, document, is_name)))

"""Validates plain values of any format against a schema, and lists every error with its path.

A value that passes satisfies every rule of its types, and becomes a frozen schema value.
"""

from __future__ import annotations

import difflib
import functools
import math
from collections.abc import Hashable
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect

from scale0.config import untyped_values
from scale0.config.schema import OLD_SPELLINGS
from scale0.config.tree import MAX_DEPTH, MAX_EXCERPT_CHARS, Path, Reasons, excerpt
from scale0.config.value_types import MAX_INTEGER, ValueRule, command_words
from scale0.kernel.errors import ConfigError

T = TypeVar("T")

MAX_ITEMS: Final = 100_000
"""The most entries of one list or object: nobody writes more by hand."""


@functools.cache
def _info(schema: Hashable) -> inspect.Type:
    return inspect.type_info(schema)


def type_info(schema: type) -> inspect.Type:
    """The schema as data."""
    return _info(schema)


def is_command(info: inspect.Type) -> bool:
    return isinstance(info, inspect.Metadata) and _rule_of(info).text == "command"


def _rule_of(info: inspect.Metadata) -> ValueRule:
    rule: ValueRule = (info.extra or {})["rule"]
    return rule


def bare(info: inspect.Type) -> inspect.Type:
    """The type without its rule and without `None`."""
    while True:
        if isinstance(info, inspect.Metadata):
            info = info.type
        elif isinstance(info, inspect.UnionType) and len(options := _without_none(info)) == 1:
            info = options[0]
        else:
            return info


def _without_none(info: inspect.UnionType) -> list[inspect.Type]:
    return [option for option in info.types if not isinstance(option, inspect.NoneType)]


def _described(value: Any) -> str:
    match value:
        case str():
            return excerpt(value)
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value) if abs(value) < math.inf else "a number out of range"
        case None:
            return "null"
        case list():
            return "a list"
        case _:
            return "an object"


def _nearest(name: str, known: list[str]) -> str:
    # Only the start of a foreign key is compared, because the comparison is quadratic.
    return difflib.get_close_matches(name[:MAX_EXCERPT_CHARS], known, 1, 0.0)[0]


def _number(info: inspect.IntType | inspect.FloatType, value: float, path: Path, reasons: Reasons) -> float:
    if info.ge is not None and value < info.ge:
        reasons.add(path, f"must be at least {info.ge}, not {_described(value)}")
    if info.gt is not None and value <= info.gt:
        reasons.add(path, f"must be more than {info.gt}, not {_described(value)}")
    if info.le is not None and value > info.le:
        if reasons.lowers:
            return info.le
        reasons.add(path, f"must be at most {info.le}, not {_described(value)}")
    return value


def _object(info: inspect.StructType, value: Any, path: Path, reasons: Reasons) -> Any:
    if not isinstance(value, dict):
        reasons.add(path, f"must be an object with keys, not {_described(value)}")
        return None
    fields = {field.name: field for field in info.fields}
    out: dict[str, Any] = {}
    for key, inner in value.items():
        if not isinstance(key, str):  # MessagePack has such keys
            reasons.add(path, untyped_values.KEY_IS_NO_TEXT)
            continue
        name = OLD_SPELLINGS.get(key, key) if OLD_SPELLINGS.get(key) in fields else key
        here = (*path, key)
        if name not in fields:
            reasons.add(here, f"unknown key; the nearest known one is {_nearest(key, list(fields))}")
        elif name in out:
            reasons.add(here, f"{name} is there twice, by its old and its new spelling")
        else:
            out[name] = _value(fields[name].type, inner, here, reasons)
    for field in info.fields:
        if field.required and field.name not in out:
            reasons.add(path, f"{field.name} is missing")
    return out


def _list(info: inspect.VarTupleType, value: Any, path: Path, reasons: Reasons) -> Any:
    if not isinstance(value, list):
        reasons.add(path, f"must be a list, not {_described(value)}")
        return None
    if len(value) > MAX_ITEMS:
        reasons.add(path, f"more than {MAX_ITEMS} entries")
        return None
    return [_value(info.item_type, inner, (*path, index), reasons) for index, inner in enumerate(value)]


def _mapping(info: inspect.DictType, value: Any, path: Path, reasons: Reasons) -> Any:
    if not isinstance(value, dict):
        reasons.add(path, f"must be an object, not {_described(value)}")
        return None
    if isinstance(info.value_type, inspect.AnyType):
        untyped_values.check(value, path, reasons, MAX_DEPTH, MAX_INTEGER)
        return value
    for key, inner in value.items():
        if not isinstance(key, str):
            reasons.add(path, untyped_values.KEY_IS_NO_TEXT)
            continue
        _value(info.key_type, key, (*path, key), reasons)
        _value(info.value_type, inner, (*path, key), reasons)
    return value


def _ruled(info: inspect.Metadata, value: Any, path: Path, reasons: Reasons) -> Any:
    rule = _rule_of(info)
    if isinstance(value, str) and rule.text == "entry":
        value = [value]
    if isinstance(value, str) and rule.text == "command":
        value = command_words(value)
        if value is None:
            reasons.add(path, "a quote in the command is not closed")
            return None
    before = len(reasons)
    if rule.secret and not isinstance(value, str):
        reasons.add(path, f"must be {rule.words}")
        return None
    out = _value(info.type, value, path, reasons)
    if len(reasons) == before and not rule.holds(out):
        reasons.add(path, f"must be {rule.words}" + ("" if rule.secret else f", not {_described(value)}"))
    return out


def _choice(info: inspect.UnionType, value: Any, path: Path, reasons: Reasons) -> Any:
    options = _without_none(info)
    if value is None and len(options) < len(info.types):
        return None
    if len(options) == 1:
        return _value(options[0], value, path, reasons)
    # This is `services`: a list, or the word `all`.
    literals = [option for option in options if isinstance(option, inspect.LiteralType)]
    if isinstance(value, list):
        (other,) = (option for option in options if option not in literals)
        return _value(other, value, path, reasons)
    words = [str(word) for option in literals for word in option.values]
    if value not in words:
        reasons.add(path, f"must be a list or {' or '.join(words)}, not {_described(value)}")
    return value


def _scalar(info: inspect.Type, value: Any, path: Path, reasons: Reasons) -> Any:
    match info:
        case inspect.BoolType():
            if not isinstance(value, bool):
                reasons.add(path, f"must be true or false, not {_described(value)}")
        case inspect.IntType():
            if isinstance(value, bool) or not isinstance(value, int):
                reasons.add(path, f"must be a whole number, not {_described(value)}")
            else:
                return _number(info, value, path, reasons)
        case inspect.FloatType():
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                reasons.add(path, f"must be a number, not {_described(value)}")
            else:
                return float(_number(info, value, path, reasons))
        case inspect.StrType():
            if not isinstance(value, str):
                reasons.add(path, f"must be text, not {_described(value)}")
        case inspect.LiteralType():
            if not isinstance(value, str) or value not in info.values:
                words = ", ".join(str(word) for word in info.values)
                reasons.add(path, f"must be one of {words}, not {_described(value)}")
        case _:
            raise TypeError(f"a schema uses {info!r}, which the validation does not support")
    return value


def _value(info: inspect.Type, value: Any, path: Path, reasons: Reasons) -> Any:
    match info:
        case inspect.Metadata():
            return _ruled(info, value, path, reasons)
        case inspect.StructType():
            return _object(info, value, path, reasons)
        case inspect.VarTupleType():
            return _list(info, value, path, reasons)
        case inspect.DictType():
            return _mapping(info, value, path, reasons)
        case inspect.UnionType():
            return _choice(info, value, path, reasons)
        case _:
            return _scalar(info, value, path, reasons)


def conform(value: Any, schema: type[T], reasons: Reasons) -> T:
    """The schema value of a plain value; ConfigError with all reasons if it is invalid."""
    plain = _value(type_info(schema), value, (), reasons)
    reasons.raise_if_any()
    try:
        return msgspec.convert(plain, schema)
    except msgspec.ValidationError as error:
        raise ConfigError([str(error)]) from None

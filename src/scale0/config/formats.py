"""Three formats, one schema: `parse` and `render`.

`parse(render(x, format), format, type(x)) == x` for every format that can represent `x`. A document is accepted
completely or refused.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from scale0.config import json_format, typed_text, xml_format, zpl_format
from scale0.config.tree import LineNumbers, Path, Reasons, excerpt
from scale0.config.validation import conform
from scale0.kernel import codes
from scale0.kernel.errors import ConfigError, Refusal

T = TypeVar("T")

FORMATS: Final = ("json", "xml", "zpl")
MAX_DOCUMENT_BYTES: Final = 4 * 1024 * 1024
"""Half of the maximum message size: a document is sent in one message, next to other frames."""

_OLD_NAMES: Final = {"zfl": "zpl"}
_BYTE_ORDER_MARK: Final = "\ufeff"


def format_named(name: str) -> str:
    """The format that `config_type` names, in any case; `zfl` is the old name of `zpl`."""
    lower = name.lower() if name.isascii() else name
    format_name = _OLD_NAMES.get(lower, lower)
    if format_name not in FORMATS:
        raise Refusal(codes.CONFIG_TYPE_UNKNOWN, f"config_type {excerpt(name)} is none of {', '.join(FORMATS)}")
    return format_name


def format_of_file(filename: str) -> str:
    """The format of a file, by its suffix."""
    stem, dot, ending = filename.rpartition(".")
    if not dot or not stem or ending.lower() not in FORMATS:
        wanted = ", ".join(f".{format_name}" for format_name in FORMATS)
        raise Refusal(codes.CONFIG_TYPE_UNKNOWN, f"{excerpt(filename)} ends in none of {wanted}")
    return ending.lower()


def _decoded(data: bytes) -> str:
    if len(data) > MAX_DOCUMENT_BYTES:
        raise ConfigError([f"document: {len(data)} bytes, more than {MAX_DOCUMENT_BYTES}"])
    try:
        out = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError([f"line {line}: not UTF-8"]) from None
    if out.startswith(_BYTE_ORDER_MARK):
        raise ConfigError(["line 1: starts with a byte order mark; save the file as UTF-8 without it"])
    return out


def _from_json(document: str, schema: type[T], lowers: bool) -> T:
    value, twice = json_format.load(document)
    reasons = Reasons(LineNumbers(lambda: json_format.line_numbers(document)[0]), lowers)
    if twice:
        for path, line in json_format.line_numbers(document)[1]:
            reasons.add(path, "is there twice", line)
    return conform(value, schema, reasons)


def parse(data: bytes, format_name: str, schema: type[T]) -> T:
    """The document, or `ConfigError` with every reason."""
    format_name = format_named(format_name)
    document = _decoded(data)
    if format_name == "json":
        return _from_json(document, schema, False)
    root = xml_format.read(document) if format_name == "xml" else zpl_format.read(document)
    lines: dict[Path, int] = {}
    reasons = Reasons(LineNumbers(lambda: lines))
    value: Any = typed_text.plain_of(root, schema, reasons, lines)
    return conform(value, schema, reasons)


def parse_existing(data: bytes, schema: type[T]) -> T:
    """A JSON document that a broker made before, perhaps of another version of Scale0: a number above the bound that
    this version has for it is lowered to the bound, so that no such document stops a start or a replication."""
    return _from_json(_decoded(data), schema, True)


def render(document: msgspec.Struct, format_name: str) -> bytes:
    """The document in a readable layout; `ConfigError` if the format cannot represent a value."""
    format_name = format_named(format_name)
    if format_name == "json":
        return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
    if format_name == "xml":
        return xml_format.write(typed_text.items_of(document, xml_format.is_name)).encode()
    return zpl_format.write(typed_text.items_of(document, zpl_format.is_name)).encode()

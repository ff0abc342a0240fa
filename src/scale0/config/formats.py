"""Three forms, one schema: `parse` and `render`.

Lives here: choosing a form, and the steps from bytes to a schema value and back. Never here: files; `io/` reads those.
Invariant: `parse(render(x, form), form, type(x)) == x` for every form that can carry `x`, and a document is accepted
whole or not at all.
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
"""A document travels in one message, next to other frames: half of what a message may be."""

_OLD_NAMES: Final = {"zfl": "zpl"}
_BYTE_ORDER_MARK: Final = "\ufeff"


def format_named(name: str) -> str:
    """The form that `config_type` names, in any case; `zfl` is the old name of `zpl`."""
    lower = name.lower() if name.isascii() else name
    form = _OLD_NAMES.get(lower, lower)
    if form not in FORMATS:
        raise Refusal(codes.CONFIG_TYPE_UNKNOWN, f"config_type {excerpt(name)} is none of {', '.join(FORMATS)}")
    return form


def format_of_file(filename: str) -> str:
    """The form of a file, by its ending."""
    stem, dot, ending = filename.rpartition(".")
    if not dot or not stem or ending.lower() not in FORMATS:
        wanted = ", ".join(f".{form}" for form in FORMATS)
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
        raise ConfigError(["line 1: starts with a byte order mark; save it as UTF-8 without one"])
    return out


def _from_json(document: str, schema: type[T]) -> T:
    value, twice = json_format.load(document)
    reasons = Reasons(LineNumbers(lambda: json_format.places(document)[0]))
    if twice:
        for path, line in json_format.places(document)[1]:
            reasons.add(path, "is there twice", line)
    return conform(value, schema, reasons)


def parse(data: bytes, form: str, schema: type[T]) -> T:
    """The document, or `ConfigError` with every reason that could be found."""
    form = format_named(form)
    document = _decoded(data)
    if form == "json":
        return _from_json(document, schema)
    root = xml_format.read(document) if form == "xml" else zpl_format.read(document)
    lines: dict[Path, int] = {}
    reasons = Reasons(LineNumbers(lambda: lines))
    value: Any = typed_text.plain_of(root, schema, reasons, lines)
    return conform(value, schema, reasons)


def render(document: msgspec.Struct, form: str) -> bytes:
    """The document in a form, made to be read by people; `ConfigError` if the form cannot carry a value of it."""
    form = format_named(form)
    if form == "json":
        return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
    if form == "xml":
        return xml_format.write(typed_text.items_of(document, xml_format.is_name)).encode()
    return zpl_format.write(typed_text.items_of(document, zpl_format.is_name)).encode()

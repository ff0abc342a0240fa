"""Encodes messages of the line protocol, by the grammar of the parser.

The other side's parser decodes the bytes to an equal message. A message that cannot be encoded is a bug, and raises
ValueError.
"""

from __future__ import annotations

from typing import Final

import msgspec

from scale0.monitoring.protocol.messages import MAX_INT, MAX_LINE_BYTES, AgentMessage
from scale0.monitoring.protocol.parser import FORMS, INT, NO_BLOB, STRING, CommandForm

MAX_ERROR_CHARS: Final = 500
"""The length of a text from `in_one_line`: as UTF-8 it always fits into a line."""

_FORM_OF: Final[dict[object, CommandForm]] = {form.message_class: form for form in FORMS}
_fields_of: Final = msgspec.structs.astuple


def encode(message: AgentMessage) -> bytes:
    """The bytes of a message, including its blob. Raises ValueError if it cannot be encoded."""
    form = _FORM_OF.get(type(message))
    if form is None:
        raise ValueError(f"{type(message).__name__} is never sent")
    fields = _fields_of(message)
    line = form.command
    for kind, value in zip(form.parameters, fields, strict=False):
        line += b" " + (_number(value) if kind is INT else _text(value, spaces=kind is not STRING))
    if form.max_blob_bytes == NO_BLOB:
        return _line(line)
    body = fields[-1]
    if not isinstance(body, bytes):
        raise ValueError("a blob must be bytes")
    if len(body) > form.max_blob_bytes:
        raise ValueError(f"a blob of {len(body)} bytes is longer than {form.max_blob_bytes}")
    return b"%b%b\n" % (_line(b"%b %d" % (line, len(body))), body)


def in_one_line(text: str) -> str:
    """Any text as one line for `error`: unprintable characters become question marks, and a long text is cut."""
    return "".join(char if char.isprintable() else " " if char.isspace() else "?" for char in text[:MAX_ERROR_CHARS])


def _line(line: bytes) -> bytes:
    if line.endswith(b"\r"):
        raise ValueError("a line must not end with a carriage return")
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"a line of {len(line)} bytes is longer than {MAX_LINE_BYTES}")
    return line + b"\n"


def _number(value: object) -> bytes:
    if type(value) is not int or not 0 <= value <= MAX_INT:
        raise ValueError(f"{value!r} is not a number from 0 to {MAX_INT}")
    return b"%d" % value


def _text(value: object, spaces: bool) -> bytes:
    if not isinstance(value, str) or "\n" in value:
        raise ValueError(f"{value!r} is not a text of one line")
    if not spaces and (not value or " " in value):
        raise ValueError(f"{value!r} is empty or has a space")
    return value.encode()

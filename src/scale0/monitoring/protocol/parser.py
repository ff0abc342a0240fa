"""Parses the line protocol, however the bytes are cut.

`feed` never raises. The same bytes give the same messages in each cut. The parser buffers at most one line or one blob,
and reads nothing after a `ParseFault`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from scale0.monitoring.protocol import messages
from scale0.monitoring.protocol.messages import MAX_BLOB_BYTES, MAX_DATA_BYTES, MAX_INT, MAX_LINE_BYTES, AgentMessage

INT: Final = "int"
STRING: Final = "string"
REST: Final = "rest"
"""The rest of the line, including spaces."""
NO_BLOB: Final = -1

MAX_INT_DIGITS: Final = len(str(MAX_INT))
MAX_QUOTED_BYTES: Final = 40
"""The length of foreign bytes in a fault: it is logged and sent back."""

_ONLY_REST: Final = (REST,)
_NEWLINE: Final = 0x0A
_RETURN: Final = 0x0D
_ZERO: Final = 0x30


class ParseFault(msgspec.Struct, frozen=True, gc=False):
    """The last item of a parser: what is wrong, in one printable line."""

    reason: str


ParsedItem = AgentMessage | ParseFault


class CommandForm(msgspec.Struct, frozen=True):
    """The grammar of a command: its parameters in order, and the maximum length of its blob."""

    command: bytes
    message_class: Callable[..., AgentMessage]
    parameters: tuple[str, ...] = ()
    max_blob_bytes: int = NO_BLOB


FORMS_TO_HELEN: Final = (
    CommandForm(b"hello", messages.Hello, (INT, STRING)),
    CommandForm(b"result", messages.Result, (INT, STRING), MAX_BLOB_BYTES),
    CommandForm(b"report", messages.Report, (INT, STRING), MAX_BLOB_BYTES),
    CommandForm(b"fetch", messages.Fetch, (INT, STRING)),
    CommandForm(b"enrol", messages.Enrol, (), MAX_BLOB_BYTES),
)
"""Sent by agents only."""

FORMS_TO_AGENT: Final = (
    CommandForm(b"check", messages.Check, (STRING, INT), MAX_BLOB_BYTES),
    CommandForm(b"reload", messages.Reload),
    CommandForm(b"error", messages.Error, (REST,)),
    CommandForm(b"accepted", messages.Accepted, (INT,)),
    CommandForm(b"redirect", messages.Redirect, (STRING,)),
    CommandForm(b"schedule", messages.Schedule, (INT,), MAX_BLOB_BYTES),
    CommandForm(b"ack", messages.Ack, (INT,)),
    CommandForm(b"file", messages.File, (INT, STRING), MAX_BLOB_BYTES),
    CommandForm(b"upgrade", messages.Upgrade, (INT,), MAX_BLOB_BYTES),
    CommandForm(b"enrolled", messages.Enrolled, (), MAX_BLOB_BYTES),
)
"""Sent by Helen only."""

FORMS_OF_BOTH: Final = (
    CommandForm(b"ping", messages.Ping, (INT,)),
    CommandForm(b"pong", messages.Pong, (INT,)),
    CommandForm(b"open", messages.Open, (INT,), MAX_BLOB_BYTES),
    CommandForm(b"data", messages.Data, (INT,), MAX_DATA_BYTES),
    CommandForm(b"resize", messages.Resize, (INT, INT, INT)),
    CommandForm(b"close", messages.Close, (INT, INT)),
)
"""Sent by both."""

FORMS: Final = (*FORMS_TO_HELEN, *FORMS_TO_AGENT, *FORMS_OF_BOTH)


class _InvalidInput(Exception):
    """The input is invalid. Internal: `feed` turns it into a ParseFault."""


class Parser:
    """One direction of one connection."""

    __slots__ = ("_blob_bytes", "_buffer", "_fields", "_form", "_forms", "_is_helen", "_min_bytes", "ended")

    def __init__(self, to_helen: bool) -> None:
        self._is_helen = to_helen
        self._forms = _FORMS_FOR_HELEN if to_helen else _FORMS_FOR_AGENT
        self._buffer = bytearray()
        """The beginning of a line or of a blob."""
        self._min_bytes = 0
        """Bytes that must be buffered before parsing continues."""
        self._form: CommandForm | None = None
        """The command whose blob is expected; its parameters are in `_fields`."""
        self._fields: list[Any] = []
        self._blob_bytes = 0
        self.ended = False
        """True after a fault: further input is dropped."""

    @property
    def buffered_bytes(self) -> int:
        """Bytes of an incomplete line or blob."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[ParsedItem]:
        """All messages that these bytes complete, in order; a ParseFault is always the last."""
        parsed: list[ParsedItem] = []
        if self.ended:
            return parsed
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._min_bytes:
                return parsed
            data = bytes(self._buffer)
            self._buffer = bytearray()
        try:
            at = self._read(data, parsed)
        except _InvalidInput as invalid:
            self.ended = True
            self._form = None
            self._fields = []
            parsed.append(ParseFault(str(invalid)))
            return parsed
        if at < len(data):
            self._buffer += data[at:] if at else data
        return parsed

    def _read(self, data: bytes, parsed: list[ParsedItem]) -> int:
        """Parse as far as possible; returns where the unparsed bytes begin."""
        at = 0
        while True:
            if self._form is not None:
                end = self._blob_end(data, at)
                if end < 0:
                    return at
                body = data[at : at + self._blob_bytes]
                parsed.append(self._form.message_class(*self._fields, body))
                self._form = None
                at = end
            # One byte more than a line and its carriage return may have: if there is no newline up to here, the line is
            # too long.
            end = data.find(b"\n", at, at + MAX_LINE_BYTES + 2)
            if end < 0:
                self._refuse_long_line(data, at)
                self._min_bytes = 0
                return at
            stop = end - 1 if end > at and data[end - 1] == _RETURN else end
            if stop - at > MAX_LINE_BYTES:
                raise _InvalidInput(f"a line is longer than {MAX_LINE_BYTES} bytes")
            self._read_line(data[at:stop], parsed)
            at = end + 1

    def _refuse_long_line(self, data: bytes, at: int) -> None:
        """An incomplete line may be of full length and end with a carriage return."""
        available = len(data) - at
        if available > MAX_LINE_BYTES + 1 or (available == MAX_LINE_BYTES + 1 and data[-1] != _RETURN):
            raise _InvalidInput(f"a line is longer than {MAX_LINE_BYTES} bytes")

    def _blob_end(self, data: bytes, at: int) -> int:
        """The position after the blob and its end of line; -1: it is incomplete."""
        end = at + self._blob_bytes
        available = len(data)
        if available > end and data[end] == _NEWLINE:
            return end + 1
        if available > end and data[end] != _RETURN:
            raise _InvalidInput("a blob is not followed by its end of line")
        if available > end + 1:
            if data[end + 1] != _NEWLINE:
                raise _InvalidInput("a blob is not followed by its end of line")
            return end + 2
        self._min_bytes = self._blob_bytes + 1
        return -1

    def _read_line(self, line: bytes, parsed: list[ParsedItem]) -> None:
        """Parse a line: a message, or the head of a message with a blob."""
        command, *parts = line.split(b" ")
        form = self._forms.get(command)
        if form is None:
            if self._is_helen:
                raise _InvalidInput(f"unknown command {_quoted(command)}")
            parsed.append(messages.UnknownMessage(_text(line)))
            return
        parameters = form.parameters
        if parameters == _ONLY_REST:
            parsed.append(form.message_class(_text(line[len(command) + 1 :])))
            return
        has_blob = form.max_blob_bytes != NO_BLOB
        if len(parts) != len(parameters) + has_blob:
            raise _InvalidInput(f"{command.decode()} has {len(parts)} parameters, not {len(parameters) + has_blob}")
        fields = [
            _number(part) if kind is INT else _string(part) for kind, part in zip(parameters, parts, strict=False)
        ]
        if not has_blob:
            parsed.append(form.message_class(*fields))
            return
        length = _number(parts[-1])
        if length > form.max_blob_bytes:
            raise _InvalidInput(f"a blob of {length} bytes is longer than {form.max_blob_bytes}")
        self._form = form
        self._fields = fields
        self._blob_bytes = length


def _number(text: bytes) -> int:
    """An `<int>`: ASCII digits without leading zeros, within int32."""
    if text.isdigit() and len(text) <= MAX_INT_DIGITS and (text[0] != _ZERO or len(text) == 1):
        number = int(text)
        if number <= MAX_INT:
            return number
    raise _InvalidInput(f"bad number {_quoted(text)}")


def _string(text: bytes) -> str:
    if not text:
        raise _InvalidInput("a parameter is empty")
    return _text(text)


def _text(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise _InvalidInput(f"invalid UTF-8 in {_quoted(text)}") from None


def _quoted(text: bytes) -> str:
    """Foreign bytes for a log: short, printable ASCII."""
    more = "…" if len(text) > MAX_QUOTED_BYTES else ""
    return repr(text[:MAX_QUOTED_BYTES])[1:] + more


_FORMS_FOR_HELEN: Final = {form.command: form for form in (*FORMS_TO_HELEN, *FORMS_OF_BOTH)}
_FORMS_FOR_AGENT: Final = {form.command: form for form in (*FORMS_TO_AGENT, *FORMS_OF_BOTH)}

"""What a column chunk of a Parquet file decodes to, from its page headers: the footer is not believed.

A page is decompressed into as many bytes as its own header says, and yields as many values as it says. Invariant: only
headers are read, each within a bounded window; nothing is decompressed.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

WINDOW_BYTES: Final = 64 * 1024
"""The largest header; one read often holds all headers of a chunk."""
MAX_PAGES: Final = 100_000
MAX_DEPTH: Final = 8

_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
_BODIES: Final = {_DATA: (5, 1, 2), _DICTIONARY: (7, 1, 2), _DATA_V2: (8, 1, 4)}
"""By type of page: the field of its own header, and in it those of the number of values and the encoding."""
_ENCODINGS: Final = frozenset({0, 2, 3, 5, 6, 8, 9})
"""PLAIN, PLAIN_DICTIONARY, RLE, DELTA_BINARY_PACKED, DELTA_LENGTH_BYTE_ARRAY, RLE_DICTIONARY, BYTE_STREAM_SPLIT. Not
DELTA_BYTE_ARRAY: its values repeat parts of earlier ones, so that a small page decodes to any size."""


class PageError(ValueError):
    """A header that cannot be read, or a page of a kind that segments do not have."""


class ChunkSize(NamedTuple):
    bytes: int
    """Of all pages, uncompressed."""
    values: int
    """Of all data pages, nulls included."""


def chunk_size(file: Any, start: int, length: int) -> ChunkSize:
    """The size of the column chunk at this place of an open file."""
    at, end, size, values = start, start + length, 0, 0
    window_at, window = start, b""
    for _ in range(MAX_PAGES):
        if at >= end:
            return ChunkSize(size, values)
        header = CompactReader(window[at - window_at :])
        try:
            fields = header.struct()
        except IndexError:
            window_at, window = at, file.read_at(min(WINDOW_BYTES, end - at), at)
            header = CompactReader(window)
            try:
                fields = header.struct()
            except IndexError:
                raise PageError("a page header is cut off or too long") from None
        own, count_field, encoding_field = _BODIES.get(_size(fields, 1), (0, 0, 0))
        body = fields.get(own, {})
        count, encoding = _size(body, count_field), _size(body, encoding_field)
        if encoding not in _ENCODINGS:
            raise PageError(f"a page has the encoding {encoding}, which segments do not use")
        size += _size(fields, 2)
        values += 0 if own == _BODIES[_DICTIONARY][0] else count
        at += header.at + _size(fields, 3)
    raise PageError(f"a column has more than {MAX_PAGES:,} pages")


def _size(fields: Any, number: int) -> int:
    value = fields.get(number) if isinstance(fields, dict) else None
    if type(value) is not int or value < 0:
        raise PageError("a page header is damaged")
    return value


class CompactReader:
    """Thrift's compact protocol, as far as page headers use it. IndexError where the text ends."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self.at = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        number = 0
        while True:
            byte = self._byte()
            if byte == 0:
                return fields
            number = number + (byte >> 4) if byte >> 4 else self._integer()
            fields[number] = self._value(byte & 0x0F, depth)

    def _value(self, kind: int, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise PageError("a page header nests too deeply")
        match kind:
            case 1 | 2:
                return kind == 1
            case 3:
                return self._byte()
            case 4 | 5 | 6:
                return self._integer()
            case 7:
                return self._skip(8)
            case 8:
                return self._skip(self._varint())
            case 9 | 10:
                head = self._byte()
                count = self._varint() if head >> 4 == 15 else head >> 4
                return [self._element(head & 0x0F, depth) for _ in range(count)]
            case 12:
                return self.struct(depth + 1)
            case _:
                raise PageError("a page header is damaged")

    def _element(self, kind: int, depth: int) -> Any:
        return self._byte() == 1 if kind in (1, 2) else self._value(kind, depth + 1)

    def _skip(self, count: int) -> None:
        if self.at + count > len(self._text):
            raise IndexError
        self.at += count

    def _byte(self) -> int:
        byte = self._text[self.at]
        self.at += 1
        return byte

    def _varint(self) -> int:
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7
            if shift > 63:
                raise PageError("a page header is damaged")

    def _integer(self) -> int:
        number = self._varint()
        return number >> 1 ^ -(number & 1)

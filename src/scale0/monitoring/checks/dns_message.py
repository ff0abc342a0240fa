"""DNS messages (RFC 1035): encode a question, and decode the records of an answer.

Invariants: for any bytes the result is a `DnsReply` or `Malformed`; a compressed name may only point backwards, so that
decoding always ends.
"""

from __future__ import annotations

import ipaddress
import struct
from typing import Final, NamedTuple

TYPES: Final = {"A": 1, "NS": 2, "CNAME": 5, "MX": 15, "TXT": 16, "AAAA": 28}
CLASS_IN: Final = 1
RCODES: Final = {1: "FORMERR", 2: "SERVFAIL", 3: "NXDOMAIN", 4: "NOTIMP", 5: "REFUSED"}
MAX_LABEL_BYTES: Final = 63
MAX_NAME_BYTES: Final = 253
MAX_RECORDS: Final = 500
"""Of one answer; the rest is ignored."""
MAX_POINTERS: Final = 64
"""Jumps within one name."""

_HEADER: Final = struct.Struct("!6H")
_RECORD: Final = struct.Struct("!HHIH")
_IS_ANSWER: Final = 0x8000
_IS_CUT: Final = 0x0200
_WANTS_RECURSION: Final = 0x0100


class Malformed(Exception):
    """These bytes do not answer our question."""


class DnsRecord(NamedTuple):
    """One record, its data as text."""

    value: str
    ttl: int


class DnsReply(NamedTuple):
    rcode: int
    truncated: bool
    """It did not fit in a datagram: ask again by TCP."""
    records: tuple[DnsRecord, ...]
    """Those of the requested type."""


def encode_question(number: int, name: str, type_: str) -> bytes:
    """The bytes of a question; ValueError if `name` is not a domain name."""
    header = _HEADER.pack(number, _WANTS_RECURSION, 1, 0, 0, 0)
    return header + encode_name(name) + struct.pack("!2H", TYPES[type_], CLASS_IN)


def encode_name(name: str) -> bytes:
    name = name.removesuffix(".")
    if not name.isascii():
        raise ValueError("a name has ASCII characters only; write others in punycode (xn--…)")
    if not name or len(name) > MAX_NAME_BYTES:
        raise ValueError(f"a name has 1 to {MAX_NAME_BYTES} characters")
    out = bytearray()
    for label in name.encode("ascii").split(b"."):
        if not 0 < len(label) <= MAX_LABEL_BYTES:
            raise ValueError(f"each part of a name has 1 to {MAX_LABEL_BYTES} characters")
        out += bytes((len(label),)) + label
    return bytes(out) + b"\0"


def read(message: bytes, question: bytes) -> DnsReply:
    if len(message) < _HEADER.size:
        raise Malformed("the answer is too short")
    number, flags, questions, answers, _, _ = _HEADER.unpack_from(message)
    if number != int.from_bytes(question[:2], "big") or not flags & _IS_ANSWER:
        raise Malformed("this answers another question")
    rcode = flags & 15
    if rcode and not questions:  # some servers omit the question when they refuse
        return DnsReply(rcode, False, ())
    end = len(question)
    if questions != 1 or message[_HEADER.size : end].lower() != question[_HEADER.size :].lower():
        raise Malformed("this answers another question")
    if flags & _IS_CUT:
        return DnsReply(rcode, True, ())
    return DnsReply(rcode, False, _records(message, end, answers, int.from_bytes(question[-4:-2], "big")))


def _records(message: bytes, at: int, count: int, wanted: int) -> tuple[DnsRecord, ...]:
    found: list[DnsRecord] = []
    for _ in range(min(count, MAX_RECORDS)):
        _, at = _name(message, at)
        if at + _RECORD.size > len(message):
            raise Malformed("a record is cut")
        type_, class_, ttl, length = _RECORD.unpack_from(message, at)
        at += _RECORD.size
        if at + length > len(message):
            raise Malformed("a record is cut")
        if type_ == wanted and class_ == CLASS_IN:
            found.append(DnsRecord(_value(message, at, length, type_), ttl))
        at += length
    return tuple(found)


def _value(message: bytes, at: int, length: int, type_: int) -> str:
    """The data of a record, in the usual notation."""
    data = message[at : at + length]
    if type_ in (TYPES["A"], TYPES["AAAA"]):
        if length != (4 if type_ == TYPES["A"] else 16):
            raise Malformed("an address has the wrong length")
        return str(ipaddress.ip_address(data))
    if type_ in (TYPES["NS"], TYPES["CNAME"]):
        return _name(message, at)[0]
    if type_ == TYPES["MX"]:
        if length < 3:
            raise Malformed("a mail exchanger is cut")
        return f"{int.from_bytes(data[:2], 'big')} {_name(message, at + 2)[0]}"
    texts = []
    while data:
        if data[0] >= len(data):
            raise Malformed("a text is cut")
        texts.append(data[1 : data[0] + 1])
        data = data[data[0] + 1 :]
    return b"".join(texts).decode("utf-8", "replace")


def _name(message: bytes, at: int) -> tuple[str, int]:
    """A name, and the offset after it."""
    labels: list[str] = []
    after: int | None = None
    limit = at
    length = 0
    for _ in range(MAX_POINTERS + MAX_NAME_BYTES):
        if at >= len(message):
            break
        size = message[at]
        if size == 0:
            return ".".join(labels) or ".", at + 1 if after is None else after
        if size & 0xC0 == 0xC0:
            if at + 1 >= len(message):
                break
            target = (size & 0x3F) << 8 | message[at + 1]
            after = at + 2 if after is None else after
            if target >= limit:  # only backwards, so that there is no loop
                break
            at = limit = target
            continue
        label = message[at + 1 : at + 1 + size]
        length += size + 1
        if size > MAX_LABEL_BYTES or len(label) < size or length > MAX_NAME_BYTES + 1:
            break
        labels.append("".join(chr(byte) if 0x21 <= byte < 0x7F else f"\\{byte:03d}" for byte in label))
        at += size + 1
    raise Malformed("a name cannot be read")

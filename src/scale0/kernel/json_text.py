"""The cost of JSON text, found without decoding it.

msgspec decodes most numbers in less than 0.1 µs, but a number whose exponent has three digits, such as 3e-310, in 5 to
20 µs, and while it does, the process does nothing else. So text of foreign origin is decoded only if its numbers with
an exponent are few. Numbers without an exponent, and those of MessagePack, take no such time. Invariant: counting costs
a few nanoseconds for each byte, whatever the bytes are.
"""

from __future__ import annotations

import re
from typing import Final

LONG_EXPONENT: Final = 10
"""A number with an exponent of three or more digits counts as so many with a shorter one, which take up to 1.5 µs."""
SHORT_BYTES: Final = 128
"""Shorter text is not searched: all of its numbers take less than 0.2 ms."""
MAX_OPTION_EXPONENTS: Final = 100
"""Numbers with an exponent in the options of a message, in the arguments of a call, and in a status: 0.2 ms of a
broker. Each of these needs few numbers, and usually none with an exponent."""
MAX_BODY_EXPONENTS: Final = 5_000
"""The same, in a body that may hold many measured values: 10 ms. 500 metrics of one result have 2,500 numbers."""

# A string to its end, closed or not; the possessive groups keep this linear.
_STRINGS: Final = re.compile(rb'"(?>[^"\\]+|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_FORM: Final = bytes.maketrans(b"123456789E", b"000000000e")


def has_slow_numbers(text: bytes, most: int) -> bool:
    """True if JSON text has more than `most` numbers with an exponent, of which a long one counts as LONG_EXPONENT."""
    if len(text) <= SHORT_BYTES or (text.count(b"e") + text.count(b"E")) * LONG_EXPONENT <= most:
        return False
    return _exponents(text) > most and _exponents(_STRINGS.sub(b"", text)) > most


def _exponents(text: bytes) -> int:
    """Counts what looks like an exponent, in strings too."""
    form = text.translate(_FORM, b"+-")
    return form.count(b"0e0") + (LONG_EXPONENT - 1) * form.count(b"0e000")

"""Z85 (ZeroMQ RFC 32): the text form of keys, five characters for four bytes.

Strict: a text has the right length, only the characters of the alphabet, and no group above 32 bits.
"""

from __future__ import annotations

from typing import Final

ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
VALUES: Final = {character: value for value, character in enumerate(ALPHABET)}
GROUP_CHARS: Final = 5
GROUP_BYTES: Final = 4


def encode(data: bytes) -> str:
    if len(data) % GROUP_BYTES:
        raise ValueError("Z85 encodes groups of 4 bytes")
    out: list[str] = []
    for start in range(0, len(data), GROUP_BYTES):
        number = int.from_bytes(data[start : start + GROUP_BYTES], "big")
        group = []
        for _ in range(GROUP_CHARS):
            number, digit = divmod(number, len(ALPHABET))
            group.append(ALPHABET[digit])
        out += reversed(group)
    return "".join(out)


def decode(text: str) -> bytes:
    """ValueError does not repeat the text: it may be a secret."""
    if len(text) % GROUP_CHARS:
        raise ValueError("Z85 has groups of 5 characters")
    out: list[bytes] = []
    for start in range(0, len(text), GROUP_CHARS):
        number = 0
        for character in text[start : start + GROUP_CHARS]:
            if character not in VALUES:
                raise ValueError("a character is not of the alphabet of Z85")
            number = number * len(ALPHABET) + VALUES[character]
        if number >> 32:
            raise ValueError("a group of Z85 exceeds 32 bits")
        out.append(number.to_bytes(GROUP_BYTES, "big"))
    return b"".join(out)

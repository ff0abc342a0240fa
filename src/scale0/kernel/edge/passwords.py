"""Passwords as argon2id hashes, in the PHC text form that other tools write, too.

Hashing is expensive on purpose: call it in a thread.
"""

from __future__ import annotations

from typing import Final

from nacl import exceptions, pwhash

OPERATIONS: Final = 3
MEMORY_BYTES: Final = 64 * 1024 * 1024
"""What RFC 9106 recommends where memory is limited."""


def hash_password(password: str, operations: int = OPERATIONS, memory_bytes: int = MEMORY_BYTES) -> str:
    return pwhash.argon2id.str(password.encode(), operations, memory_bytes).rstrip(b"\0").decode()


def verify_password(password_hash: str, password: str) -> bool:
    """True if it is the password; False for a wrong one and for a hash that cannot be read."""
    try:
        return pwhash.verify(password_hash.encode(), password.encode())
    except (exceptions.CryptoError, UnicodeEncodeError, ValueError):
        return False

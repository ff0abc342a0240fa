"""Names on the wire: identities and services."""

from __future__ import annotations

import re
from typing import Final

MAX_IDENTITY_CHARS: Final = 128
"""Long enough for host.domain:pid:uuid, short enough to log."""

RESERVED_PREFIXES: Final = ("scale0.", "mmi.", "titanic.")
"""Services that the broker itself answers: no backend may offer them."""

_IDENTITY: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII)


def is_identity(text: str) -> bool:
    """True for 1 to 128 characters of `A-Z a-z 0-9 . _ : -`."""
    return _IDENTITY.fullmatch(text) is not None


def is_reserved(service: str) -> bool:
    return service.startswith(RESERVED_PREFIXES)


def is_service_name(name: str, limit_bytes: int) -> bool:
    """True for a printable, non-empty name of at most `limit_bytes` bytes of UTF-8."""
    return bool(name) and name.isprintable() and len(name.encode("utf-8", "surrogatepass")) <= limit_bytes


def made_for(user: str, identity: str) -> str:
    """Returns a generated identity: it begins with the name of the user's key, `role/name`, if there is a user."""
    name = user.partition("/")[2]
    return f"{name}.{identity}" if name else identity

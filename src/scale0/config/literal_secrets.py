"""Values of the network document that look like secrets: everybody who may read the document can read them.

They are accepted, because only their owner knows whether they are secret, with a warning that names `secret:NAME`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from scale0.config.network import NetworkDocument
from scale0.config.secret_references import PREFIX

MAX_WARNINGS: Final = 100
"""In one answer."""
_SECRET_NAME: Final = re.compile(r"auth|cookie|credential|key|passw|secret|signature|token|^sig$", re.IGNORECASE)
_RANDOM: Final = re.compile(r"(?=[^/]*[0-9])(?=[^/]*[A-Za-z])[A-Za-z0-9_-]{20,}")
"""A part of a path such as webhook services issue: the URL itself is the secret."""


def literal_secrets(document: NetworkDocument) -> list[str]:
    """The keys whose values look like secrets, each with what to do; never the values."""
    found = [key for key, _ in zip(_keys_of(document), range(MAX_WARNINGS), strict=False)]
    return [
        f"{key} looks like a secret, which everybody who may read the document can read: put it into a file NAME of the"
        f" secrets_dir on the machine that uses it, and write {PREFIX}NAME"
        for key in found
    ]


def _keys_of(document: NetworkDocument) -> Iterator[str]:
    for handler in document.handlers:
        if _is_secret_url(handler.url):
            yield f"handlers.{handler.name}.url"
        yield from _secret_values(f"handlers.{handler.name}.headers", handler.headers)
        yield from _secret_values(f"handlers.{handler.name}.params", handler.params)
    for check in document.checks:
        yield from _secret_values(f"checks.{check.name}.args", check.args)


def _secret_values(key: str, values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        is_literal = isinstance(value, str) and bool(value) and not value.startswith(PREFIX)
        if is_literal and (_SECRET_NAME.search(name) or ("://" in value and _is_secret_url(value))):
            yield f"{key}.{name}"


def _is_secret_url(url: str) -> bool:
    if not url or url.startswith(PREFIX):
        return False
    try:
        parts = urlsplit(url)
        has_password = bool(parts.password)
    except ValueError:
        return False
    named = any(_SECRET_NAME.search(name) and value for name, value in parse_qsl(parts.query))
    return has_password or named or any(_RANDOM.fullmatch(part) for part in parts.path.split("/"))

"""References to secrets: in place of a webhook's `url`, a header or an argument of a check, `secret:NAME` names a file.

The document holds the reference only. The machine that uses the value reads the file in its own `secrets_dir`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

PREFIX: Final = "secret:"
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", re.ASCII)
NAME_RULE: Final = "secret: and a file name: a letter, digit or _, then at most 127 of A-Z a-z 0-9 _ . -"


def secret_name(value: object) -> str | None:
    """The file that a value refers to; None: the value is no reference."""
    if not isinstance(value, str) or not value.startswith(PREFIX):
        return None
    name = value.removeprefix(PREFIX)
    return name if _NAME.fullmatch(name) else None


def reference_errors(key: str, values: Mapping[str, Any]) -> Iterator[str]:
    """The errors of values that begin like a reference and are none."""
    for name, value in values.items():
        if isinstance(value, str) and value.startswith(PREFIX) and secret_name(value) is None:
            yield f"{key}.{name}: a reference must be {NAME_RULE}"

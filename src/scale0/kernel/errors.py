"""Errors: they are wrong, or we are wrong.

`Refusal` is about foreign input: it carries a code, is answered and recorded, and work goes on.
`ConfigError` is about a document. Anything else that escapes is our own fault and ends loudly.
"""

from __future__ import annotations


class Scale0Error(Exception):
    """The root of every error that Scale0 raises on purpose."""


class Refusal(Scale0Error):
    """Somebody sent what cannot be done. `code` is one of `kernel.codes`."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code} {message}")
        self.code = code
        self.message = message


class ConfigError(Scale0Error):
    """A document that cannot be used; every reason is in `reasons`, each with its place."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


class StoreError(Scale0Error):
    """The store cannot be opened or has failed; what it says is for the operator."""

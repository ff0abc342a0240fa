"""Exceptions. `Refusal` is about input from others: it carries a code, is answered and recorded, and work continues.
`ConfigError` is about a configuration document. Any other exception is an internal error."""

from __future__ import annotations


class Scale0Error(Exception):
    """The base class of all errors that Scale0 raises on purpose."""


class Refusal(Scale0Error):
    """A request that cannot be fulfilled. `code` is one of `kernel.codes`."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code} {message}")
        self.code = code
        self.message = message


class ConfigError(Scale0Error):
    """An invalid document; `reasons` has every error with its position."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


class StoreError(Scale0Error):
    """The store cannot be opened or has failed; the message is for the operator."""

"""Scale0: a service network in one install.

Lives here: the names that users import. Never here: code of its own, or an import that a user who
only wants the version must pay for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

__version__: Final = "0.1.0"

if TYPE_CHECKING:
    from scale0.client.asynchronous import AsyncClient
    from scale0.client.client import Client, Pending
    from scale0.client.errors import CallError
    from scale0.client.worker import Worker

_HOMES: Final = {
    "AsyncClient": "scale0.client.asynchronous",
    "CallError": "scale0.client.errors",
    "Client": "scale0.client.client",
    "Pending": "scale0.client.client",
    "Worker": "scale0.client.worker",
}

__all__ = ["AsyncClient", "CallError", "Client", "Pending", "Worker", "__version__"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'scale0' has no attribute {name!r}")
    import importlib  # noqa: PLC0415  # the point of this function

    return getattr(importlib.import_module(_HOMES[name]), name)

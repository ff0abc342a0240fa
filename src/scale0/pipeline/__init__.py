"""The PySpark pipeline: it reads segments of events and writes tables to a warehouse.

Running a period again never changes its tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scale0.pipeline.reading import ask, open_arrow, open_duckdb, read, tables

__all__ = ["ask", "open_arrow", "open_duckdb", "read", "tables"]


def __getattr__(name: str) -> Any:
    """Import the readers when they are used: the command line needs only the names of reports."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from scale0.pipeline import reading  # noqa: PLC0415

    return getattr(reading, name)

"""Optional dependencies: the modules that each extra of the package installs, and which are missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import Final

PACKAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "agent": ("cryptography", "lupa"),
    "http": ("httptools", "litestar", "prometheus_client", "uvicorn"),
    "otlp": ("opentelemetry",),
    "pipeline": ("duckdb", "numpy", "pandas", "pyarrow", "pyspark"),
    "postgres": ("psycopg",),
    "segments": ("pyarrow",),
    "tui": ("textual",),
}
"""The modules of each extra of pyproject.toml that a start depends on."""


def missing(extras: Iterable[str]) -> list[str]:
    """Returns those of these extras whose modules are not all installed."""
    return [extra for extra in extras if not all(map(_is_installed, PACKAGES[extra]))]


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def install_command(extras: Iterable[str]) -> str:
    return f"pip install 'scale0[{','.join(extras)}]'"

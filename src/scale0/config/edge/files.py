"""Reads configuration files; secrets are read elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from scale0.config import MAX_DOCUMENT_BYTES, format_of_file, parse
from scale0.kernel.errors import ConfigError

Schema = TypeVar("Schema")


def read_config(path: Path, schema: type[Schema]) -> Schema:
    """Read a configuration file; its suffix determines the format."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_DOCUMENT_BYTES + 1)
    except OSError as error:
        raise ConfigError([f"{path}: {error.strerror}"]) from error
    try:
        return parse(data, format_of_file(path.name), schema)
    except ConfigError as error:
        raise ConfigError([f"{path}: {reason}" for reason in error.reasons]) from error

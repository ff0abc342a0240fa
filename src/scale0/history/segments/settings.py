"""The settings of a segment exporter, and the state file that it leaves in the data directory for readers.

A destination may contain a key and a database URL a password, so neither is an argument of a process, and only the
owner may read the state file. A broker imports this module: it does not import pyarrow.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

import msgspec

from scale0.config import BrokerConfig, HelenConfig
from scale0.history.segments.names import fits
from scale0.kernel.edge.secret_files import write_secret
from scale0.kernel.errors import ConfigError

OFF: Final = "off"
FOLDER: Final = "segments"
"""In the data directory, unless the configuration names another destination."""
EXPORT_STATE_FILE: Final = "segments.json"
MAX_EXPORT_STATE_BYTES: Final = 64 * 1024


class ExporterSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: str
    data_dir: str
    destination: str
    """A directory, or a URL."""
    seconds: float
    events: int
    keep_days: int
    """0: no limit."""
    database: str = ""
    """The URL of the database with the journal; blank: it is in the data directory."""


class ExportState(msgspec.Struct, frozen=True, kw_only=True):
    """The file `segments.json` in the data directory."""

    source: str
    destination: str = msgspec.field(name="place")
    """Where the segments are."""
    day: str = ""
    """The directory of the day that it wrote to last."""
    database: str = ""
    """The URL of the database with the journal, without its password; blank: it is in the data directory."""


def without_password(url: str) -> str:
    """A database URL that a file may contain; a reader uses PGPASSWORD or ~/.pgpass."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    query = [(name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True) if "password" not in name]
    return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}{at}{host}", query=urlencode(query)))


def password_of(url: str) -> str:
    """The password in a database URL; blank: there is none."""
    parts = urlsplit(url)
    given = unquote(parts.netloc.rpartition("@")[0].partition(":")[2])
    return given or dict(parse_qsl(parts.query)).get("password", "")


def exporter_settings(config: BrokerConfig | HelenConfig, database: str = "") -> ExporterSettings | None:
    """The settings in a configuration; None if the export is off. ConfigError if it is not possible."""
    if config.segments == OFF:
        return None
    if not fits(config.identity):
        raise ConfigError(["identity: too long for the names of segments; choose a shorter one, or set segments = off"])
    destination = config.segments or str(Path(config.data_dir) / FOLDER)
    return ExporterSettings(
        source=config.identity,
        data_dir=str(Path(config.data_dir).absolute()),
        destination=destination if is_url(destination) else str(Path(destination).absolute()),
        seconds=config.segment_seconds,
        events=config.segment_events,
        keep_days=config.segments_keep_days,
        database=database,
    )


def is_url(destination: str) -> bool:
    return "://" in destination


def redact_url(destination: str) -> str:
    """A destination without its credentials."""
    if not is_url(destination):
        return destination
    parts = urlsplit(destination)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def read_export_state(data_dir: Path) -> ExportState | None:
    """The state that the last exporter left; None if it is missing or unreadable."""
    try:
        with (data_dir / EXPORT_STATE_FILE).open("rb") as file:
            return msgspec.json.decode(file.read(MAX_EXPORT_STATE_BYTES), type=ExportState)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def write_export_state(data_dir: Path, state: ExportState) -> None:
    write_secret(data_dir / EXPORT_STATE_FILE, msgspec.json.encode(state))

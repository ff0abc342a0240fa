"""What a writer of segments must know, and where it noted what readers must know.

Lives here: `ExporterSettings`, made from a broker's or Helen's file, and `ExportState`, the small file that a writer
leaves in the data folder. Never here: pyarrow; a broker imports this. Invariant: where segments go may hold a key, and
where the journal is a password, so neither is an argument of a process, and the note is for its owner alone.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

import msgspec

from scale0.history.segments.names import fits
from scale0.kernel.errors import ConfigError

OFF: Final = "off"
FOLDER: Final = "segments"
"""In the data folder, unless the file says otherwise."""
EXPORT_STATE_FILE: Final = "segments.json"
MAX_EXPORT_STATE_BYTES: Final = 64 * 1024


class SegmentConfig(Protocol):
    """The keys of a broker's file and of Helen's."""

    @property
    def identity(self) -> str: ...
    @property
    def data_dir(self) -> str: ...
    @property
    def segments(self) -> str: ...
    @property
    def segment_seconds(self) -> float: ...
    @property
    def segment_events(self) -> int: ...
    @property
    def segments_keep_days(self) -> int: ...


class ExporterSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One writer's."""

    source: str
    data_dir: str
    place: str
    """A folder, or a URL."""
    seconds: float
    events: int
    keep_days: int
    """0: for ever."""
    database: str = ""
    """The URL of the database that has the journal; blank: it is in the data folder."""


class ExportState(msgspec.Struct, frozen=True, kw_only=True):
    """What a writer leaves in the data folder."""

    source: str
    place: str
    """Where it writes: readers look there."""
    day: str = ""
    """The folder that it wrote to last."""
    database: str = ""
    """The URL of the database that has the journal, without its password; blank: it is in the data folder."""


def without_password(url: str) -> str:
    """A database's URL as a file may hold it; who reads there brings PGPASSWORD, or has a ~/.pgpass."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    query = [(name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True) if "password" not in name]
    return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}{at}{host}", query=urlencode(query)))


def password_of(url: str) -> str:
    """The password in a database's URL; blank: there is none."""
    parts = urlsplit(url)
    given = unquote(parts.netloc.rpartition("@")[0].partition(":")[2])
    return given or dict(parse_qsl(parts.query)).get("password", "")


def exporter_settings(config: SegmentConfig, database: str = "") -> ExporterSettings | None:
    """What the file says; None if no segments are wanted. ConfigError if there cannot be any."""
    if config.segments == OFF:
        return None
    if not fits(config.identity):
        raise ConfigError(["identity: too long for the names of segments; choose a shorter one, or segments = off"])
    place = config.segments or str(Path(config.data_dir) / FOLDER)
    return ExporterSettings(
        source=config.identity,
        data_dir=str(Path(config.data_dir).absolute()),
        place=place if is_url(place) else str(Path(place).absolute()),
        seconds=config.segment_seconds,
        events=config.segment_events,
        keep_days=config.segments_keep_days,
        database=database,
    )


def is_url(place: str) -> bool:
    """True for a URL, false for a folder."""
    return "://" in place


def redact_url(place: str) -> str:
    """Where segments go, without what may be a key."""
    if not is_url(place):
        return place
    parts = urlsplit(place)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def read_export_state(data_dir: Path) -> ExportState | None:
    """What the last writer left; None if that cannot be known."""
    try:
        with (data_dir / EXPORT_STATE_FILE).open("rb") as file:
            return msgspec.json.decode(file.read(MAX_EXPORT_STATE_BYTES), type=ExportState)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def write_export_state(data_dir: Path, note: ExportState) -> None:
    """Replace it, all or nothing."""
    partial = data_dir / f".{EXPORT_STATE_FILE}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        partial.unlink()
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(note))
        file.flush()
        os.fsync(file.fileno())
    partial.rename(data_dir / EXPORT_STATE_FILE)

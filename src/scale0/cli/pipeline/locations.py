"""Options for the locations of segments and tables. The default is the network of the current folder, in .scale0/."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from scale0.cli.common.authentication import DATA_DIR, LOCAL_FOLDER
from scale0.cli.common.errors import CommandError
from scale0.cli.common.options import with_options
from scale0.kernel.time_text import MICROSECONDS, time_us

SEGMENTS: Final = "segments"
WAREHOUSE: Final = "warehouse"
HELEN: Final = Path("monitoring") / "helen"
"""The folder of Helen in that of `scale0 up`."""


with_warehouse = with_options(
    click.option("--warehouse", metavar="DIR", help="The folder of the tables (default: warehouse/ in --data-dir)."),
    click.option(
        "--data-dir",
        default=LOCAL_FOLDER,
        show_default=True,
        envvar=DATA_DIR,
        help="The data folder of the network, for the defaults of --segments and --warehouse.",
    ),
)


def warehouse_of(warehouse: str | None, data_dir: str) -> Path:
    """The folder of the tables; CommandError if it is a URL."""
    if warehouse is not None and "://" in warehouse:
        if not warehouse.startswith("file://"):
            raise CommandError(
                f"{warehouse}: a warehouse must be a folder",
                "its manifest needs a file system with hard links; use a folder on a disk that all hosts share",
            )
        warehouse = warehouse.removeprefix("file://")
    return Path(warehouse) if warehouse else Path(data_dir) / WAREHOUSE


def segments_of(segments: tuple[str, ...], data_dir: str) -> tuple[str, ...]:
    """The given locations of segments, or the existing ones of the local network."""
    found = segments or local_segments(data_dir)
    if not found:
        raise CommandError(
            f"there are no segments in {Path(data_dir) / SEGMENTS}",
            "start a network with `scale0 up` and wait a minute, or give their location with --segments URL",
        )
    return found


def local_segments(data_dir: str) -> tuple[str, ...]:
    """The locations to which the broker and the Helen of a folder export segments, now or before."""
    from scale0.history.segments.settings import is_url, read_export_state

    found: dict[str, None] = {}
    for folder in (Path(data_dir), Path(data_dir) / HELEN):
        own = folder / SEGMENTS
        if own.is_dir():
            found[str(own)] = None
        note = read_export_state(folder)
        if note is None:
            continue
        place = Path(note.destination)
        if is_url(note.destination) or (place.is_dir() and place.resolve() != own.resolve()):
            found[note.destination] = None
    return tuple(found)


def no_java(error: Exception) -> NoReturn:
    """Spark did not start: report what it needs."""
    raise CommandError(
        f"Spark does not start: {str(error).splitlines()[0] if str(error) else error!r}",
        "it needs Java 17 or newer: set JAVA_HOME, or on Debian: sudo apt-get install openjdk-17-jre-headless",
    ) from error


class TimeOption(click.ParamType[int]):
    """A time: 2026-11-01, 2026-11-01T12:30 (UTC), or so long ago: 3d, 12h. It becomes microseconds."""

    name = "TIME"

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = time_us(value, int(self._now() * MICROSECONDS))
        if found is None:
            self.fail(f"{value!r} is no time; for example 2026-11-01, 2026-11-01T12:30 (UTC), or 3d for three days ago")
        return found

"""Segment sources: listing and fetching segments from a local directory or any file system of pyarrow.

A source is never modified. A fetched segment is in the staging directory, complete and synced. Listings contain no
credentials.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import pyarrow as pa
import pyarrow.fs

from scale0.history.segments.names import Segment, day_of, parse
from scale0.history.segments.settings import is_url, redact_url
from scale0.pipeline.warehouse import durable_files
from scale0.pipeline.warehouse.records import Range, WarehouseError

RACY_NS: Final = 2_000_000_000
"""A directory that changed this recently may change again within the same clock tick: it is listed again."""
FRESH_NS: Final = 120 * 1_000_000_000
"""An older file has been written back; a younger one is synced, in case its writer did not."""
GROWING_DAYS: Final = 1
"""In a source without stamps, directories this close to the newest are listed again."""

NOT_LINKED: Final = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of a hard link after which a copy is made."""

IDENTIFYING: Final = frozenset({"endpoint_override", "region", "scheme"})
"""URL options that identify the store; others may be credentials and are not stored."""

_CREDENTIALS: Final = re.compile(r"^([a-z][a-z0-9+.-]*://)[^/]*@", re.IGNORECASE | re.ASCII)


class SegmentSource(Protocol):
    """A directory of `written=` directories."""

    def folders(self) -> Mapping[str, int]:
        """Everything at the top level, with a stamp that changes with the directory. 0: it may still change."""
        ...

    def names(self, folder: str) -> list[str]:
        """The files of a directory; none if it is gone."""
        ...

    def fetch(self, folder: str, name: str, target: Path) -> None:
        """FileNotFoundError if the file is gone."""
        ...


def public_name(url: str) -> str:
    """A source's name in manifests: without credentials, with everything that identifies it."""
    if not is_url(url):
        return url
    options = [
        (name, value) for name, value in parse_qsl(urlsplit(url).query) if name in IDENTIFYING and "@" not in value
    ]
    return redact_url(url) + (f"?{urlencode(sorted(options))}" if options else "")


def without_credentials(path: str) -> str:
    return _CREDENTIALS.sub(r"\1", path)


def open_source(url: str, now_us: int) -> SegmentSource:
    """Open a URL or a plain path. WarehouseError if it is not valid."""
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return LocalSegmentSource(Path(unquote(parts.path)), now_us)
    if not parts.scheme or "://" not in url:
        return LocalSegmentSource(Path(url), now_us)
    try:
        system, base = pyarrow.fs.FileSystem.from_uri(url)
    except (pa.ArrowException, ValueError, OSError) as error:
        # A URL that cannot be parsed may have its credentials anywhere, and pyarrow repeats them.
        where, _, after = url.rpartition("@")
        if where:
            raise WarehouseError(
                f"cannot open the segments at {parts.scheme}://…@{after.partition('?')[0]}: check the URL;"
                " in credentials, write / as %2F and + as %2B"
            ) from None
        raise WarehouseError(f"cannot open the segments at {public_name(url)}: {error}; check the URL") from error
    return RemoteSegmentSource(system, base)


class LocalSegmentSource:
    """A local directory: its stamps are modification times."""

    def __init__(self, base: Path, now_us: int) -> None:
        self._base = base
        self._now_ns = now_us * 1_000

    def folders(self) -> Mapping[str, int]:
        try:
            with os.scandir(self._base) as found:
                return {each.name: self._stamp(each) for each in found}
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise WarehouseError(f"cannot list the segments in {self._base}: {error.strerror}") from error

    def _stamp(self, each: os.DirEntry[str]) -> int:
        try:
            changed_ns = each.stat().st_mtime_ns
        except FileNotFoundError:
            return 0  # removed meanwhile, or a dangling link
        return changed_ns if changed_ns < self._now_ns - RACY_NS else 0

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(self._base / folder))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise WarehouseError(f"cannot list the segments in {self._base / folder}: {error.strerror}") from error

    def fetch(self, folder: str, name: str, target: Path) -> None:
        source = self._base / folder / name
        if source.is_symlink():
            source = source.resolve()  # a hard link would point to the symbolic link
        changed_ns = source.stat().st_ctime_ns
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in NOT_LINKED:
                raise
            with source.open("rb") as stream:
                _copy(stream, target)
            return
        if changed_ns > self._now_ns - FRESH_NS:
            durable_files.sync(target)


class RemoteSegmentSource:
    """A file system of pyarrow. Its directories have no times, so those of the last days are listed again."""

    def __init__(self, system: pyarrow.fs.FileSystem, base: str) -> None:
        self._system = system
        self._base = base.rstrip("/")

    def folders(self) -> Mapping[str, int]:
        names = [name.rpartition("/")[2] for name in self._list(self._base)]
        days: dict[str, date | None] = {name: day_of(name) for name in names}
        newest = max((day for day in days.values() if day is not None), default=date.min)
        growing = newest - timedelta(days=GROWING_DAYS) if newest > date.min else newest
        return {name: int(day is not None and day < growing) for name, day in days.items()}

    def names(self, folder: str) -> list[str]:
        return sorted(path.rpartition("/")[2] for path in self._list(f"{self._base}/{folder}"))

    def _list(self, base: str) -> list[str]:
        try:
            found = self._system.get_file_info(pyarrow.fs.FileSelector(base, allow_not_found=True))
        except (pa.ArrowException, OSError) as error:
            raise WarehouseError(f"cannot list the segments in {base}: {error}") from error
        return [each.path for each in found]

    def fetch(self, folder: str, name: str, target: Path) -> None:
        with self._system.open_input_stream(f"{self._base}/{folder}/{name}", compression=None) as stream:
            _copy(stream, target)


def _copy(stream: Any, target: Path) -> None:
    with target.open("xb") as file:
        shutil.copyfileobj(stream, file, 1 << 20)
        file.flush()
        os.fsync(file.fileno())


TRUTHS: Final = "truths.json"
"""Written by `python -m simulator.history` beside its segments."""


class ListedSegment(NamedTuple):
    location: str
    """Without credentials."""
    folder: str
    name: str
    segment: Segment

    @property
    def path(self) -> str:
        return f"{self.location}/{self.folder}/{self.name}"

    @property
    def range(self) -> Range:
        return self.segment.boot, self.segment.first_seq, self.segment.last_seq


class SegmentListing(NamedTuple):
    location: str
    """Its name in manifests."""
    new: list[ListedSegment]
    foreign: list[str]
    """Paths that are not segments."""
    stamps: dict[str, int]
    """Change stamps of all `written=` directories."""
    passed: frozenset[str]
    """Paths of directories that were skipped because nothing in them can be new."""


def list_segments(
    url: str,
    location: SegmentSource,
    settled: Mapping[str, int],
    seen_in: Callable[[str], set[tuple[str, Range]]],
    *,
    rescan: bool = False,
) -> SegmentListing:
    """List everything that was not ingested. `settled` holds the completely ingested directories with their stamps.

    A directory is skipped only if its stamp has not changed since everything in it was ingested; `rescan` opens all.
    `url` may contain credentials; the result does not.
    """
    base = redact_url(url).rstrip("/")
    stamps: dict[str, int] = {}
    passed: set[str] = set()
    new: list[ListedSegment] = []
    foreign: list[str] = []
    for folder, stamp in sorted(location.folders().items()):
        if day_of(folder) is None:
            foreign += [] if _is_private(folder) else [f"{base}/{folder}"]
            continue
        stamps[folder] = stamp
        if stamp and settled.get(folder) == stamp and not rescan:
            passed.add(f"{base}/{folder}")
            continue
        names = location.names(folder)
        seen = seen_in(folder) if names else set()
        for name in names:
            segment = parse(name)
            if segment is None:
                foreign += [] if _is_private(name) else [f"{base}/{folder}/{name}"]
            elif (segment.source, (segment.boot, segment.first_seq, segment.last_seq)) not in seen:
                new.append(ListedSegment(base, folder, name, segment))
    return SegmentListing(public_name(url), new, foreign, stamps, frozenset(passed))


def _is_private(name: str) -> bool:
    """True for unfinished files of the exporter, files of the file system, and the truths of synthetic histories."""
    return name.startswith((".", "_")) or name == TRUTHS

"""Where segments lie: a folder of this machine, or any file system that pyarrow knows.

Lives here: listing and fetching. Never here: what a segment holds. Invariants: nothing of a place is ever changed; what
is fetched lies in the attempt's own folder, whole and on the disk.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import pyarrow as pa
import pyarrow.fs

from scale0.history.segments.names import day_of
from scale0.history.segments.settings import is_url, redact_url
from scale0.pipeline.warehouse.errors import WarehouseError

if TYPE_CHECKING:
    from collections.abc import Mapping

RACY_NS: Final = 2_000_000_000
"""A folder that changed so lately may change again within the same tick of its clock: it is looked at again."""
FRESH_NS: Final = 120 * 1_000_000_000
"""A file older than this has long been written back; a younger one is synced, in case its writer did not."""
GROWING_DAYS: Final = 1
"""In a place without stamps, folders so close to the newest are looked at again."""

NOT_LINKED: Final = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)
"""Why a hard link is not to be had, and a copy is."""

TELLING: Final = frozenset({"endpoint_override", "region", "scheme"})
"""Options of a URL that say which store is meant; others may be keys, and are not written down."""

_KEY: Final = re.compile(r"^([a-z][a-z0-9+.-]*://)[^/]*@", re.IGNORECASE | re.ASCII)


class SegmentSource(Protocol):
    """A folder of `written=` folders."""

    def folders(self) -> Mapping[str, int]:
        """Everything at the top by name, with a stamp: while it stays the same, so does the folder. 0: it may grow."""
        ...

    def names(self, folder: str) -> list[str]:
        """The files of a folder; none if it is gone."""
        ...

    def fetch(self, folder: str, name: str, target: Path) -> None:
        """Have a file here. FileNotFoundError if it is gone."""
        ...


def known_as(url: str) -> str:
    """A place's name in manifests: without keys, and with all that tells it from another one."""
    if not is_url(url):
        return url
    options = [(name, value) for name, value in parse_qsl(urlsplit(url).query) if name in TELLING and "@" not in value]
    return redact_url(url) + (f"?{urlencode(sorted(options))}" if options else "")


def without_key(path: str) -> str:
    """A file as people are told of it, where somebody wrote a key before its host."""
    return _KEY.sub(r"\1", path)


def place_of(url: str, now_us: int) -> SegmentSource:
    """What a URL or a plain path means. WarehouseError if nothing does."""
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return LocalSegmentSource(Path(unquote(parts.path)), now_us)
    if not parts.scheme or "://" not in url:
        return LocalSegmentSource(Path(url), now_us)
    try:
        system, base = pyarrow.fs.FileSystem.from_uri(url)
    except (pa.ArrowException, ValueError, OSError) as error:
        # What cannot be parsed may have its key anywhere, and pyarrow repeats it.
        where, _, after = url.rpartition("@")
        if where:
            raise WarehouseError(
                f"cannot open the segments at {parts.scheme}://…@{after.partition('?')[0]}: check the URL;"
                " in a key, / is written %2F, and + is %2B"
            ) from None
        raise WarehouseError(f"cannot open the segments at {known_as(url)}: {error}; check the URL") from error
    return RemoteSegmentSource(system, base)


class LocalSegmentSource:
    """A folder: its stamps are the times at which it changed."""

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
            return 0  # it went meanwhile, or is a link to nowhere
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
            source = source.resolve()  # a hard link would be one to the symbolic link
        changed_ns = source.stat().st_ctime_ns
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in NOT_LINKED:
                raise
            with source.open("rb") as read, target.open("xb") as written:
                shutil.copyfileobj(read, written, 1 << 20)
                written.flush()
                os.fsync(written.fileno())
            return
        if changed_ns > self._now_ns - FRESH_NS:
            descriptor = os.open(target, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


class RemoteSegmentSource:
    """Any file system of pyarrow's; where folders have no times, those of the last days are looked at again."""

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
        with (
            self._system.open_input_stream(f"{self._base}/{folder}/{name}", compression=None) as read,
            target.open("xb") as written,
        ):
            shutil.copyfileobj(read, written, 1 << 20)
            written.flush()
            os.fsync(written.fileno())

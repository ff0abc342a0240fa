"""Where segments stand: a folder of this machine, or whatever file system pyarrow knows.

Lives here: listing, putting, opening and removing. Never here: what is in a segment, or when it is written. Invariants:
under its name a segment is whole, or it is not there; when `put` returns, a loss of power does not take it away; one
that is there already is kept if it holds the same, and replaced only if it cannot be read.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
from pyarrow import fs

from scale0.history.segments import arrow
from scale0.history.segments.names import day_of, encode, folder_of, parse
from scale0.history.segments.settings import is_url
from scale0.kernel.errors import StoreError
from scale0.storage.data_dir import sync_directory

FILE_MODE: Final = 0o640
FOLDER_MODE: Final = 0o750
PARTIAL: Final = ".writing-"
"""How the name of a file begins that is not a segment yet; Spark does not see it."""
COPY_BYTES: Final = 4 * 1024 * 1024
WHOLE: Final = ("s3", "gcs", "abfs")
"""File systems on which a file appears when all of it is there."""

Failpoint = Callable[[str], None]
"""Told at each step: a test may end the process there."""

STEPS: Final = ("before_write", "after_write", "after_sync", "after_rename", "after_put")
"""The steps of `put`."""


class SegmentConflict(StoreError):
    """Another segment of the same name holds something else."""


class SegmentDestination(Protocol):
    """Where the segments of one or several sources stand."""

    def days(self) -> list[date]:
        """Days on which something was written, oldest first."""
        ...

    def names(self, day: date) -> list[str]:
        """All files of a day that have the name of a segment."""
        ...

    def put(self, day: date, name: str, table: pa.Table, reach: Failpoint) -> None:
        """Write a segment for good."""
        ...

    def open(self, day: date, name: str) -> Any:
        """What `arrow.open_segment` takes. FileNotFoundError if it is gone."""
        ...

    def settle(self, day: date) -> None:
        """What a writer that died left of that day: half-written files go, whole ones survive a loss of power."""
        ...

    def remove_day(self, day: date) -> None:
        """Remove all segments of a day."""
        ...


def open_destination(place: str, source: str, spool: Path) -> SegmentDestination:
    """A folder or a URL; `spool` is a local folder for what is on its way."""
    if not is_url(place):
        return LocalFolder(Path(place), source)
    system, path = fs.FileSystem.from_uri(place)
    if isinstance(system, fs.LocalFileSystem):
        return LocalFolder(Path(path), source)
    return RemoteFolder(system, path.rstrip("/"), source, spool)


def has_segment(place: SegmentDestination, day: date, name: str, table: pa.Table) -> bool:
    """True if this very segment is there; False if not, or if it cannot be read. Conflict if it is another."""
    try:
        with arrow.open_segment(place.open(day, name)) as file:
            found = file.read()
    except FileNotFoundError:
        return False
    except (arrow.InvalidSegment, pa.ArrowException, OSError):
        return False
    if not found.equals(table):
        raise SegmentConflict(
            f"{folder_of(day)}/{name} is there and holds other events: does another use this identity?"
        )
    return True


class LocalFolder:
    """A folder on a disk of this machine, or on one that behaves so."""

    def __init__(self, root: Path, source: str) -> None:
        self._root = root
        self._partial = f"{PARTIAL}{encode(source)}-"

    def days(self) -> list[date]:
        try:
            found = [day_of(name) for name in os.listdir(self._root)]
        except FileNotFoundError:
            return []
        return sorted(day for day in found if day is not None)

    def names(self, day: date) -> list[str]:
        try:
            found = os.listdir(self._root / folder_of(day))
        except FileNotFoundError:
            return []
        return sorted(name for name in found if parse(name) is not None)

    def put(self, day: date, name: str, table: pa.Table, reach: Failpoint) -> None:
        folder = self._make(day)
        if has_segment(self, day, name, table):
            self._sync(folder)
            return
        partial = folder / f"{self._partial}{os.getpid()}-{os.urandom(4).hex()}"
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, FILE_MODE)
        try:
            with os.fdopen(descriptor, "wb") as file:
                reach("before_write")
                arrow.write(table, file)
                file.flush()
                reach("after_write")
                # Should this fail, nobody knows what the disk has: the file goes, and another is written.
                os.fsync(file.fileno())
            reach("after_sync")
            partial.rename(folder / name)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise
        reach("after_rename")
        self._sync(folder)
        reach("after_put")

    def open(self, day: date, name: str) -> Any:
        path = self._root / folder_of(day) / name
        if not path.is_file():
            raise FileNotFoundError(path)
        return str(path)

    def settle(self, day: date) -> None:
        folder = self._root / folder_of(day)
        if not folder.is_dir():
            return
        for name in os.listdir(folder):
            if name.startswith(self._partial):
                with contextlib.suppress(OSError):
                    (folder / name).unlink()
        self._sync(folder)

    def remove_day(self, day: date) -> None:
        folder = self._root / folder_of(day)
        for name in os.listdir(folder):
            if parse(name) is not None or name.startswith(PARTIAL):
                (folder / name).unlink()
        folder.rmdir()
        sync_directory(self._root)

    def _make(self, day: date) -> Path:
        """The folder of a day; each one that is new is on disk before anything is put into it."""
        folder = self._root / folder_of(day)
        if not folder.is_dir():
            missing = [path for path in (folder, *folder.parents) if not path.exists()]
            for path in reversed(missing):  # mkdir would make parents with the umask's mode
                path.mkdir(mode=FOLDER_MODE, exist_ok=True)
            for path in missing:
                sync_directory(path.parent)
        return folder

    def _sync(self, folder: Path) -> None:
        sync_directory(folder)


class RemoteFolder:
    """A folder of a file system that pyarrow knows: an object store, HDFS."""

    def __init__(self, system: fs.FileSystem, root: str, source: str, spool: Path) -> None:
        self._system = system
        self._root = root
        self._source = source
        self._spool = spool

    def days(self) -> list[date]:
        found = self._system.get_file_info(fs.FileSelector(self._root, allow_not_found=True))
        days = (day_of(one.base_name) for one in found if one.type == fs.FileType.Directory)
        return sorted(day for day in days if day is not None)

    def names(self, day: date) -> list[str]:
        found = self._system.get_file_info(fs.FileSelector(self._path(day), allow_not_found=True))
        return sorted(one.base_name for one in found if one.is_file and parse(one.base_name) is not None)

    def put(self, day: date, name: str, table: pa.Table, reach: Failpoint) -> None:
        if has_segment(self, day, name, table):
            return
        partial = self._spool / f"{PARTIAL}{encode(self._source)}-{os.getpid()}-{os.urandom(4).hex()}"
        try:
            reach("before_write")
            with partial.open("xb") as file:
                arrow.write(table, file)
            reach("after_write")
            self._upload(partial, day, name)
        finally:
            with contextlib.suppress(OSError):
                partial.unlink()
        reach("after_put")

    def _upload(self, partial: Path, day: date, name: str) -> None:
        """Bring it there; on a file system that shows half a file, under another name first."""
        final = f"{self._path(day)}/{name}"
        whole = self._system.type_name in WHOLE
        there = final if whole else f"{self._path(day)}/{partial.name}"
        if not whole:
            self._system.create_dir(self._path(day), recursive=True)
        with partial.open("rb") as file, self._system.open_output_stream(there) as stream:
            shutil.copyfileobj(file, stream, COPY_BYTES)
        size = self._system.get_file_info(there).size
        if size != partial.stat().st_size:
            raise OSError(f"{name} arrived with {size} bytes of {partial.stat().st_size}")
        if not whole:
            self._system.move(there, final)

    def open(self, day: date, name: str) -> Any:
        path = f"{self._path(day)}/{name}"
        if not self._system.get_file_info(path).is_file:
            raise FileNotFoundError(path)
        return self._system.open_input_file(path)

    def settle(self, day: date) -> None:
        for path in self._spool.glob(f"{PARTIAL}{encode(self._source)}-*"):
            with contextlib.suppress(OSError):
                path.unlink()

    def remove_day(self, day: date) -> None:
        for name in self.names(day):
            self._system.delete_file(f"{self._path(day)}/{name}")
        if self._system.get_file_info(fs.FileSelector(self._path(day), allow_not_found=True)):
            raise OSError(f"{folder_of(day)} is not removed: there are files in it that are no segments")
        # On an object store there is no folder; what pyarrow puts there in its place goes, too.
        self._system.delete_dir(self._path(day))

    def _path(self, day: date) -> str:
        return f"{self._root}/{folder_of(day)}"

"""Where segments are stored: a local directory, or any file system that pyarrow supports.

Under its final name a segment is complete or absent. When `put` returns, the segment survives a power loss. An existing
segment with the same events is kept, and it is replaced only if it cannot be read.
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
"""The prefix of an incomplete file; Spark ignores it."""
COPY_BYTES: Final = 4 * 1024 * 1024
ATOMIC: Final = ("s3", "gcs", "abfs")
"""File systems on which a file appears only when it is complete."""

Failpoint = Callable[[str], None]
"""Called at each step: a test may end the process there."""

STEPS: Final = ("before_write", "after_write", "after_sync", "after_rename", "after_put")
"""The steps of `put`."""


class SegmentConflict(StoreError):
    """An existing segment of the same name contains other events."""


class SegmentDestination(Protocol):
    """Where the segments of one or several sources are stored."""

    def days(self) -> list[date]:
        """The days on which segments were written, oldest first."""
        ...

    def names(self, day: date) -> list[str]:
        """The segments of a day."""
        ...

    def put(self, day: date, name: str, table: pa.Table, failpoint: Failpoint) -> None:
        """Write a segment durably."""
        ...

    def open(self, day: date, name: str) -> Any:
        """The argument of `arrow.open_segment`. FileNotFoundError if it is missing."""
        ...

    def recover(self, day: date) -> None:
        """After a crash: delete incomplete files of that day, and make complete ones durable."""
        ...

    def remove(self, day: date, names: list[str]) -> None:
        """Delete these segments of a day, and the directory of the day with the last one."""
        ...


def open_destination(destination: str, source: str, spool: Path) -> SegmentDestination:
    """A directory or a URL; `spool` is a local directory for uploads."""
    if not is_url(destination):
        return LocalFolder(Path(destination), source)
    system, path = fs.FileSystem.from_uri(destination)
    if isinstance(system, fs.LocalFileSystem):
        return LocalFolder(Path(path), source)
    return RemoteFolder(system, path.rstrip("/"), source, spool)


def has_segment(destination: SegmentDestination, day: date, name: str, table: pa.Table) -> bool:
    """True if this segment exists; False if not, or if it cannot be read. SegmentConflict if it has other events."""
    try:
        with arrow.open_segment(destination.open(day, name)) as file:
            existing = file.read()
    except FileNotFoundError:
        return False
    except (arrow.InvalidSegment, pa.ArrowException, OSError):
        return False
    if not existing.equals(table):
        raise SegmentConflict(
            f"{folder_of(day)}/{name} exists and contains other events; does another process use this identity?"
        )
    return True


class LocalFolder:
    """A local directory."""

    def __init__(self, root: Path, source: str) -> None:
        self._root = root
        self._partial = f"{PARTIAL}{encode(source)}-"

    def days(self) -> list[date]:
        try:
            days = [day_of(name) for name in os.listdir(self._root)]
        except FileNotFoundError:
            return []
        return sorted(day for day in days if day is not None)

    def names(self, day: date) -> list[str]:
        try:
            names = os.listdir(self._root / folder_of(day))
        except FileNotFoundError:
            return []
        return sorted(name for name in names if parse(name) is not None)

    def put(self, day: date, name: str, table: pa.Table, failpoint: Failpoint) -> None:
        folder = self._make(day)
        if has_segment(self, day, name, table):
            sync_directory(folder)
            return
        partial = folder / f"{self._partial}{os.getpid()}-{os.urandom(4).hex()}"
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, FILE_MODE)
        try:
            with os.fdopen(descriptor, "wb") as file:
                failpoint("before_write")
                arrow.write(table, file)
                file.flush()
                failpoint("after_write")
                # If this fails, the state on disk is unknown: the file is deleted and written again.
                os.fsync(file.fileno())
            failpoint("after_sync")
            partial.rename(folder / name)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise
        failpoint("after_rename")
        sync_directory(folder)
        failpoint("after_put")

    def open(self, day: date, name: str) -> Any:
        path = self._root / folder_of(day) / name
        if not path.is_file():
            raise FileNotFoundError(path)
        return str(path)

    def recover(self, day: date) -> None:
        folder = self._root / folder_of(day)
        if not folder.is_dir():
            return
        for name in os.listdir(folder):
            if name.startswith(self._partial):
                with contextlib.suppress(OSError):
                    (folder / name).unlink()
        sync_directory(folder)

    def remove(self, day: date, names: list[str]) -> None:
        folder = self._root / folder_of(day)
        for name in names:
            (folder / name).unlink(missing_ok=True)
        if self.names(day):
            return
        # Another exporter may do the same at this moment.
        with contextlib.suppress(FileNotFoundError):
            for partial in folder.glob(f"{PARTIAL}*"):
                partial.unlink(missing_ok=True)
            folder.rmdir()
        sync_directory(self._root)

    def _make(self, day: date) -> Path:
        """The directory of a day; a new one is durable before anything is written to it."""
        folder = self._root / folder_of(day)
        if not folder.is_dir():
            missing = [path for path in (folder, *folder.parents) if not path.exists()]
            for path in reversed(missing):  # mkdir would create parents with the mode of the umask
                path.mkdir(mode=FOLDER_MODE, exist_ok=True)
            for path in missing:
                sync_directory(path.parent)
        return folder


class RemoteFolder:
    """A directory of a file system that pyarrow supports: an object store, HDFS."""

    def __init__(self, system: fs.FileSystem, root: str, source: str, spool: Path) -> None:
        self._system = system
        self._root = root
        self._source = source
        self._spool = spool

    def days(self) -> list[date]:
        files = self._system.get_file_info(fs.FileSelector(self._root, allow_not_found=True))
        days = (day_of(one.base_name) for one in files if one.type == fs.FileType.Directory)
        return sorted(day for day in days if day is not None)

    def names(self, day: date) -> list[str]:
        files = self._system.get_file_info(fs.FileSelector(self._path(day), allow_not_found=True))
        return sorted(one.base_name for one in files if one.is_file and parse(one.base_name) is not None)

    def put(self, day: date, name: str, table: pa.Table, failpoint: Failpoint) -> None:
        if has_segment(self, day, name, table):
            return
        partial = self._spool / f"{PARTIAL}{encode(self._source)}-{os.getpid()}-{os.urandom(4).hex()}"
        try:
            failpoint("before_write")
            with partial.open("xb") as file:
                arrow.write(table, file)
            failpoint("after_write")
            self._upload(partial, day, name)
        finally:
            with contextlib.suppress(OSError):
                partial.unlink()
        failpoint("after_put")

    def _upload(self, partial: Path, day: date, name: str) -> None:
        """Upload it; on a file system that shows incomplete files, under another name first."""
        final = f"{self._path(day)}/{name}"
        atomic = self._system.type_name in ATOMIC
        target = final if atomic else f"{self._path(day)}/{partial.name}"
        if not atomic:
            self._system.create_dir(self._path(day), recursive=True)
        with partial.open("rb") as file, self._system.open_output_stream(target) as stream:
            shutil.copyfileobj(file, stream, COPY_BYTES)
        size = self._system.get_file_info(target).size
        if size != partial.stat().st_size:
            raise OSError(f"{name} was uploaded with {size} of {partial.stat().st_size} bytes")
        if not atomic:
            self._system.move(target, final)

    def open(self, day: date, name: str) -> Any:
        path = f"{self._path(day)}/{name}"
        if not self._system.get_file_info(path).is_file:
            raise FileNotFoundError(path)
        return self._system.open_input_file(path)

    def recover(self, day: date) -> None:
        for path in self._spool.glob(f"{PARTIAL}{encode(self._source)}-*"):
            with contextlib.suppress(OSError):
                path.unlink()

    def remove(self, day: date, names: list[str]) -> None:
        for name in names:
            self._system.delete_file(f"{self._path(day)}/{name}")
        if self.names(day):
            return
        if self._system.get_file_info(fs.FileSelector(self._path(day), allow_not_found=True)):
            raise OSError(f"{folder_of(day)} cannot be removed: it contains files that are not segments")
        # On an object store there is no directory, but pyarrow creates a marker, which must be deleted.
        self._system.delete_dir(self._path(day))

    def _path(self, day: date) -> str:
        return f"{self._root}/{folder_of(day)}"

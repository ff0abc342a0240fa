"""The staging directory of a run: its files are invisible until a manifest lists them.

A registered file is synced. A staging directory that is closed without a commit is deleted.
"""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from scale0.pipeline.warehouse import durable_files
from scale0.pipeline.warehouse.records import PART, ROW_HASH, FileEntry, Sum, WarehouseError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from scale0.pipeline.warehouse.warehouse import Warehouse

WORKERS: Final = 4
"""Threads that sync and read files: mostly they wait for the disk."""


class StagingDirectory:
    """A directory for manifest `number`. As a context manager it is deleted at the end unless it was committed."""

    def __init__(self, warehouse: Warehouse, number: int, name: str, folder: Path) -> None:
        self.warehouse = warehouse
        self.number = number
        self.name = name
        self.folder = folder
        self.committed = False
        self._files = 0
        self._numbering = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.warehouse.live.discard(self.name)
        if not self.committed:
            # What cannot be deleted now is garbage-collected later.
            shutil.rmtree(self.folder, ignore_errors=True)

    def directory(self, data_set: str) -> Path:
        folder = self.folder / data_set
        folder.mkdir(exist_ok=True)
        return folder

    def new_file(self, data_set: str, stem: str) -> Path:
        with self._numbering:
            self._files += 1
            return self.directory(data_set) / f"{stem}-{self._files}.parquet"

    def new_directory(self, data_set: str, name: str) -> Path:
        with self._numbering:
            self._files += 1
            folder = self.directory(data_set) / f"{name}.{self._files}"
        folder.mkdir()
        return folder

    def relative(self, path: Path) -> str:
        """A file's path as a manifest lists it. ValueError if it is not in this directory."""
        if not path.is_relative_to(self.folder):
            raise ValueError(f"{path} is not in the staging directory {self.folder}")
        return path.relative_to(self.warehouse.root).as_posix()

    def register(self, data_set: str, files: Iterable[Path | str]) -> list[FileEntry]:
        """Return entries for Parquet files written below the directory; empty files have none."""
        paths = sorted({self.folder / path for path in files})
        for path in paths:
            self.relative(path)
        with ThreadPoolExecutor(min(WORKERS, max(1, len(paths)))) as pool:
            entries = list(pool.map(lambda path: self._entry(data_set, path), paths))
        self.warehouse.reach("files.registered")
        return [entry for entry in entries if entry.parts]

    def register_whole(self, path: Path) -> FileEntry:
        """Return an entry for a Parquet file with a single part, numbered as this manifest."""
        durable_files.sync(path)
        rows = pq.read_metadata(path).num_rows
        return FileEntry(self.relative(path), path.stat().st_size, {self.number: (rows, 0)})

    def _entry(self, data_set: str, path: Path) -> FileEntry:
        durable_files.sync(path)
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                parts = sums_of(file.read(columns=[PART, ROW_HASH], use_threads=False))
        except (pa.ArrowException, ValueError, KeyError) as error:
            raise WarehouseError(f"{path} of {data_set} has invalid {PART} or {ROW_HASH} columns: {error}") from error
        return FileEntry(self.relative(path), path.stat().st_size, parts)

    def seal(self) -> None:
        """Sync every directory; the files already are."""
        durable_files.sync_tree(self.folder)
        durable_files.sync(self.folder.parent)
        self.warehouse.reach("attempt.sealed")


def sums_of(table: pa.Table) -> dict[int, Sum]:
    """Rows and hash by part. ValueError for a row without one of them."""
    if table[PART].null_count or table[ROW_HASH].null_count:
        raise ValueError("a row has a null")
    if table.num_rows == 0:
        return {}
    parts = table[PART].to_numpy()
    hashes = table[ROW_HASH].to_numpy()
    if (parts[1:] < parts[:-1]).any():
        order = np.argsort(parts, kind="stable")
        parts, hashes = parts[order], hashes[order]
    starts = np.concatenate(([0], np.flatnonzero(parts[1:] != parts[:-1]) + 1))
    counts = np.diff(np.append(starts, len(parts)))
    mixed = np.bitwise_xor.reduceat(hashes, starts)
    return {int(p): (int(n), int(h)) for p, n, h in zip(parts[starts], counts, mixed, strict=True)}

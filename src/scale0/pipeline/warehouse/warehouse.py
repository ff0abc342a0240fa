"""The warehouse's folder: manifests and chapters read, the lock, attempts begun.

    manifest/<n>.json              created exclusively; the newest one counts
    data/<n>-<random>/…            the files of one attempt to make manifest n
    lock

Lives here: opening what is written. Never here: an edit (`draft.py`), or what may go (`collection.py`). Invariants:
what is read is what was written, or it is an error that says what to do; manifests are numbered without gaps.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from scale0.pipeline.warehouse import durable_files, errors, garbage_collection, lock
from scale0.pipeline.warehouse.errors import WarehouseDamaged
from scale0.pipeline.warehouse.records import (
    FORMAT,
    DayManifest,
    DayManifestRef,
    EventsFile,
    FileEntry,
    Manifest,
    Ref,
    Sealed,
    SeenSegments,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from scale0.pipeline.warehouse.staging import StagingDirectory

MANIFESTS: Final = "manifest"
DATA: Final = "data"
MAX_CACHED: Final = 1_000
"""Chapters that are kept decoded: more than a year and a half."""

FAILPOINTS: Final = (
    "attempt.begun",
    "segment.fetched",
    "segments.adopted",
    "files.registered",
    "chapter.written",
    "attempt.sealed",
    "manifest.written",
    "manifest.created",
    "manifest.synced",
    "collection.begun",
    "collection.manifest_removed",
    "collection.file_removed",
)
"""Where a test may have a driver die: `reach` is called with these."""

_NUMBERED: Final = re.compile(r"([1-9][0-9]{0,17})\.json", re.ASCII)

Shape = TypeVar("Shape")


def pass_by(_: str) -> None:
    """What happens at a failpoint in normal runs: nothing."""


class Warehouse:
    """One folder with all tables. Reading it needs no lock."""

    def __init__(self, root: Path, reach: Callable[[str], None] = pass_by) -> None:
        self.root = root.absolute()
        self.reach = reach
        self.locked = False
        """True while this object holds the lock."""
        self.live: set[str] = set()
        """Names of attempts that this object has begun and that have not ended."""
        self._cache: dict[tuple[str, type[Any]], Any] = {}

    @contextmanager
    def lock(self, purpose: str) -> Iterator[None]:
        """Be the one driver. Busy at once if there is another; it says which."""
        descriptor = lock.take(self.root, purpose)
        self.locked = True
        try:
            yield
        finally:
            self.locked = False
            os.close(descriptor)

    def path(self, relative: str) -> Path:
        """Where a listed file lies. Broken for a path that leads elsewhere."""
        if relative.startswith("/") or ".." in relative.split("/"):
            raise WarehouseDamaged(
                f"a manifest of {self.root} lists {relative!r}, which is no file of it: restore a backup"
            )
        return self.root / relative

    def numbers(self) -> list[int]:
        """Of all manifests, ascending. Broken if one in the middle is missing."""
        try:
            names = os.listdir(self.root / MANIFESTS)
        except FileNotFoundError:
            return []
        found = sorted(int(match[1]) for name in names if (match := _NUMBERED.fullmatch(name)))
        if found and found[-1] - found[0] + 1 != len(found):
            missing = sorted({*range(found[0], found[-1])} - {*found}) if len(found) < MAX_CACHED else [found[0] + 1]
            raise WarehouseDamaged(
                f"{self.root / MANIFESTS} has manifest {found[-1]} but not {missing[0]}: somebody removed it;"
                f" put it back, or remove those below it as well"
            )
        return found

    def latest(self) -> Manifest | None:
        """The newest manifest; None for a warehouse in which nothing was committed."""
        for last_look in (False, True):
            numbers = self.numbers()
            if not numbers:
                return None
            try:
                return self.manifest(numbers[-1])
            except FileNotFoundError:
                # Only old ones are collected, but they may have aged while we looked.
                if last_look:
                    raise
        return None

    def manifest(self, number: int) -> Manifest:
        """One manifest. Broken if it is not what was written; FileNotFoundError if it is not there."""
        path = self.root / MANIFESTS / f"{number}.json"
        try:
            sealed = msgspec.json.decode(path.read_bytes(), type=Sealed)
            body = bytes(sealed.manifest)
            if hashlib.sha256(body).hexdigest() != sealed.sha256:
                raise msgspec.ValidationError("its checksum is another")
            form = msgspec.json.decode(body, type=_Form).format
            if form > FORMAT:
                raise WarehouseDamaged(f"{path} has format {form}, this program knows {FORMAT}: use the newer program")
            manifest = msgspec.json.decode(body, type=Manifest)
            if manifest.number != number:
                raise msgspec.ValidationError(f"it says that it is {manifest.number}")
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise WarehouseDamaged(
                f"{path} is damaged ({error}). Restore it from a backup; or move it away: then manifest {number - 1}"
                f" counts again, if it is there, and the next run makes anew what came after it"
            ) from error
        return manifest

    def chapter(self, manifest: Manifest, day: int) -> DayManifest:
        """The chapter of a day; an empty one where there is none."""
        ref = manifest.chapters.get(day)
        return DayManifest(day) if ref is None else self.read(ref, DayManifest)

    def slab_files(self, manifest: Manifest, day: int, slab: str) -> tuple[FileEntry, ...]:
        """What a day's chapter lists for one slab; the rest of it is not decoded, which is most of the work."""
        ref = manifest.chapters.get(day)
        body = None if ref is None else self.read(ref, _Loose).slabs.get(slab)
        return () if body is None else _ENTRIES.decode(body)

    def events_files(self, manifest: Manifest, day: int) -> tuple[EventsFile, ...]:
        """The same for its events."""
        ref = manifest.chapters.get(day)
        return () if ref is None else _EVENTS.decode(self.read(ref, _Loose).events)

    def seen(self, manifest: Manifest, folder: str) -> SeenSegments:
        """The segments of a `written=` folder that are done with."""
        ref = manifest.seen.get(folder)
        return SeenSegments({}) if ref is None else self.read(ref, SeenSegments)

    def read(self, ref: Ref | DayManifestRef, shape: type[Shape]) -> Shape:
        """A JSON file of the warehouse, checked, and kept decoded. FileNotFoundError if it was collected."""
        key = ref.path, shape
        if key in self._cache:
            found: Shape = self._cache[key]
            return found
        body = self.path(ref.path).read_bytes()
        if hashlib.sha256(body).hexdigest() != ref.sha256:
            raise WarehouseDamaged(f"{self.root / ref.path} is damaged: {errors.RESTORE}")
        found = msgspec.json.decode(body, type=shape)
        if len(self._cache) >= MAX_CACHED:
            self._cache.clear()
        self._cache[key] = found
        return found

    def begin(self) -> StagingDirectory:
        """A fresh attempt to make the next manifest."""
        from scale0.pipeline.warehouse.staging import StagingDirectory  # noqa: PLC0415  # it needs pyarrow, and readers do not

        numbers = self.numbers()
        number = numbers[-1] + 1 if numbers else 1
        name = f"{number}-{secrets.token_hex(4)}"
        durable_files.make(self.root / MANIFESTS)
        durable_files.make(self.root / DATA)
        folder = self.root / DATA / name
        folder.mkdir()
        self.live.add(name)
        self.reach("attempt.begun")
        return StagingDirectory(self, number, name, folder)

    def collect(self, now_us: int) -> garbage_collection.Collected:
        """Remove what no manifest of the last 24 hours names. Takes the lock where this object has not got it."""
        if self.locked:
            return garbage_collection.collect(self, now_us)
        with self.lock("collect"):
            return garbage_collection.collect(self, now_us)


class _Loose(msgspec.Struct):
    """A chapter of which nothing is decoded yet."""

    events: msgspec.Raw
    slabs: dict[str, msgspec.Raw]


_ENTRIES: Final = msgspec.json.Decoder(tuple[FileEntry, ...])
_EVENTS: Final = msgspec.json.Decoder(tuple[EventsFile, ...])


class _Form(msgspec.Struct):
    """What is asked before anything else of a manifest is believed."""

    format: int

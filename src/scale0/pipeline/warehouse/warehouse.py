"""The warehouse's directory: reads manifests and day manifests, locks, and creates staging directories.

    manifest/<n>.json              created exclusively; the newest one is current
    data/<n>-<random>/…            the files of one run that writes manifest n
    lock

Everything read is verified by checksum. Manifests are numbered without gaps.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from scale0.pipeline.warehouse import durable_files
from scale0.pipeline.warehouse.durable_files import acquire_lock
from scale0.pipeline.warehouse.records import (
    FORMAT,
    RESTORE,
    DayManifest,
    DayManifestRef,
    EventsFile,
    FileEntry,
    Manifest,
    Ref,
    Sealed,
    SeenSegments,
    WarehouseDamaged,
)
from scale0.pipeline.warehouse.retention import Collected, collect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from scale0.pipeline.warehouse.staging import StagingDirectory

MANIFESTS: Final = "manifest"
DATA: Final = "data"
MAX_CACHED: Final = 1_000
"""Decoded day manifests in the cache: more than a year and a half."""

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
"""`reach` is called with these; tests kill a driver there."""

_NUMBERED: Final = re.compile(r"([1-9][0-9]{0,17})\.json", re.ASCII)

Shape = TypeVar("Shape")


def no_failpoint(_: str) -> None:
    pass


class Warehouse:
    """A directory with all tables. Reading needs no lock."""

    def __init__(self, root: Path, reach: Callable[[str], None] = no_failpoint) -> None:
        self.root = root.absolute()
        self.reach = reach
        self.locked = False
        """True while this object holds the lock."""
        self.live: set[str] = set()
        """Names of open staging directories of this object."""
        self._cache: dict[tuple[str, type[Any]], Any] = {}

    @contextmanager
    def lock(self, purpose: str) -> Iterator[None]:
        """Hold the warehouse's lock. WarehouseBusy if another process has it."""
        descriptor = acquire_lock(self.root, purpose)
        self.locked = True
        try:
            yield
        finally:
            self.locked = False
            os.close(descriptor)

    def path(self, relative: str) -> Path:
        """The absolute path of a listed file. WarehouseDamaged if it is outside of the warehouse."""
        if relative.startswith("/") or ".." in relative.split("/"):
            raise WarehouseDamaged(
                f"a manifest of {self.root} lists {relative!r}, which is outside of the warehouse: restore a backup"
            )
        return self.root / relative

    def numbers(self) -> list[int]:
        """The numbers of all manifests, ascending. WarehouseDamaged if one in the middle is missing."""
        try:
            names = os.listdir(self.root / MANIFESTS)
        except FileNotFoundError:
            return []
        found = sorted(int(match[1]) for name in names if (match := _NUMBERED.fullmatch(name)))
        if found and found[-1] - found[0] + 1 != len(found):
            missing = sorted({*range(found[0], found[-1])} - {*found}) if len(found) < MAX_CACHED else [found[0] + 1]
            raise WarehouseDamaged(
                f"{self.root / MANIFESTS} has manifest {found[-1]} but not {missing[0]}: it was removed;"
                f" restore it, or remove those below it as well"
            )
        return found

    def latest(self) -> Manifest | None:
        """The newest manifest; None for an empty warehouse."""
        for last_try in (False, True):
            numbers = self.numbers()
            if not numbers:
                return None
            try:
                return self.manifest(numbers[-1])
            except FileNotFoundError:
                # Only old ones are garbage-collected, but this one may have become old since it was listed.
                if last_try:
                    raise
        return None

    def manifest(self, number: int) -> Manifest:
        """WarehouseDamaged if it is not what was written; FileNotFoundError if it does not exist."""
        path = self.root / MANIFESTS / f"{number}.json"
        try:
            sealed = msgspec.json.decode(path.read_bytes(), type=Sealed)
            body = bytes(sealed.manifest)
            if hashlib.sha256(body).hexdigest() != sealed.sha256:
                raise msgspec.ValidationError("checksum mismatch")
            form = msgspec.json.decode(body, type=_FormatOnly).format
            if form > FORMAT:
                raise WarehouseDamaged(f"{path} has format {form}, this version knows {FORMAT}: upgrade scale0")
            manifest = msgspec.json.decode(body, type=Manifest)
            if manifest.number != number:
                raise msgspec.ValidationError(f"its number is {manifest.number}")
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise WarehouseDamaged(
                f"{path} is damaged ({error}). Restore it from a backup; or move it away: then manifest {number - 1}"
                f" becomes current again, if it exists, and the next run recomputes what came after it"
            ) from error
        return manifest

    def day_manifest(self, manifest: Manifest, day: int) -> DayManifest:
        """The day manifest; an empty one if there is none."""
        ref = manifest.chapters.get(day)
        return DayManifest(day) if ref is None else self.read(ref, DayManifest)

    def data_files(self, manifest: Manifest, day: int, data_set: str) -> tuple[FileEntry, ...]:
        """A day's files of one data set; the rest of the day manifest is not decoded, which would be most of the
        work.
        """
        ref = manifest.chapters.get(day)
        body = None if ref is None else self.read(ref, _UndecodedDay).slabs.get(data_set)
        return () if body is None else _ENTRIES.decode(body)

    def events_files(self, manifest: Manifest, day: int) -> tuple[EventsFile, ...]:
        ref = manifest.chapters.get(day)
        return () if ref is None else _EVENTS.decode(self.read(ref, _UndecodedDay).events)

    def seen(self, manifest: Manifest, folder: str) -> SeenSegments:
        """The processed segments of a `written=` directory."""
        ref = manifest.seen.get(folder)
        return SeenSegments({}) if ref is None else self.read(ref, SeenSegments)

    def read(self, ref: Ref | DayManifestRef, shape: type[Shape]) -> Shape:
        """Read, verify and cache a JSON file. FileNotFoundError if it was garbage-collected."""
        key = ref.path, shape
        if key in self._cache:
            found: Shape = self._cache[key]
            return found
        body = self.path(ref.path).read_bytes()
        if hashlib.sha256(body).hexdigest() != ref.sha256:
            raise WarehouseDamaged(f"{self.root / ref.path} is damaged: {RESTORE}")
        found = msgspec.json.decode(body, type=shape)
        if len(self._cache) >= MAX_CACHED:
            self._cache.clear()
        self._cache[key] = found
        return found

    def begin(self) -> StagingDirectory:
        from scale0.pipeline.warehouse.staging import StagingDirectory  # noqa: PLC0415  # it needs pyarrow, and readers do not

        numbers = self.numbers()
        number = numbers[-1] + 1 if numbers else 1
        name = f"{number}-{secrets.token_hex(4)}"
        durable_files.make_directory(self.root / MANIFESTS)
        durable_files.make_directory(self.root / DATA)
        folder = self.root / DATA / name
        folder.mkdir()
        self.live.add(name)
        self.reach("attempt.begun")
        return StagingDirectory(self, number, name, folder)

    def collect(self, now_us: int) -> Collected:
        """Delete what no manifest of the last 24 hours lists. Takes the lock if this object does not have it."""
        if self.locked:
            return collect(self, now_us)
        with self.lock("collect"):
            return collect(self, now_us)


class _UndecodedDay(msgspec.Struct):
    """A day manifest with undecoded fields."""

    events: msgspec.Raw
    slabs: dict[str, msgspec.Raw]


_ENTRIES: Final = msgspec.json.Decoder(tuple[FileEntry, ...])
_EVENTS: Final = msgspec.json.Decoder(tuple[EventsFile, ...])


class _FormatOnly(msgspec.Struct):
    """Decoded before anything else of a manifest."""

    format: int

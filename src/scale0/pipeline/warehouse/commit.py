"""Publishes a transaction: day manifests, directory entries, then one manifest, created exclusively."""

from __future__ import annotations

import errno
import hashlib
import os
from typing import TYPE_CHECKING

import msgspec

from scale0.pipeline.warehouse import durable_files
from scale0.pipeline.warehouse.errors import WarehouseError, WarehouseFenced
from scale0.pipeline.warehouse.records import FORMAT, DayManifest, DayManifestRef, Manifest, Ref, Sealed, SeenSegments

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from scale0.pipeline.warehouse.staging import StagingDirectory
    from scale0.pipeline.warehouse.warehouse import Warehouse

_JSON = msgspec.json.Encoder()


def publish(
    warehouse: Warehouse,
    attempt: StagingDirectory,
    base: Manifest,
    content: Manifest,
    chapters: Mapping[int, DayManifest],
    seen: Mapping[str, SeenSegments],
) -> Manifest:
    """Write the new files, then create the manifest that lists them.

    Nothing is visible before the hard link, everything after it. Failing to create manifest n + 1 fences off a second
    driver.
    """
    refs = dict(content.chapters)
    for day, chapter in sorted(chapters.items()):
        refs.pop(day, None)
        if chapter.events or chapter.pulses or chapter.slabs:
            refs[day] = _chapter_ref(_write(attempt, "chapters", f"day-{day}.json", chapter), chapter)
            warehouse.reach("chapter.written")
    seen_refs = dict(content.seen)
    for folder, names in sorted(seen.items()):
        if folder not in base.seen or names != warehouse.seen(base, folder):
            seen_refs[folder] = _write(attempt, "seen", f"{folder.partition('=')[2]}.json", names)
    attempt.seal()
    manifest = msgspec.structs.replace(
        content,
        number=attempt.number,
        format=FORMAT,
        attempt=attempt.name,
        chapters=dict(sorted(refs.items())),
        seen=dict(sorted(seen_refs.items())),
    )
    _create(warehouse, attempt, base.number, manifest)
    return manifest


def _write(attempt: StagingDirectory, slab: str, name: str, content: DayManifest | SeenSegments) -> Ref:
    path = attempt.place(slab) / name
    body = _JSON.encode(content)
    durable_files.write(path, body)
    return Ref(attempt.relative(path), len(body), hashlib.sha256(body).hexdigest())


def _chapter_ref(ref: Ref, chapter: DayManifest) -> DayManifestRef:
    most = max((len(entries) for entries in chapter.slabs.values()), default=0)
    return DayManifestRef(ref.path, ref.bytes, ref.sha256, len(chapter.events), len(chapter.pulses), most)


def _create(warehouse: Warehouse, attempt: StagingDirectory, base_number: int, manifest: Manifest) -> None:
    folder = warehouse.root / "manifest"
    body = _JSON.encode(manifest)
    partial = folder / f".{attempt.name}"
    try:
        durable_files.write(partial, _JSON.encode(Sealed(hashlib.sha256(body).hexdigest(), msgspec.Raw(body))))
        warehouse.reach("manifest.written")
        # The link fails if n + 1 exists, but not if it was created and garbage-collected while this driver slept.
        numbers = warehouse.numbers()
        if (numbers[-1] if numbers else 0) != base_number or attempt.number != base_number + 1:
            raise _fenced(attempt, numbers[-1] if numbers else 0)
        _link(partial, folder / f"{manifest.number}.json", attempt)
        attempt.committed = True
        warehouse.reach("manifest.created")
        durable_files.sync(folder)
        warehouse.reach("manifest.synced")
    finally:
        partial.unlink(missing_ok=True)


def _link(partial: Path, path: Path, attempt: StagingDirectory) -> None:
    try:
        os.link(partial, path)
    except FileExistsError as error:
        # A network file system may report this for our own link if the reply to the first try was lost.
        if not partial.samefile(path):
            raise _fenced(attempt, attempt.number) from error
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise WarehouseError(
                f"cannot create {path} by a hard link: {error.strerror}; put the warehouse on a file system with hard"
                " links: they protect it from two concurrent drivers"
            ) from error
        raise


def _fenced(attempt: StagingDirectory, newest: int) -> WarehouseFenced:
    return WarehouseFenced(
        f"another driver committed manifest {newest} of {attempt.warehouse.root} while this one worked on"
        f" {attempt.number}: this run was discarded; run it again"
    )

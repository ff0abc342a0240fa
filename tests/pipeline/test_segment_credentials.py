"""A key in the URL of segments: it opens the place, and is written down nowhere.

Promise: PIPE-2
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow.fs
import pytest

from scale0.pipeline.status import PendingSegments, status_of
from scale0.pipeline.warehouse.records import SegmentProblem, WarehouseError
from scale0.pipeline.warehouse.segment_sources import RemoteSegmentSource, open_source, public_name, without_credentials
from scale0.pipeline.warehouse.warehouse import Warehouse
from tests.pipeline.idle_runs import commit, take
from tests.pipeline.warehouse_made import NOW_US, begin, put, rows

URL = "s3://AKIA:hush%2Fhush@bucket/segments?region=eu-west-1&endpoint_override=localhost%3A9000&session_token=hush"
SHOWN = "s3://bucket/segments"
KNOWN = f"{SHOWN}?endpoint_override=localhost%3A9000&region=eu-west-1"


@pytest.fixture
def remote(tmp_path, monkeypatch):
    """Three days of segments at a URL: one damaged, and a file that is none."""
    segments = tmp_path / "segments"
    for day, first in (("2026-05-01", 1), ("2026-05-09", 11), ("2026-05-10", 21)):
        put(segments, rows(first, first + 9), day=day)
    (segments / "written=2026-05-10" / "seg-broker-2-7-1-9.parquet").write_bytes(b"PAR1")
    (segments / "written=2026-05-10" / "notes.txt").write_text("hello")
    place = RemoteSegmentSource(pyarrow.fs.LocalFileSystem(), str(segments))
    for user in ("ingestion", "status"):
        module = "scale0.pipeline.status" if user == "status" else f"scale0.pipeline.warehouse.{user}"
        monkeypatch.setattr(f"{module}.open_source", lambda *_: place)
    return place


def newest(warehouse: Warehouse) -> bytes:
    """The newest manifest, as it lies on the disk."""
    return (warehouse.root / "manifest" / f"{warehouse.numbers()[-1]}.json").read_bytes()


def written(root: Path) -> bytes:
    """Every file of a warehouse that people could read."""
    return b"".join(path.read_bytes() for path in sorted(root.rglob("*.json")))


def test_no_key_is_written_down_or_shown(warehouse, remote):
    taken, manifest = take(warehouse, URL)
    assert [problem.name for problem in taken.problems] == [
        f"{SHOWN}/written=2026-05-10/seg-broker-2-7-1-9.parquet",
        f"{SHOWN}/written=2026-05-10/notes.txt",
    ]
    assert list(manifest.listings) == [KNOWN]
    for key in (b"AKIA", b"hush"):
        assert key not in written(warehouse.root)
    assert taken.stopped == {"broker-2": taken.problems[0].name}


def test_another_key_opens_the_same_place(warehouse, remote):
    take(warehouse, URL)
    taken, manifest = take(warehouse, URL.replace("AKIA:hush", "AKIB:new"))
    assert (taken.segments, list(manifest.listings)) == (0, [KNOWN])
    assert status_of(warehouse.root, [URL], NOW_US).pending == PendingSegments(1, 9), "the damaged one"


def old_manifest(warehouse: Warehouse, remote: RemoteSegmentSource) -> None:
    """A warehouse of a time in which keys were written down."""
    take(warehouse, URL)
    with begin(warehouse) as transaction:
        transaction.listings = {URL: dict(remote.folders())}
        name = f"{URL.partition('?')[0]}/written=2026-05-10/notes.txt"
        transaction.problems = {name: SegmentProblem(name, "foreign", "it is no segment")}
        commit(transaction)
    assert b"AKIA" in newest(warehouse)


def test_an_older_manifest_is_read_and_its_keys_are_shown_no_more(warehouse, remote):
    old_manifest(warehouse, remote)
    found = status_of(warehouse.root, [URL], NOW_US)
    assert found.ignored == (f"{SHOWN}/written=2026-05-10/notes.txt: it is no segment",)
    assert found.pending == PendingSegments(1, 9)
    taken, manifest = take(warehouse, URL)
    assert taken.segments == 0
    assert list(manifest.listings) == [KNOWN]
    assert [problem.kind for problem in manifest.problems] == ["foreign", "damaged"]
    assert [problem.kind for problem in taken.problems] == ["damaged"], "the other was reported once"
    for key in (b"AKIA", b"hush"):
        assert key not in newest(warehouse)


@pytest.mark.parametrize(
    ("url", "known"),
    [
        ("/srv/a@b:c/segments", "/srv/a@b:c/segments"),
        ("file:///srv/segments", "file:///srv/segments"),
        ("s3://bucket/a@b/segments/", "s3://bucket/a@b/segments/"),
        ("s3://KEY@bucket/segments", "s3://bucket/segments"),
        ("s3://K:S@bucket?endpoint_override=http%3A%2F%2Fme%3Akey%40host", "s3://bucket"),
        ("abfs://c:key@account.dfs.core.windows.net/s?client_secret=x", "abfs://account.dfs.core.windows.net/s"),
        (URL, KNOWN),
    ],
)
def test_a_place_is_known_without_keys_and_apart_from_others(url, known):
    assert public_name(url) == known
    assert public_name(known) == known


def test_a_file_is_shown_without_the_key():
    assert without_credentials("s3://K:S@bucket/written=2026-05-10/a?b#c@d") == "s3://bucket/written=2026-05-10/a?b#c@d"
    assert without_credentials("s3://K:S@S@bucket/x") == "s3://bucket/x"
    assert without_credentials("/srv/a@b/x") == "/srv/a@b/x"


@pytest.mark.parametrize(
    "url", ["s3://AKIA:hu/sh@bucket/x", "s3://AKIA:hush@bucket/x?nonsense=hush", "hm://me:hush@x/y"]
)
def test_a_url_that_cannot_be_opened_is_shown_without_the_key(url):
    with pytest.raises(WarehouseError, match="cannot open the segments at") as met:
        open_source(url, NOW_US)
    assert "hu" not in str(met.value)
    assert "AKIA" not in str(met.value)
    assert met.value.__suppress_context__


def test_a_manifest_without_urls_is_as_it_was(warehouse, tmp_path):
    put(tmp_path / "segments", rows(1, 5))
    _, manifest = take(warehouse, str(tmp_path / "segments"))
    assert list(manifest.listings) == [str(tmp_path / "segments")]
    with begin(warehouse) as transaction:
        assert transaction.listings == manifest.listings
        assert not transaction.has_other_problems()
        assert msgspec.to_builtins(manifest)["format"] == 1
